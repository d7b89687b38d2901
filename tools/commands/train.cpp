#include <cstdio>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/run/child.h"
#include "tools/run/planner.h"
#include "tools/run/processes.h"
#include "tools/run/rank.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"
#include "zerograd/zero/interrupt.h"

namespace zg::tools {
namespace {

// Adds to an out-of-memory error the settings that would fit, found by a plan.
[[noreturn]] void explain(const Run& run, const OutOfMemory& error) {
  const DeviceOptions& limits = run.options.device_flags.device;
  // Without a memory limit there is no setting that would fit better.
  if (limits.memory_limit == 0 && limits.host_limit == 0) throw;
  const std::optional<std::string> smallest = smallest_fitting(run);
  const std::string what = error.what();
  throw OutOfMemory(what + (what.ends_with('\n') ? "" : "\n") +
                    (smallest ? fmt::format("try {}: the smallest setting that fits\n", *smallest)
                              : "no ZeRO stage fits, with or without --activation-checkpoint; try "
                                "a smaller --batch-size or more --ranks\n"));
}

// Trains with ranks that are threads, or with this process as one rank of several, which reports
// its own errors. Each rank that sees another one fail prints it.
int train_on_ranks(const Run& prepared, const TrainOptions& given) {
  const zero::InterruptScope interrupt;
  Run run = prepared;
  const TrainOptions& options = run.options;
  const bool is_process = options.process.has_value();
  zero::CommonStop stop(options.ranks, interrupt);
  int status = 0;
  std::vector<std::string> memory;  // of all ranks, as JSON
  const auto train_rank = [&](Communicator& ranks, const Device& device) {
    Rank rank(run, ranks, device);
    const int own = rank.train(interrupt, is_process ? nullptr : &stop);
    if (is_process || ranks.rank() == 0) status = own;
    if (!rank.finished() || options.memory_json.empty()) return;
    std::vector<std::string> texts = gather_texts(ranks, to_json(rank.memory()));
    if (ranks.rank() == 0) memory = std::move(texts);
  };
  const auto train_thread = [&](Communicator& ranks, const Device& device) {
    try {
      train_rank(ranks, device);
    } catch (const CommError& error) {
      print_line(stderr, "rank {}/{} ends: CommError: {}", ranks.rank(), ranks.size(),
                 error.what());
      throw;
    }
  };
  const auto train_process = [&](Communicator& ranks, const Device& device) {
    try {
      run = agree_on_checkpoint(run, given, ranks);
      train_rank(ranks, device);
    } catch (const OutOfMemory& error) {
      // Explained before any output: planning takes a while, and the other ranks exit soon.
      explain(run, error);
    }
  };
  if (!is_process) {
    run_local(static_cast<int>(options.ranks), train_thread,
              {.timeout_s = options.comm_timeout_s,
               .device = options.device_flags.device,
               .type = options.device_flags.type,
               .dump_collectives = options.dump_collectives});
  } else {
    try {
      run_processes(train_process, {.timeout_s = options.comm_timeout_s,
                                    .device = options.device_flags.device,
                                    .type = options.device_flags.type,
                                    .dump_collectives = options.dump_collectives,
                                    .told_to_end = zero::last_warning,
                                    .same = common_values(run)});
    } catch (const CommError& error) {
      throw CommError(fmt::format("rank {}/{} ends: {}", options.process->rank,
                                  options.process->size, error.what()));
    }
  }
  if (!memory.empty())
    write_json("--memory-json", options.memory_json, to_json(memory_record(run), memory));
  return status;
}

/// Removes unfinished folders of failed or killed saves, including those of earlier runs. No other
/// process writes there while the run holds its lock.
void remove_leftovers(const Run& run) {
  if (run.lock) zero::remove_unfinished(run.options.save);
}

// Writes the trace if the run ended within the traced steps.
void write_trace(const Run& run) {
  if (run.traced && !run.traced->is_written) run.traced->write();
}

// A rank that stalls or is killed ends its process, so another process must restart the run.
int supervise(const TrainOptions& options, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), options.finetunes ? "finetune" : "train");
  return run_with_restarts(options, arguments,
                           [](std::vector<std::string> words) {
                             words.insert(words.begin(), this_program);
                             return run_child(words, "try without --max-restarts");
                           })
      .status;
}

int train_with(TrainOptions options, const std::vector<std::string>& arguments) {
  if (!parse(arguments, options)) return 0;
  if (options.explain_settings) {
    const Run run = prepare_run(options);
    if (options.is_first_process())
      print_line(stdout, "{}", explain_settings(run.options, run.settings));
    return 0;
  }
  if (!options.autotuning.empty()) {
    std::vector<std::string> words = arguments;
    words.insert(words.end(), {"--autotuning", options.autotuning});  // a config may have said it
    return tune(words);
  }
  if (must_supervise(options)) return supervise(options, arguments);
  apply_restart(options);
  const Run run = prepare_run(options);
  check_budgets(run);
  int status = 0;
  try {
    status = train_on_ranks(run, options);
  } catch (...) {
    remove_leftovers(run);
    try {
      write_trace(run);
    } catch (const FileError&) {  // ignored: the first error is reported
    }
    if (run.options.process) throw;
    try {
      throw;
    } catch (const OutOfMemory& error) {
      explain(run, error);
    } catch (const Error& error) {
      // Thrown as Error itself when nothing can be learned; the numbers would be the same again.
      if (typeid(error) != typeid(Error) || !options.given.count("--restarted")) throw;
      print_line(stderr, "error: Error: {}", error.what());
      return fails_again;
    }
  }
  remove_leftovers(run);
  write_trace(run);
  return status;
}

}  // namespace

int train(const std::vector<std::string>& arguments) { return train_with({}, arguments); }

int finetune(const std::vector<std::string>& arguments) {
  return train_with(finetune_options(), arguments);
}

}  // namespace zg::tools
