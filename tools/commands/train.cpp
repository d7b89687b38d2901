#include <cstdio>

#include "tools/commands/subcommands.h"
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

struct Ended {
  int status = 0;
  bool finished = false;
  RankMemory memory;
};

// Runs one rank. Each rank that sees a failure prints it; the first cause becomes the command's
// error.
Ended train_rank(const Run& run, Communicator& ranks, const Device& device,
                 const zero::InterruptScope& interrupt, zero::CommonStop& stop) {
  try {
    Rank rank(run, ranks, device);
    const int status = rank.train(interrupt, &stop);
    return {status, rank.finished(), rank.memory()};
  } catch (const CommError& error) {
    print_line(stderr, "rank {}/{} ends: CommError: {}", ranks.rank(), ranks.size(), error.what());
    throw;
  }
}

int train_on_threads(const Run& run, const zero::InterruptScope& interrupt) {
  int status = 0;
  bool finished = false;
  zero::CommonStop stop(run.options.ranks, interrupt);
  std::vector<RankMemory> memory(static_cast<size_t>(run.options.ranks));
  run_local(static_cast<int>(run.options.ranks),
            [&](Communicator& ranks, const Device& device) {
              Ended own = train_rank(run, ranks, device, interrupt, stop);
              memory[static_cast<size_t>(ranks.rank())] = std::move(own.memory);
              if (ranks.rank() > 0) return;
              status = own.status;
              finished = own.finished;
            },
            {.timeout_s = run.options.comm_timeout_s,
             .device = run.options.device_flags.device,
             .type = run.options.device_flags.type,
             .dump_collectives = run.options.dump_collectives});
  if (finished && !run.options.memory_json.empty())
    write_json("--memory-json", run.options.memory_json,
               to_json(memory_record(run, std::move(memory))));
  return status;
}

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

// Runs this process as one rank of several, which reports its own errors.
int train_as_process(const Run& prepared, const TrainOptions& given,
                     const zero::InterruptScope& interrupt) {
  int status = 0;
  Run run = prepared;
  const auto train_rank = [&](Communicator& ranks, const Device& device) {
    run = agree_on_checkpoint(run, given, ranks);
    Rank rank(run, ranks, device);
    status = rank.train(interrupt, nullptr);
    if (!rank.finished() || run.options.memory_json.empty()) return;
    const auto texts = gather_texts(ranks, to_json(rank.memory()));
    if (ranks.rank() == 0)
      write_json("--memory-json", run.options.memory_json, to_json(memory_record(run, {}), texts));
  };
  const auto rank = [&](Communicator& ranks, const Device& device) {
    try {
      train_rank(ranks, device);
    } catch (const OutOfMemory& error) {
      explain(run,
              error);  // before any output: planning takes a while, and the other ranks exit soon
    }
  };
  try {
    run_processes(rank, {.timeout_s = run.options.comm_timeout_s,
                         .device = run.options.device_flags.device,
                         .type = run.options.device_flags.type,
                         .dump_collectives = run.options.dump_collectives,
                         .told_to_end = zero::last_warning,
                         .same = common_values(run)});
  } catch (const CommError& error) {
    throw CommError(fmt::format("rank {}/{} ends: {}", run.options.process->rank,
                                run.options.process->size, error.what()));
  }
  return status;
}

int train_on_ranks(const Run& run, const TrainOptions& given) {
  const zero::InterruptScope interrupt;
  return run.options.process ? train_as_process(run, given, interrupt)
                             : train_on_threads(run, interrupt);
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
