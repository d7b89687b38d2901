#include "tools/options/fields.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "tools/options/codec.h"
#include "tools/options/field_rows.h"
#include "tools/options/model_flags.h"
#include "tools/options/train_flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

Fields config_fields() {
  return {
      {ZG_AT(config.path), path_row({"--config", "--deepspeed-config"}, "F", PathUse::reads,
                                    "DeepSpeed's config F.json or accelerate's F.yaml, as it is;\n"
                                    "flags that are given override it")},
      {ZG_AT(config.compat),
       choice_row({"--compat"}, {"0.19", "0.16"}, "the DeepSpeed whose defaults fill a config")},
      {ZG_AT(config.lenient),
       switch_row({"--lenient"}, "warn of a config's unknown keys and go on")},
  };
}

bool is_stage_3(const TrainOptions& now, const RunSpec&) {
  return now.optimisation.engine.stage == 3;
}

// The keys that checkpoints have had, in their order. A new key comes after those of its object.
constexpr std::pair<const char*, const char*> first_keys[] = {
    {"model",
     "layers heads width vocabulary block_size tied family position embedding_norm "
     "kv_heads head_size hidden window rope_theta norm_epsilon norm mlp bias qkv_bias "
     "query_key_norm rope_scaling rope_factor rope_original_positions rope_low_freq_factor "
     "rope_high_freq_factor rope_beta_fast rope_beta_slow rope_attention_factor "
     "rope_truncate rotated_share positions seq2seq generation"},
    {"data",
     "source order validation_fraction split tokenizer tokenizer_checksum characters bytes "
     "checksum bos_token eos_tokens pad_token source_prefix max_source max_target "
     "pad_to_max train_pairs validation_pairs validation_source chat_format pack "
     "validation_bytes validation_checksum"},
    {"run",
     "micro_batch accumulation ranks tensor_parallel pipeline_parallel sequence_parallel "
     "rampup_start rampup_increment rampup_samples dropout rate schedule warmup_steps "
     "schedule_steps warmup_type warmup_min_rate warmup_min_ratio cosine_min_ratio "
     "min_rate warmup_samples decay_samples decay_style range_test_step_size "
     "range_test_step_rate range_test_staircase cycle_min_rate cycle_decay_rate "
     "cycle_first_steps cycle_second_steps cycle_decay_steps cycle_momentum "
     "cycle_min_momentum cycle_max_momentum cycle_momentum_decay weight_decay beta1 beta2 "
     "epsilon decoupled stochastic_rounding clip_norm preset compute load optimizer "
     "initial_scale_power loss_scale loss_scale_window hysteresis consecutive_hysteresis "
     "min_loss_scale stage offload_parameter offload_gradient offload_optimizer "
     "offload_activation grad_accum reduce_at_boundary nccl_reduce seed steps epochs "
     "train_samples save_top_k rule momentum dampening nesterov muon_momentum "
     "muon_nesterov muon_rate muon_adam_rate parameter_groups adafactor_beta2_decay "
     "adafactor_epsilon1 adafactor_epsilon2 adafactor_clip label_smoothing lora_rank "
     "lora_alpha lora_dropout lora_targets rslora loss_mean matmul_algorithms "
     "lr_scheduler_kwargs"},
    {"position", "samples skipped_samples loss"},
};

// The place of a key in the JSON.
size_t order_of(const std::string& key) {
  size_t order = 0;
  for (const auto& [group, names] : first_keys) {
    std::istringstream words(names);
    for (std::string name; words >> name; ++order)
      if (key == fmt::format("{}.{}", group, name)) return order;
  }
  return order;
}

}  // namespace

Fields axes_fields() {
  return {
      {ZG_AT(axes.tensor),
       integer_row({"--tensor-parallel", "--tensor-model-parallel-size"},
                   "ranks that share each layer's heads and columns; what remains of the\n"
                   "ranks shares the data",
                   {1, nullptr}),
       may_change("run.tensor_parallel", extent)},
      {ZG_AT(axes.pipeline),
       integer_row({"--pipeline-parallel", "--pipeline-model-parallel-size"},
                   "stages that share the layers", {1, nullptr}),
       may_change("run.pipeline_parallel", extent)},
      {ZG_AT(axes.schedule),
       choice_row({"--schedule-pipeline"}, {"1f1b", "gpipe"},
                  "the order of a stage's micro-batches; the bits are the same")},
      {ZG_AT(axes.sequence_parallel),
       switch_row({"--sequence-parallel"},
                  "tensor ranks also share the tokens of norms and dropout"),
       may_change("run.sequence_parallel")},
  };
}

Fields offload_fields() {
  return {
      {ZG_AT(engine().offload.optimizer), made_row([](TrainOptions& o) {
         return offload_flag("--offload-optimizer", o.optimisation.engine.offload.optimizer,
                             "where optimizer states are stored and updated [none]");
       }),
       kept("run.offload_optimizer").unless({"--config"}), Config::offload_optimizer},
      {ZG_AT(engine().offload.gradient), made_row([](TrainOptions& o) {
         return offload_flag("--offload-gradients", o.optimisation.engine.offload.gradient,
                             "where gradient accumulators are stored [none]");
       }),
       kept("run.offload_gradient").unless({"--config"}), Config::offload_gradients},
      {ZG_AT(engine().offload.parameter), made_row([](TrainOptions& o) {
         return offload_flag("--offload-param", o.optimisation.engine.offload.parameter,
                             "stage 3: where idle parameters are stored [none]");
       }),
       kept("run.offload_parameter").unless({"--config"}).when(is_stage_3),
       Config::offload_parameters},
      {ZG_AT(engine().offload.activation), made_row([](TrainOptions& o) {
         return offload_flag("--offload-activations", o.optimisation.engine.offload.activation,
                             "where saved activations are stored [none]");
       }),
       kept("run.offload_activation").unless({"--config"}), Config::offload_activations},
      {ZG_AT(offload.nvme_path),
       path_row({"--nvme-path"}, "DIR", PathUse::watches,
                "where nvme is: a file without a name, gone when the run ends"),
       not_stored, Config::nvme_path},
      {ZG_AT(offload.cpu_offload),
       switch_row({"--cpu-offload"},
                  "optimizer and gradients, at stage 3 parameters too, to the host")},
  };
}

Fields place_fields() {
  return {
      {ZG_AT(device_flags.type),
       made_row([](TrainOptions& o) { return device_flag(o.device_flags.type); })},
      {ZG_AT(device_flags.type),
       made_row([](TrainOptions& o) { return use_hpu_flag(o.device_flags.type); })},
      {ZG_AT(device_flags.device.threads),
       integer_row({"--threads"}, "threads for kernels, of each rank; 0: its share of the cores",
                   {}, 4096)},
      {ZG_AT(device_flags.device.memory_limit),
       size_row({"--device-memory"}, "cap on each device's bytes; beyond it OutOfMemory (exit 3)")},
      {ZG_AT(device_flags.device.host_limit),
       size_row({"--host-memory"}, "cap on each rank's pinned and host bytes together")},
      Field{ZG_AT(matmul_algorithms),
            path_row({"--matmul-algorithms"}, "F", PathUse::reads,
                     "cuda: multiply by the algorithms of cuBLASLt in this file, which zerograd\n"
                     "bench matmul-algorithms wrote; another file may round differently")}
          .ignored_by(by_plan),
      {ZG_AT(matmul_checksum), may_change("run.matmul_algorithms").sparse()},
  };
}

Fields output_fields() {
  return {
      {ZG_AT(log_interval),
       integer_row({"--log-interval", "--logging-steps"}, "steps between loss lines; 0: none")},
      {ZG_AT(eval_interval),
       integer_row({"--eval-interval"}, "steps between validations", {0, "none"})},
      {ZG_AT(eval_batches), integer_row({"--eval-batches", "--eval-iters"},
                                        "micro-batches of a validation; 0: the whole split")},
      {ZG_AT(sample_interval),
       integer_row({"--sample-interval"}, "steps between samples of text from the model",
                   {0, "none"})},
      {ZG_AT(score_samples),
       integer_row({"--score-samples"},
                   "sort and adder: problems of each split to score at the end")},
      Field{ZG_AT(metrics), path_row({"--metrics"}, "F", PathUse::writes, "a JSON line per step")}
          .ignored_by(by_plan),
      Field{ZG_AT(tensorboard), path_row({"--tensorboard-dir"}, "DIR", PathUse::adds,
                                         "a file of events for TensorBoard, under Megatron's tags")}
          .ignored_by(by_plan),
      Field{ZG_AT(trace),
            path_row({"--trace"}, "F", PathUse::writes,
                     "a Chrome trace (Perfetto opens it) of some steps: each rank's kernels,\n"
                     "collectives, copies, waits and memory; written when they are done")}
          .ignored_by(by_plan),
      Field{ZG_AT(trace_steps),
            made_row([](TrainOptions& o) { return trace_steps_flag(o.trace_steps); })}
          .ignored_by(by_plan),
      {ZG_AT(dump_memory),
       switch_row({"--dump-memory"}, "a Markdown table of memory per phase and step"), not_stored,
       Config::memory_breakdown},
      {ZG_AT(explain_settings),
       switch_row({"--explain-settings"},
                  "print each setting with its value and where it comes from, and end")},
      {ZG_AT(memory_json), path_row({"--memory-json"}, "F", PathUse::writes,
                                    "the same of all ranks in bytes, as plan predicts it")},
      {ZG_AT(kernels),
       path_row({"--kernels"}, "F", PathUse::writes,
                "cpu, cuda: launches, bytes and operations of each kernel, of the second step's\n"
                "last micro-batch and of what it does once: JSON of rank 0, after that step")},
      {ZG_AT(dump_gradients), made_row(gradients_flag)},
      {ZG_AT(progress), choice_row({"--progress"}, {"auto", "on", "off"},
                                   "one redrawn line on stderr; auto: on a terminal")},
      {ZG_AT(tracking.enabled), switch_row({"--with-tracking"}, "")},
      {ZG_AT(tracking.service),
       made_row([](TrainOptions& o) { return tracking_flags(o.tracking)[1]; })},
      {ZG_AT(tracking.name),
       made_row([](TrainOptions& o) { return tracking_flags(o.tracking)[2]; })},
  };
}

Fields checkpoint_fields() {
  return {
      Field{ZG_AT(save), path_row({"--save", "--output-dir"}, "DIR", PathUse::adds,
                                  "write DIR/step_N at the end and when interrupted; a directory\n"
                                  "without another run's checkpoints")}
          .ignored_by(by_plan),
      {ZG_AT(save_interval),
       integer_row({"--save-interval"},
                   "and every N steps; without --save: in the folder checkpoints", {1, ""})},
      {ZG_AT(save_top_k),
       integer_row({"--save-top-k"}, "keep the N with the lowest loss, and the newest; -1: all",
                   {-1, "1"}),
       kept("run.save_top_k", top_k)},
      {ZG_AT(async_save),
       switch_row({"--async-save"},
                  "write those of --save-interval while training goes on; a step waits\n"
                  "for what it is about to overwrite"),
       not_stored, Config::async_save},
      {ZG_AT(resume), made_row([](TrainOptions& o) {
         return checkpoint_flag(
             {"--resume", "--load"}, "DIR|auto", o.resume,
             "go on from DIR's newest checkpoint or a step_N; auto: from --save\n"
             "or checkpoints when it has one. Settings without a flag come from "
             "the\ncheckpoint");
       })},
      Field{ZG_AT(exit_interval),
            integer_row({"--exit-interval"},
                        "save and end after each N steps, for jobs in a row; 0: never")}
          .ignored_by(by_plan),
      Field{ZG_AT(kill_switch),
            path_row({"--kill-switch-path"}, "F", PathUse::watches,
                     "save and end after the step in which a file of this name comes")}
          .ignored_by(by_plan),
      Field{ZG_AT(universal_checkpoint), switch_row({"--universal-checkpoint"}, "")}.ignored_by(
          by_plan),
      Field{ZG_AT(max_restarts),
            integer_row({"--max-restarts"},
                        "after a failure go on from --save's newest checkpoint, at most so\n"
                        "often; not after signals and what would fail again the same way")}
          .ignored_by(by_plan),
      {ZG_AT(restarted), integer_row({"--restarted"}, "", {0, ""})},
      // The position of the run; no option sets it.
      {ZG_AT(samples), always(unchecked("position.samples", any_count))},
      {ZG_AT(skipped_samples), unchecked("position.skipped_samples", any_count)},
      {ZG_AT(loss), always(unchecked("position.loss", AnyNumber{}))},
  };
}

const std::vector<FieldGroup>& field_groups() {
  static const std::vector<FieldGroup> groups = {
      {"config", config_fields()},
      {"data and model", data_fields()},
      {"", model_fields()},
      {"conversations, of decoders", conversation_fields()},
      {"pairs, of encoder-decoder models", seq2seq_fields()},
      {"batch and length", length_fields()},
      {"optimisation", schedule_fields()},
      {"", config_only_fields()},
      {"", optimisation_fields()},
      {"adapters, LoRA", lora_fields()},
      {"ranks", rank_fields()},
      {"axes", axes_fields()},
      {"offload", offload_fields()},
      {"place", place_fields()},
      {"output", output_fields(), by_tune},
      {"checkpoints", checkpoint_fields(), by_tune},
      {"tuning",
       {Field{ZG_AT(autotuning),
              made_row([](TrainOptions& o) { return autotuning_flag(o.autotuning); }), not_stored,
              Config::autotuning}
            .ignored_by(by_plan)},
       by_tune}};
  return groups;
}

const std::vector<const Field*>& all_fields() {
  static const std::vector<const Field*> all = [] {
    std::vector<const Field*> rows;
    for (const FieldGroup& group : field_groups())
      for (const Field& field : group.fields) rows.push_back(&field);
    return rows;
  }();
  return all;
}

const std::vector<const Field*>& stored_fields() {
  static const std::vector<const Field*> stored = [] {
    std::vector<std::pair<size_t, const Field*>> rows;
    for (const Field* field : all_fields())
      if (field->is_stored()) rows.emplace_back(order_of(field->stored.key), field);
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<const Field*> fields;
    for (const auto& [order, field] : rows) fields.push_back(field);
    return fields;
  }();
  return stored;
}

std::set<std::string> ignored_flags(Ignored by) {
  std::set<std::string> names;
  unsigned of_group = never;
  for (const FieldGroup& group : field_groups()) {
    of_group = group.title.empty() ? of_group : group.ignored;
    for (const Field& field : group.fields)
      if (((field.ignored | of_group) & by) && !field.flag.names.empty())
        names.insert(field.name());
  }
  return names;
}

FlagRow made_row(Flag (*make)(TrainOptions&)) {
  TrainOptions example;  // for the names, which do not depend on it
  return {.names = make(example).names, .make = make};
}

Flag flag_of(const Field& field, TrainOptions& options) {
  const FlagRow& row = field.flag;
  if (row.make) return row.make(options);
  Flag flag = field.location.codec->flag(row, field.location.in_options(options));
  if (!row.value.empty()) flag.value = row.value;
  if (row.parse) {
    flag.help = row.help;
    if (!row.shown) flag.help += fmt::format(" [{}]", value_of(field, options).get<std::string>());
    flag.set = [&options, parse = row.parse](const std::string& name, const std::string& value) {
      parse(options, {name, value});
    };
  }
  if (row.paths) {
    const auto* const path = static_cast<std::string*>(field.location.in_options(options));
    flag.paths = [path, paths = row.paths] { return paths(*path); };
  }
  flag.max_words = row.max_words;
  flag.with_value = row.with_value;
  return flag;
}

std::vector<Flag> flags_named(const std::vector<std::string>& names, TrainOptions& options) {
  std::vector<Flag> flags;
  for (const std::string& name : names)
    for (const Field* field : all_fields())
      if (field->name() == name) flags.push_back(flag_of(*field, options));
  return flags;
}

}  // namespace zg::tools
