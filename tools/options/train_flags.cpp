#include <limits>

#include "tools/options/fault_injection.h"
#include "tools/options/model_flags.h"
#include "tools/options/optimisation_flags.h"
#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"

// The tables of train's flags, one function for each group.
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

Flag stage_flag(zero::Config& engine) {
  return {{"--zero-stage"},
          "0|1|2|3",
          "what the ranks share out: 0 gradient sums, 1 and 2 also masters\nand moments, 3 also "
          "values [0]",
          [&engine](const std::string& name, const std::string& value) {
            engine.stage = static_cast<int>(parse_choice(name, value, {"0", "1", "2", "3"}));
          }};
}

// Lightning's name for the stage. Help lists it as an alternative spelling only.
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
      injection_flag(options.injection),
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

// Lightning's flag: 120 batches, or 0.25 for a quarter of them. Help lists it as an alternative
// spelling only.
Flag epoch_limit_flag(EpochLimit& limit) {
  return {{"--limit-train-batches"},
          "N",
          "",
          [&limit](const std::string& name, const std::string& value) {
            limit = {};
            if (value.find('.') == std::string::npos)
              limit.batches = parse_integer(name, value, 1, std::numeric_limits<int32_t>::max());
            else
              limit.share = parse_number(
                  name, value, {0.0, 1.0, true, false, "a share above 0 and at most 1.0"});
          }};
}

Flag rampup_flag(BatchRampup& rampup) {
  Flag flag = {{"--rampup-batch-size"},
               "START INCREMENT SAMPLES",
               "a step's samples grow from START by INCREMENT to --train-batch-size over\n"
               "the first SAMPLES",
               [&rampup](const std::string& name, const std::string& value) {
                 rampup = parse_rampup(name, value);
               }};
  flag.words = 3;
  return flag;
}

std::vector<Flag> length_flags(TrainOptions& options) {
  return {
      integer_flag({"--batch-size", "--per-device-train-batch-size", "--micro-batch-size", "-b"},
                   options.batch.micro, "samples in a micro-batch", {1, "64"}),
      integer_flag({"--grad-accum", "--gradient-accumulation-steps"}, options.batch.accumulation,
                   "micro-batches in a step", {1, "1"}),
      rampup_flag(options.batch.rampup),
      // 0 is accepted here; the batch solver's error explains it together with the other two flags.
      integer_flag({"--train-batch-size", "--global-batch-size"}, options.batch.train,
                   "samples in a step = batch-size x grad-accum x ranks", {0, ""}),
      integer_flag({"--steps", "--train-iters"}, options.steps,
                   "optimizer steps, counted from step 0 also when resuming", {0, nullptr}),
      integer_flag({"--train-samples"}, options.train_samples,
                   "samples, instead of --steps: the last step is the last that does not go beyond",
                   {1, ""}),
      number_flag({"--epochs", "--num-train-epochs"}, options.epochs,
                  {0.0, 1e6, true, false, "a number above 0 and at most 1e6"},
                  "passes over the training data, instead of --steps; at the end their average "
                  "time and peak",
                  ""),
      epoch_limit_flag(options.epoch_limit),
  };
}

std::vector<Flag> axes_flags(Axes& axes) {
  return {
      integer_flag({"--tensor-parallel", "--tensor-model-parallel-size"}, axes.tensor,
                   "ranks that share each layer's heads and columns; what remains of the\n"
                   "ranks shares the data",
                   {1, nullptr}),
      integer_flag({"--pipeline-parallel", "--pipeline-model-parallel-size"}, axes.pipeline,
                   "stages that share the layers", {1, nullptr}),
      choice_flag({"--schedule-pipeline"}, axes.schedule, {"1f1b", "gpipe"},
                  "the order of a stage's micro-batches; the bits are the same"),
      switch_flag({"--sequence-parallel"}, axes.sequence_parallel,
                  "tensor ranks also share the tokens of norms and dropout"),
  };
}

Flag offload_flag(const std::string& name, Space& space, const std::string& help) {
  return {
      {name}, "none|host|nvme", help, [&space](const std::string& flag, const std::string& value) {
        // DeepSpeed's name for the host is cpu.
        const size_t choice =
            value == "cpu" ? 1 : parse_choice(flag, value, {"none", "host", "nvme"});
        constexpr Space spaces[] = {Space::device, Space::host, Space::file};
        space = spaces[choice];
      }};
}

std::vector<Flag> offload_flags(OffloadFlags& offload, zero::OffloadOptions& engine) {
  return {
      offload_flag("--offload-optimizer", engine.optimizer,
                   "where AdamW's moments and masters are, and are updated [none]"),
      offload_flag("--offload-gradients", engine.gradient, "where sums of gradients are [none]"),
      offload_flag("--offload-param", engine.parameter,
                   "stage 3: where values are between their uses [none]"),
      offload_flag("--offload-activations", engine.activation,
                   "where what backward needs is until then [none]"),
      text_flag({"--nvme-path"}, "DIR", offload.nvme_path,
                "where nvme is: a file without a name, gone when the run ends"),
      switch_flag({"--cpu-offload"}, offload.cpu_offload,
                  "optimizer and gradients, at stage 3 parameters too, to the host"),
  };
}

}  // namespace

std::vector<FlagGroup> train_groups(TrainOptions& options) {
  FlagGroup unsupported = unsupported_flags(/*one_rank=*/false);
  // Scripts of other systems enable DeepSpeed with this flag. It is always enabled here.
  unsupported.flags.push_back(
      {{"--deepspeed"}, "", "", [](const std::string& name, const std::string& value) {
         parse_switch(name, value);
       }});
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
          unsupported};
}

}  // namespace zg::tools
