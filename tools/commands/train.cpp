#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tools/commands/subcommands.h"
#include "tools/deepspeed/load.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/advise.h"
#include "tools/run/child.h"
#include "tools/run/planner.h"
#include "tools/run/rank.h"
#include "tools/run/run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/interrupt.h"

namespace zg::tools {
namespace {

void check_finetune(const TrainOptions& options) {
  if (options.from_hf.empty() && options.resume.empty() && options.initial_weights.empty())
    throw ConfigError(
        "finetune: expected a trained model, got none; try --from-hf FOLDER, --init F or --resume "
        "DIR");
  if (!options.data.source.empty() && !is_conversations(options.data.source))
    raise<ConfigError>(
        "--data: finetune learns conversations; expected PATH.jsonl with lines such as "
        "{{\"prompt\": \"Hi\", \"response\": \"Hello\"}}, got {}; try zerograd train",
        options.data.source);
  if (!options.autotuning.empty())
    throw Unsupported(
        "--autotuning: it restarts zerograd train; try zerograd tune with the same flags, then "
        "finetune --config tuned.json");
}

// Throws if torchrun, accelerate or deepspeed started several processes: each would train a model
// of its own.
void refuse_other_launchers() {
  const char* size = std::getenv("WORLD_SIZE");
  const long long processes =
      size ? std::atoll(size) : 1;  // WORLD_SIZE as a number, which is safe to print
  if (processes <= 1) return;
  raise<ConfigError>(
      "WORLD_SIZE: expected processes that MPI starts, got {} of another launcher, which cannot "
      "communicate; try zerograd launch --num_gpus {} train ..., or unset WORLD_SIZE",
      processes, processes);
}

// If mpirun or srun started this process as one of several, their number becomes the number of
// ranks; --ranks may be absent or equal to it. Throws ConfigError if --ranks differs, or if
// torchrun's variables ask for several processes, which could not communicate. Throws Unsupported
// in a build without MPI.
void adopt_processes(TrainOptions& options) {
  const std::optional<ProcessRank> place = process_rank();
  if (!place) refuse_other_launchers();
  if (!place || place->size == 1) return;
  if (mpi_version().empty())
    raise<Unsupported>(
        "ranks: this build links no MPI, so the {} processes that were started cannot communicate; "
        "try --ranks {} in one process, or install libopenmpi-dev and build again",
        place->size, place->size);
  if (options.has("--ranks") && options.ranks != place->size)
    raise<ConfigError>("--ranks: expected the {} processes that were started, or nothing; got {}",
                       place->size, options.ranks);
  options.ranks = place->size;
  options.process = place;
}

bool parse_finetune_flags(const std::vector<std::string>& arguments, TrainOptions& options) {
  const CommandLine line = {
      .usage = "zerograd finetune --from-hf FOLDER --data CHATS.jsonl [flags]",
      .summary =
          "Trains a decoder of Hugging Face's on conversations; only responses count in the\n"
          "loss. It is train with other defaults: --epochs 3, --lr 2e-05,\n"
          "--lr-scheduler-type linear, --betas 0.9,0.999 and --weight-decay 0. As in train,\n"
          "conversations have the defaults --loss-mean token, --batch-size 8 and\n"
          "--block-size 1024, or the model's positions if fewer. A line of the data is\n"
          "{\"prompt\": \"Hi\", \"response\": \"Hello\"}, with \"completion\" as another name, or\n"
          "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, ...]} with --chat-format.",
      .groups = train_groups(options),
      .notes =
          "  zerograd finetune --from-hf LLAMA_FOLDER --data chats.jsonl --save runs/chat\n"
          "  zerograd finetune --from-hf QWEN_FOLDER --data chats.jsonl --chat-format chatml.json "
          "\\\n"
          "      --val-data held_out.jsonl --eval-interval 50 --save runs/chat\n"
          "  zerograd eval runs/chat --val-data held_out.jsonl"};
  return parse(line, arguments, options.given);
}

}  // namespace

void complete(TrainOptions& options) {
  load_config(options);
  const bool asked =
      options.has("--save-interval") || options.has("--save-top-k") || options.resume == "auto";
  if (asked && options.save.empty()) options.save = "checkpoints";
  resolve_tracking(options);
  check_train(options);
}

bool parse_flags(const std::vector<std::string>& arguments, TrainOptions& options) {
  if (options.finetunes) return parse_finetune_flags(arguments, options);
  const CommandLine line = {
      .usage = "zerograd train --data sort|adder|PATH.txt|PATH.bin|PATH.jsonl [flags]",
      .summary =
          "Trains a language model. Defaults are in brackets. Sizes are written like 512MiB, 2GiB "
          "or 1e9.",
      .groups = train_groups(options),
      .notes =
          "Spellings of other systems work too: --n_layer, --learning_rate,\n"
          "--per_device_train_batch_size, --gradient_accumulation_steps,\n"
          "--num_train_epochs, --num_warmup_steps, --output_dir, --logging_steps, --gpus 2,\n"
          "--precision 16, --bf16, --strategy ddp|deepspeed_stage_N[_offload],\n"
          "--micro-batch-size, --global-batch-size, --num-layers, --hidden-size,\n"
          "--num-attention-heads, --seq-length, --clip-grad, --adam-beta1, --load,\n"
          "--deepspeed_config F, --config_name gpt2, --model_name_or_path DIR, --tokenizer_name "
          "PATH,\n"
          "--with_tracking --report_to tensorboard --report_name NAME (in --output_dir),\n"
          "--limit_train_batches 120 (of each epoch; without --epochs: of one).\n\n"
          "  zerograd train --data sort --ranks 2 --zero-stage 2\n"
          "  zerograd train --data input.txt --model-type gpt-mini --save checkpoints\n"
          "  zerograd train --data pairs.jsonl --from-hf BLENDERBOT_FOLDER --save runs/chat"};
  return parse(line, arguments, options.given);
}

bool parse(const std::vector<std::string>& arguments, TrainOptions& options) {
  if (!parse_flags(arguments, options)) return false;
  // The default length of finetune counts as not given.
  for (const char* flag : {"--steps", "--train-samples"})
    if (options.has(flag)) options.epochs = 0.0;
  if (options.finetunes) check_finetune(options);
  if (options.data.source.empty() && options.resume.empty() && !is_import(options))
    raise<ConfigError>(
        "--data: expected sort, adder, PATH.txt or PATH.bin, got nothing; try --data {}",
        options.from_hf.empty() ? "sort" : "text.txt, or --steps 0 --save DIR");
  adopt_processes(options);
  complete(options);
  if (options.injection.fault == FaultInjection::Fault::stop && !options.process)
    throw ConfigError(
        "--inject: expected processes of mpirun or launch for fault=stop, got ranks that are "
        "threads: all of them would stop");
  return true;
}

namespace {

// Adds to an out-of-memory error the settings that would fit, found by a plan.
[[noreturn]] void explain(const Run& run, const OutOfMemory& error) {
  const DeviceOptions& limits = run.options.device_flags.device;
  // Without a memory limit there is no setting that would fit better.
  if (limits.memory_limit == 0 && limits.host_limit == 0) throw;
  const SmallestSetting smallest = smallest_fitting(run);
  // The advice of the plan replaces that of the allocation.
  std::string what = error.what();
  if (const size_t advice = what.find("; try "); advice != std::string::npos)
    what.erase(advice, std::min(what.find('\n', advice), what.size()) - advice);
  raise<OutOfMemory>("{}{}{}", what, what.ends_with('\n') ? "" : "\n",
                     smallest.flags
                         ? fmt::format("try {}: the smallest setting that fits\n", *smallest.flags)
                         : fmt::format("settings that fit: {}\n", smallest.none));
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
      raise<CommError>("rank {}/{} ends: {}", options.process->rank, options.process->size,
                       error.what());
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
  options.command = arguments;
  options.command.insert(options.command.begin(), options.finetunes ? "finetune" : "train");
  if (!parse(arguments, options)) return 0;
  if (options.explain_settings) {
    const Run run = prepare_run(options);
    if (options.is_first_process())
      print_line(stdout, "{}", explain_settings(run.options, run.options));
    return 0;
  }
  if (!options.autotuning.empty()) {
    std::vector<std::string> words = arguments;
    words.insert(words.end(), {"--autotuning", options.autotuning});  // a config may have set it
    return tune(words);
  }
  if (must_supervise(options)) return supervise(options, arguments);
  apply_restart(options);
  Run run = prepare_run(options);
  check_budgets(run);
  if (!options.report.empty()) {
    run.compared = compared_runs(options);
    run.planned_rows = dry_run_of_report(run, 0).rows;
  }
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
      // Error itself is thrown when training learns nothing any more; a restart would do the same.
      if (typeid(error) != typeid(Error) || !options.has("--restarted")) throw;
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
