#include "tools/options.h"

#include "tools/axes_flags.h"
#include "tools/config/load.h"
#include "tools/data_flags.h"
#include "tools/device_flag.h"
#include "tools/flags.h"
#include "tools/later.h"
#include "tools/length_flags.h"
#include "tools/model_flags.h"
#include "tools/offload_flags.h"
#include "tools/optimisation_flags.h"
#include "tools/processes.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

std::vector<Flag> data_and_model_flags(DataOptions& data, ModelOptions& model) {
  std::vector<Flag> flags = {
      source_flag(data),
      choice_flag({"--order"}, data.order, {"random", "sequential"}, "of training samples")};
  for (Flag& flag : held_out_flags(data)) flags.push_back(std::move(flag));
  flags.push_back(tokenizer_flag(data));
  std::vector<Flag> model_flags = {
      model_type_flag(model),
      integer_flag({"--n-layer", "--num-layers"}, model.layers,
                   "blocks; with --n-head and --n-embd instead of a name", {1, ""}),
      heads_flag(model),
      integer_flag({"--n-embd", "--hidden-size"}, model.width, "width", {1, ""}),
      integer_flag({"--block-size", "--seq-length"}, model.block_size, "longest sequence",
                   {1, "sort 11, adder 6, text 128, a BLOOM's own"}),
      integer_flag({"--max-position-embeddings"}, model.max_positions, "", {1, ""}),
      integer_flag({"--vocab-size"}, model.vocabulary, "tokens that the model knows",
                   {1, "a BLOOM's own, else from the data"}),
      position_flag(model),
      tied_flag(model),
      {{"--untied"},
       "",
       "the head has weights of its own [GPT's default]",
       [&model](const std::string& name, const std::string& value) {
         model.tied = !parse_switch(name, value);
       }},
      number_flag({"--dropout"}, model.dropout, below_one,
                  "on embeddings, attention and residuals"),
  };
  flags.insert(flags.end(), model_flags.begin(), model_flags.end());
  return flags;
}

std::vector<Flag> place_flags(PlaceOptions& place) {
  return {
      device_flag(place.type),
      use_hpu_flag(place.type),
      {{"--threads"},
       "N",
       "threads for kernels, of each rank; 0: its share of the cores [0]",
       [&place](const std::string& name, const std::string& value) {
         place.device.threads = static_cast<int>(parse_integer(name, value, 0, 4096));
       }},
      size_flag({"--device-memory"}, place.device.memory_limit,
                "cap on each device's bytes; beyond it OutOfMemory (exit 3)"),
      size_flag({"--host-memory"}, place.device.host_limit,
                "cap on each rank's pinned and host bytes together"),
  };
}

Flag stage_flag(zero::Config& engine) {
  return {{"--zero-stage"},
          "0|1|2|3",
          "what the ranks share out: 0 gradient sums, 1 and 2 also masters\nand moments, 3 also "
          "values [0]",
          [&engine](const std::string& name, const std::string& value) {
            engine.stage = static_cast<int>(parse_choice(name, value, {"0", "1", "2", "3"}));
          }};
}

// Of Lightning: the stage by another name. Listed in help as a spelling only.
Flag strategy_flag(zero::Config& engine, OffloadFlags& offload) {
  return {{"--strategy"},
          "S",
          "",
          [&engine, &offload](const std::string& name, const std::string& value) {
            const std::string stage = "deepspeed_stage_";
            const size_t choice =
                parse_choice(name, value,
                             {"ddp", stage + "1", stage + "2", stage + "3", stage + "1_offload",
                              stage + "2_offload", stage + "3_offload"});
            offload.cpu_offload = offload.cpu_offload || choice > 3;
            engine.stage = static_cast<int>(choice > 3 ? choice - 3 : choice);
          }};
}

std::vector<Flag> rank_flags(TrainOptions& options) {
  zero::Config& engine = options.optimisation.engine;
  return {
      integer_flag({"--ranks", "--gpus", "--num-gpus"}, options.ranks,
                   "ranks of all axes: threads of this process, or processes where\n"
                   "mpirun -np N starts them; then it may be left out",
                   {1, nullptr}),
      stage_flag(engine),
      strategy_flag(engine, options.offload),
      integer_flag({"--reduce-bucket-size"}, engine.reduce_bucket_size,
                   "largest reduction of gradients, elements", {1, nullptr}),
      integer_flag({"--prefetch-bucket-size"}, engine.prefetch_bucket_size,
                   "largest unit that is gathered ahead, elements"),
      integer_flag({"--param-persistence-threshold"}, engine.param_persistence_threshold,
                   "stage 3: parameters of at most so many elements stay whole"),
      {{"--overlap-comm"},
       "on|off",
       "communicate while computing [on]",
       [&engine](const std::string& name, const std::string& value) {
         engine.overlap_comm = parse_switch(name, value);
       }},
      switch_flag({"--reduce-at-boundary"}, engine.reduce_at_boundary,
                  "stages 0 and 1: reduce once a step; bits then depend on the ranks"),
      switch_flag({"--nccl-reduce"}, engine.nccl_reduce,
                  "inexact, GPUs with NCCL: gradients are summed in its order and\n"
                  "rounding; bits then depend on the ranks and the machine"),
      {{"--grad-accum-dtype"},
       "f32|bf16",
       "of gradient sums [f32; of fsdp-memory bf16]",
       [&engine](const std::string& name, const std::string& value) {
         engine.grad_accum =
             parse_choice(name, value, {"f32", "bf16"}) == 0 ? DType::f32 : DType::bf16;
       }},
      number_flag({"--comm-timeout"}, options.comm_timeout_s,
                  {0.0, 1e6, true, false, "seconds above 0 and at most 1e6"},
                  "seconds until a rank that stays away ends the run (exit 4)"),
      switch_flag({"--dump-collectives"}, options.dump_collectives,
                  "after a failure: each rank's last 64 collectives on stderr, with\n"
                  "step, state and times"),
      drill_flag(options.drill),
  };
}

Flag gradients_flag(TrainOptions& options) {
  return {{"--dump-gradients"},
          "F[:STEP]",
          "gradients of a step as safetensors [step 0]",
          [&options](const std::string& name, const std::string& value) {
            const size_t colon = value.rfind(':');
            const bool has_step =
                colon != std::string::npos && colon + 1 < value.size() &&
                value.find_first_not_of("0123456789", colon + 1) == std::string::npos;
            options.dump_gradients = has_step ? value.substr(0, colon) : value;
            options.dump_gradients_step =
                has_step ? parse_integer(name, value.substr(colon + 1), 0) : 0;
            if (options.dump_gradients.empty())
              throw ConfigError(name + ": expected a path, got '" + value + "'");
          }};
}

Flag trace_steps_flag(std::optional<StepRange>& steps) {
  return {{"--trace-steps"},
          "FIRST:COUNT",
          "steps that --trace has [3 after 2 of warm-up]",
          [&steps](const std::string& name, const std::string& value) {
            const size_t colon = value.find(':');
            if (colon == std::string::npos)
              throw ConfigError(name + ": expected FIRST:COUNT such as 10:3, got '" + value + "'");
            const int64_t first = parse_integer(name, value.substr(0, colon), 0, largest_count);
            const int64_t count = parse_integer(name, value.substr(colon + 1), 1, largest_count);
            steps = StepRange{first, first + count};
          }};
}

std::vector<Flag> output_flags(TrainOptions& options) {
  return {
      integer_flag({"--log-interval", "--logging-steps"}, options.log_interval,
                   "steps between loss lines; 0: none"),
      integer_flag({"--eval-interval"}, options.eval_interval, "steps between validations",
                   {0, "none"}),
      integer_flag({"--eval-batches", "--eval-iters"}, options.eval_batches,
                   "micro-batches of a validation; 0: the whole split"),
      integer_flag({"--sample-interval"}, options.sample_interval,
                   "steps between samples of text from the model", {0, "none"}),
      integer_flag({"--score-samples"}, options.score_samples,
                   "problems per split of sort's and adder's final scores"),
      text_flag({"--metrics"}, "F", options.metrics, "a JSON line per step"),
      text_flag({"--tensorboard-dir"}, "DIR", options.tensorboard,
                "a file of events for TensorBoard, under Megatron's tags"),
      text_flag({"--trace"}, "F", options.trace,
                "a Chrome trace (Perfetto opens it) of some steps: each rank's kernels,\n"
                "collectives, copies, waits and memory; written when they are done"),
      trace_steps_flag(options.trace_steps),
      switch_flag({"--dump-memory"}, options.dump_memory,
                  "a Markdown table of memory per phase and step"),
      text_flag({"--memory-json"}, "F", options.memory_json,
                "the same of all ranks in bytes, as plan predicts it"),
      gradients_flag(options),
      choice_flag({"--progress"}, options.progress, {"auto", "on", "off"},
                  "one redrawn line on stderr; auto: on a terminal"),
  };
}

std::vector<Flag> checkpoint_flags(TrainOptions& options) {
  return {
      text_flag({"--save", "--output-dir"}, "DIR", options.save,
                "write DIR/step_N at the end and when interrupted; a directory\n"
                "without another run's checkpoints"),
      integer_flag({"--save-interval"}, options.save_interval,
                   "and every N steps; without --save: in the folder checkpoints", {1, ""}),
      integer_flag({"--save-top-k"}, options.save_top_k,
                   "keep the N with the lowest loss, and the newest; -1: all", {-1, "1"}),
      switch_flag({"--async-save"}, options.async_save,
                  "write those of --save-interval while training goes on; a step waits\n"
                  "for what it is about to overwrite"),
      text_flag({"--resume", "--load"}, "DIR|auto", options.resume,
                "go on from DIR's newest checkpoint or a step_N; auto: from --save\n"
                "or checkpoints when it has one. What no flag says of model, data and training "
                "is\nthe checkpoint's"),
      integer_flag({"--exit-interval"}, options.exit_interval,
                   "save and end after each N steps, for jobs in a row; 0: never"),
      text_flag({"--kill-switch-path"}, "F", options.kill_switch,
                "save and end after the step in which a file of this name comes"),
      switch_flag({"--universal-checkpoint"}, options.universal_checkpoint, ""),
      integer_flag({"--max-restarts"}, options.max_restarts,
                   "after a failure go on from --save's newest checkpoint, at most so\n"
                   "often; not after signals and what would fail again the same way"),
      integer_flag({"--restarted"}, options.restarted, "", {0, ""}),
  };
}

Flag autotuning_flag(std::string& mode) {
  return {{"--autotuning"},
          "run|tune",
          "find a fast setting as zerograd tune does, write it to tuned.json, and\n"
          "train with it (run) or not (tune)",
          [&mode](const std::string& name, const std::string& value) {
            mode = parse_choice(name, value, {"run", "tune"}) == 0 ? "run" : "tune";
          }};
}

std::vector<Flag> config_flags(ConfigOptions& config) {
  return {
      text_flag({"--config", "--deepspeed-config"}, "F", config.path,
                "DeepSpeed's config F.json or accelerate's F.yaml, as it is;\n"
                "flags that are given override it"),
      choice_flag({"--compat"}, config.compat, {"0.19", "0.16"},
                  "the DeepSpeed whose defaults fill a config"),
      switch_flag({"--lenient"}, config.lenient, "warn of a config's unknown keys and go on"),
  };
}

}  // namespace

std::vector<FlagGroup> train_groups(TrainOptions& options) {
  return {{"config", config_flags(options.config)},
          {"data and model", data_and_model_flags(options.data, options.model)},
          {"batch and length", length_flags(options)},
          {"optimisation", optimisation_flags(options)},
          {"ranks", rank_flags(options)},
          {"axes", axes_flags(options.axes)},
          {"offload", offload_flags(options.offload, options.optimisation.engine.offload)},
          {"place", place_flags(options.place)},
          {"output", output_flags(options)},
          {"checkpoints", checkpoint_flags(options)},
          {"tuning", {autotuning_flag(options.autotuning)}},
          later_train_flags()};
}

bool is_import(const TrainOptions& options) {
  const Given& given = options.given;
  return !options.from_hf.empty() && given.count("--steps") && options.steps == 0 &&
         !given.count("--epochs") && !given.count("--train-samples") &&
         !given.count("--limit-train-batches");
}

void check_train(const TrainOptions& options) {
  const Given& given = options.given;
  check_model(options.model, given);
  check_device(given);
  check_axes(options);
  if (given.count("--tied") && given.count("--untied"))
    throw ConfigError("--tied: expected one of --tied and --untied, got both");
  if (given.count("--zero-stage") && given.count("--strategy"))
    throw ConfigError("--strategy: expected one of --zero-stage and --strategy, got both");
  if (given.count("--trace-steps") && !given.count("--trace"))
    throw ConfigError("--trace-steps: expected --trace F, which they are written to, got none");
  if (options.drill.fault != Drill::Fault::none && options.drill.rank >= options.ranks)
    throw ConfigError("--inject: expected a rank below " + std::to_string(options.ranks) +
                      ", got " + std::to_string(options.drill.rank));
  if (options.drill.fault == Drill::Fault::mismatch && options.ranks == 1)
    throw ConfigError("--inject: expected --ranks of 2 or more for fault=mismatch, got 1");
  check_length(options);
  // A config's checkpoint.writer.decoupled is also of runs that save once.
  if (given.count("--async-save") && options.config.path.empty() && options.save_interval == 0)
    throw ConfigError(
        "--async-save: expected --save-interval N with it, got none: the last checkpoint of a run "
        "has nothing to be written beside");
  if (options.save_top_k == 0)
    throw ConfigError("--save-top-k: expected a number of 1 or more, or -1 for all, got 0");
  if (!options.from_hf.empty() && !options.initial_weights.empty())
    throw ConfigError("--from-hf: expected one of --init and --from-hf, got both");
  if (!options.resume.empty() && !options.from_hf.empty())
    throw ConfigError("--from-hf: expected one of --from-hf and --resume, got both");
  if (!options.resume.empty() && !options.initial_weights.empty())
    throw ConfigError("--init: expected one of --init and --resume, got both");
}

namespace {

/// Who asks for checkpoints without saying where gets them in the folder that minGPT's trainer and
/// Lightning have.
void choose_folder(TrainOptions& options) {
  const bool asked = options.given.count("--save-interval") ||
                     options.given.count("--save-top-k") || options.resume == "auto";
  if (asked && options.save.empty()) options.save = "checkpoints";
}

}  // namespace

bool parse_flags(const std::vector<std::string>& arguments, TrainOptions& options) {
  const CommandLine line = {
      .usage = "zerograd train --data sort|adder|PATH.txt|PATH.bin [flags]",
      .summary = "Trains a GPT. Defaults stand in brackets; sizes are 512MiB, 2GiB or 1e9.",
      .groups = train_groups(options),
      .notes =
          "Spellings of other systems work too: --n_layer, --learning_rate,\n"
          "--per_device_train_batch_size, --gradient_accumulation_steps,\n"
          "--num_train_epochs, --num_warmup_steps, --output_dir, --logging_steps, --gpus 2,\n"
          "--precision 16, --bf16, --strategy ddp|deepspeed_stage_N[_offload],\n"
          "--micro-batch-size, --global-batch-size, --num-layers, --hidden-size,\n"
          "--num-attention-heads, --seq-length, --clip-grad, --adam-beta1, --load,\n"
          "--deepspeed_config F,\n"
          "--limit_train_batches 120 (of each epoch; without --epochs: of one).\n\n"
          "  zerograd train --data sort --ranks 2 --zero-stage 2\n"
          "  zerograd train --data input.txt --model-type gpt-mini --save checkpoints"};
  return parse(line, arguments, options.given);
}

bool parse(const std::vector<std::string>& arguments, TrainOptions& options) {
  if (!parse_flags(arguments, options)) return false;
  if (options.data.source.empty() && options.resume.empty() && !is_import(options))
    throw ConfigError(
        std::string("--data: expected sort, adder, PATH.txt or PATH.bin, got nothing; "
                    "try --data ") +
        (options.from_hf.empty() ? "sort" : "text.txt, or --steps 0 --save DIR"));
  adopt_processes(options);
  load_config(options);
  choose_folder(options);
  check_train(options);
  if (options.drill.fault == Drill::Fault::stop && !options.process)
    throw ConfigError(
        "--inject: expected processes of mpirun or launch for fault=stop, got ranks that are "
        "threads, of which none would be left to notice");
  return true;
}

bool parse(const std::vector<std::string>& arguments, PlanOptions& options) {
  TrainOptions& train = options.train;
  train.steps = 3;
  CommandLine line = {
      .usage = "zerograd plan [--data sort|adder|PATH.txt|PATH.bin] [flags of train]",
      .summary =
          "Walks the training steps on devices without memory and prints the bytes that train\n"
          "will take, on each rank and on the wire. Without --data it takes the vocabulary and\n"
          "block size of the model's name or of flags. Exit status 3 when they exceed\n"
          "--device-memory.",
      .groups = {{"plan",
                  {switch_flag({"--explain"}, options.explain,
                               "ZeRO's formulas beside ours, and the precisions")}}},
      .notes =
          "  zerograd plan --data sort --model-type gpt2-xl --device-memory 12GiB\n"
          "  zerograd plan --data input.txt --ranks 64 --zero-stage 3 --precision bf16\n"
          "  zerograd plan --model-type bloom-13b --ranks 8 --tensor-parallel 4 "
          "--pipeline-parallel 2"};
  for (FlagGroup& group : train_groups(train)) line.groups.push_back(std::move(group));
  if (!parse(line, arguments, train.given)) return false;
  load_config(train);
  choose_folder(train);
  check_train(train);
  return true;
}

bool parse(const std::vector<std::string>& arguments, TuneOptions& options) {
  CommandLine line = {
      .usage = "zerograd tune --data sort|adder|PATH.txt|PATH.bin [flags of train]",
      .summary =
          "Plans the ZeRO stages, offloads, activation checkpointing, micro-batches and buckets "
          "that\n"
          "--device-memory, --host-memory and --ranks leave room for, runs the best for a few "
          "steps\n"
          "and writes the fastest as a config. What a flag or a config says is not varied.",
      .groups = {{"tune",
                  {switch_flag({"--find-max-batch"}, options.find_max_batch,
                               "the largest micro-batch of each stage, all else as it is"),
                   number_flag({"--time"}, options.time_s,
                               {0.0, 1e6, true, false, "seconds above 0 and at most 1e6"},
                               "seconds that all of it may take"),
                   text_flag({"--out"}, "F", options.out,
                             "the best setting, for train --config F [" + options.out + "]")}}},
      .notes =
          "  zerograd tune --data sort --model-type gpt-mini --ranks 2 --device-memory 40MiB\n"
          "  zerograd tune --data input.txt --train-batch-size 64 --nvme-path /mnt/drive\n"
          "  zerograd tune --data sort --ranks 2 --device-memory 40MiB --find-max-batch"};
  for (FlagGroup& group : train_groups(options.train)) {
    for (Flag& flag : group.flags)
      flag.set = [set = flag.set, is_switch = flag.value.empty(), &flags = options.flags](
                     const std::string& name, const std::string& value) {
        flags.push_back({name, is_switch ? std::vector{value == "true" ? name : name + "=" + value}
                                         : std::vector{name, value}});
        set(name, value);
      };
    line.groups.push_back(std::move(group));
  }
  return parse(line, arguments, options.train.given);
}

namespace {

std::vector<Flag> data_and_heads_flags(EvalOptions& options) {
  std::vector<Flag> flags = {source_flag(options.data), model_type_flag(options.model),
                             heads_flag(options.model)};
  std::vector<Flag> held_out = held_out_flags(options.data);
  held_out.push_back(tokenizer_flag(options.data));
  held_out.push_back(integer_flag({"--block-size", "--seq-length"}, options.model.block_size,
                                  "shorter sequences than the model's longest", {1, ""}));
  flags.insert(flags.begin() + 1, held_out.begin(), held_out.end());
  return flags;
}

}  // namespace

bool parse(const std::vector<std::string>& arguments, EvalOptions& options) {
  const CommandLine line = {
      .usage = "zerograd eval CHECKPOINT [flags]",
      .summary = "Prints the validation loss, and for sort and adder the scores on both splits.",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"data and model (the checkpoint's own unless given)",
                  data_and_heads_flags(options)},
                 {"how much",
                  {integer_flag({"--batch-size", "--per-device-eval-batch-size"}, options.batch,
                                "samples at a time", {1, nullptr}),
                   integer_flag({"--eval-batches", "--eval-iters"}, options.batches,
                                "batches of the validation split; 0: all of it"),
                   integer_flag({"--score-samples"}, options.score_samples,
                                "problems per split of sort's and adder's scores"),
                   seed_flag(options.seed, "of the data")}},
                 {"place", place_flags(options.place)},
                 later_place_flags()},
      .notes =
          "A safetensors file holds weights only: give --data, and --n-head or --model-type.\n\n"
          "  zerograd eval checkpoints\n"
          "  zerograd eval checkpoints/step_300 --data input.txt"};
  if (!parse(line, arguments, options.given)) return false;
  check_model(options.model, options.given);
  check_device(options.given);
  return true;
}

bool parse(const std::vector<std::string>& arguments, GenerateOptions& options) {
  models::SamplingOptions& sampling = options.sampling;
  const CommandLine line = {
      .usage = "zerograd generate CHECKPOINT --prompt TEXT [flags]",
      .summary = "Continues a prompt and prints it as it grows.",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"text",
                  {text_flag({"--prompt"}, "TEXT", options.prompt,
                             "how the text begins; token numbers for PATH.bin models"),
                   integer_flag({"--length"}, options.length, "tokens to add"),
                   number_flag({"--temperature"}, sampling.temperature, not_negative,
                               "divides the logits; 0: always the likeliest token"),
                   integer_flag({"--top-k"}, sampling.top_k, "keep the N likeliest; 0: all"),
                   number_flag({"--top-p"}, sampling.top_p,
                               {0.0, 1.0, true, false, "a number above 0 and at most 1"},
                               "keep the likeliest that together have this probability"),
                   seed_flag(sampling.seed, "of the draws")}},
                 {"model (the checkpoint's own unless given)",
                  {source_flag(options.data), tokenizer_flag(options.data),
                   model_type_flag(options.model), heads_flag(options.model)}},
                 {"place", place_flags(options.place)},
                 later_place_flags()},
      .notes =
          "  zerograd generate checkpoints --prompt 'O God, O God!' --top-k 10\n"
          "  zerograd generate checkpoints --prompt 210021 --length 6 --temperature 0"};
  if (!parse(line, arguments, options.given)) return false;
  if (options.prompt.empty())
    throw ConfigError("--prompt: expected text to begin with, got nothing; try --prompt 'O God'");
  check_model(options.model, options.given);
  check_device(options.given);
  return true;
}

}  // namespace zg::tools
