#include <algorithm>
#include <iterator>

#include "tests/zero/deepspeed/deepspeed_case.h"

// The value of each key that is not given: DeepSpeed's, written down again.
namespace zg::testing {
namespace {

using nlohmann::json;
using zero::deepspeed::Row;

// A rate that no default has.
json fields_of(const json& config) {
  return fields(load(config.dump(), {.program = {.schedule = {.rate = 5e-4}}}).settings);
}

// DeepSpeed 0.19's constants.py, its pydantic models and lr_schedules.py, torch.optim.SGD; no
// value: it has to be given.
const char* const defaults = R"({
  "": {"train_batch_size": null, "train_micro_batch_size_per_gpu": null,
    "gradient_accumulation_steps": null, "steps_per_print": null, "gradient_clipping": 1.0,
    "memory_breakdown": false, "dump_state": false, "prescale_gradients": false,
    "gradient_predivide_factor": 1.0, "gradient_allreduce_op": "mean",
    "communication_data_type": null, "sparse_gradients": false, "disable_allgather": false,
    "wall_clock_breakdown": false, "zero_allow_untested_optimizer": false,
    "zero_force_ds_cpu_optimizer": true, "dataloader_drop_last": false,
    "data_efficiency": null, "curriculum_learning": null, "compression_training": null,
    "sparse_attention": null, "hybrid_engine": null, "torch_autocast": null, "compile": null,
    "tensor_parallel": null, "pipeline": null, "timers": null, "eigenvalue": null,
    "progressive_layer_drop": null, "nebula": null, "comet": null, "quantize_training": null,
    "graph_harvesting": null, "expert_parallel": null, "weight_quantization": null,
    "datastates_ckpt": null, "msamp": null, "fp8": null, "disable_python_gc": null,
    "managed_gradient_accumulation": null, "vocabulary_size": null, "log_level": null,
    "use_data_before_expert_parallelism": null, "seq_parallel_communication_data_type": null,
    "fp32_allreduce": null, "allgather_size": null},
  "data_types": {"grad_accum_dtype": null, "param_dtype": null, "buffer_dtype": null,
    "keep_in_fp32_modules": "auto"},
  "checkpoint": {"tag_validation": "Warn", "load_universal": false,
    "use_node_local_storage": false, "parallel_write": null, "checkpoint_serialization": true},
  "writer": {"decoupled": false, "type": "FAST", "io_buffer_size": 67108864,
    "io_buffer_double": true, "io_multiplier": 1, "show_statistics": false,
    "data_parallel": null},
  "fp16": {"enabled": false, "auto_cast": false, "loss_scale": 0, "initial_scale_power": 16,
    "loss_scale_window": 1000, "hysteresis": 2, "consecutive_hysteresis": false,
    "min_loss_scale": 1, "fp16_master_weights_and_grads": false},
  "bf16": {"enabled": false, "immediate_grad_update": false, "check_grad_overflow": true,
    "bf16_master_weights_and_grads": false, "bf16_optimizer_states": false},
  "adam": {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0,
    "bias_correction": true, "amsgrad": false, "torch_adam": false, "adam_w_mode": true},
  "lion": {"lr": 0.001, "betas": [0.9, 0.99], "weight_decay": 0},
  "muon": {"lr": 0.001, "muon_lr": null, "adam_lr": null, "momentum": 0.95, "betas": [0.9, 0.999],
    "eps": 1e-8, "weight_decay": 0, "ns_method": "gram", "per_head_muon": false,
    "torch_adam": false, "adam_w_mode": true},
  "sgd": {"lr": 0.001, "momentum": 0, "dampening": 0, "nesterov": false, "maximize": false,
    "weight_decay": 0},
  "WarmupLR": {"warmup_min_lr": 0, "warmup_max_lr": null, "warmup_num_steps": 1000,
    "warmup_type": "log", "last_batch_iteration": -1},
  "WarmupDecayLR": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000,
    "warmup_type": "log", "last_batch_iteration": -1},
  "WarmupCosineLR": {"warmup_min_ratio": 0, "cos_min_ratio": 0.0001, "warmup_num_steps": 1000,
    "warmup_type": "log", "last_batch_iteration": -1},
  "LRRangeTest": {"lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 2000,
    "lr_range_test_step_rate": 1, "lr_range_test_staircase": false, "last_batch_iteration": -1},
  "OneCycle": {"decay_lr_rate": 0, "cycle_first_step_size": 2000, "cycle_second_step_size": null,
    "cycle_first_stair_count": 0, "cycle_second_stair_count": null, "decay_step_size": 0,
    "cycle_momentum": true, "cycle_min_mom": 0.8, "cycle_max_mom": 0.9, "decay_mom_rate": 0,
    "last_batch_iteration": -1},
  "zero_optimization": {"stage": 0, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8,
    "overlap_comm": null, "stage3_prefetch_bucket_size": 5e7,
    "stage3_param_persistence_threshold": 1e5, "cpu_offload": null, "cpu_offload_param": null,
    "cpu_offload_use_pin_memory": null, "contiguous_gradients": true, "reduce_scatter": true,
    "allgather_partitions": true, "round_robin_gradients": false, "save_muon_momentum_buffer_in_memory": false, "sub_group_size": 1e9,
    "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": false,
    "stage3_model_persistence_threshold": 9223372036854775807,
    "stage3_module_granularity_threshold": 0, "stage3_use_all_reduce_for_fetch_params": false,
    "stage3_allgather_sequential": false, "use_multi_rank_bucket_allreduce": true,
    "load_from_fp32_weights": true, "elastic_checkpoint": false, "compute_grad_norm": true,
    "parameter_alignment": false,
    "ignore_unused_parameters": true, "legacy_stage1": false, "zero_quantized_weights": false,
    "zero_quantized_nontrainable_weights": false, "zero_quantized_gradients": false,
    "mics_hierarchical_params_gather": false, "memory_efficient_linear": true,
    "override_module_apply": true, "pipeline_loading_checkpoint": false,
    "log_trace_cache_warnings": false, "enable_sanity_checks": false,
    "zero_hpz_partition_size": 1, "mics_shard_size": -1, "zeropp_loco_param": null,
    "zenflow": null, "leaf_module": null},
  "offload_param": {"device": "none", "nvme_path": null, "buffer_count": 5, "pin_memory": true,
    "buffer_size": 1e8, "max_in_cpu": 1e9},
  "offload_optimizer": {"device": "none", "nvme_path": null, "buffer_count": 4,
    "pin_memory": true, "pipeline_read": false, "pipeline_write": false, "fast_init": false,
    "super_offload": false, "ratio": 1.0, "cpuadam_cores_perc": 0.8},
  "activation_checkpointing": {"partition_activations": false, "number_checkpoints": null,
    "contiguous_memory_optimization": false, "synchronize_checkpoint_boundary": false,
    "profile": false, "cpu_checkpointing": false},
  "aio": {"block_size": 1048576, "queue_depth": 8, "intra_op_parallelism": 1,
    "single_submit": false, "overlap_events": true, "use_gds": false}
})";

}  // namespace

TEST_CASE("deepspeed: the default of every key is DeepSpeed's") {
  const json expected = json::parse(defaults);
  size_t compared = 0;
  for (const Row& row : zero::deepspeed::rows()) {
    if (!expected.contains(row.section) || row.type == zero::deepspeed::Type::section ||
        !*row.fallback)
      continue;
    INFO(std::string(row.section), ", ", std::string(row.key));
    REQUIRE(expected[row.section].contains(row.key));
    CHECK(json::parse(row.fallback) == expected[row.section][row.key]);
    ++compared;
  }
  size_t all = 0;
  for (const json& section : expected) all += section.size();
  CHECK(compared == all);
  const json before = {{"gradient_clipping", 0}, {"warmup_max_lr", 0.001}, {"pin_memory", false}};
  for (const Row& row : zero::deepspeed::rows())
    if (row.fallback_0_16) CHECK(json::parse(row.fallback_0_16) == before.at(row.key));
}

TEST_CASE("deepspeed: every alias of a key is accepted and has the same effect as the key") {
  const struct {
    const char *section, *alias, *key, *value;
  } aliases[] = {
      {"", "bfloat16", "bf16", R"({"enabled": true})"},
      {"aio", "thread_count", "intra_op_parallelism", "2"},
      {"zero_optimization", "prefetch_bucket_size", "stage3_prefetch_bucket_size", "77"},
      {"zero_optimization", "param_persistence_threshold", "stage3_param_persistence_threshold",
       "77"},
      {"zero_optimization", "max_live_parameters", "stage3_max_live_parameters", "77"},
      {"zero_optimization", "max_reuse_distance", "stage3_max_reuse_distance", "77"},
      {"zero_optimization", "gather_16bit_weights_on_model_save",
       "stage3_gather_16bit_weights_on_model_save", "true"},
      {"zero_optimization", "stage3_gather_fp16_weights_on_model_save",
       "stage3_gather_16bit_weights_on_model_save", "true"},
      {"zero_optimization", "model_persistence_threshold", "stage3_model_persistence_threshold",
       "77"},
      {"zero_optimization", "module_granularity_threshold", "stage3_module_granularity_threshold",
       "77"},
      {"zero_optimization", "use_all_reduce_for_fetch_params",
       "stage3_use_all_reduce_for_fetch_params", "true"},
      {"zero_optimization", "allgather_sequential", "stage3_allgather_sequential", "true"}};
  for (const auto& [section, alias, key, value] : aliases) {
    CAPTURE(std::string(alias));
    const auto loaded = [&, at = section](const char* name) {
      json config = smallest_config_for(at);
      section_in(config, at)[name] = json::parse(value);
      return load(config.dump());
    };
    const Loaded one = loaded(alias), other = loaded(key);
    CHECK(fields(one.settings) == fields(other.settings));
    CHECK(one.config.unsupported.has_value() == other.config.unsupported.has_value());
    CHECK(one.config.without_effect.size() == other.config.without_effect.size());
    const zero::deepspeed::Setting* setting = one.config.find(section, key);
    REQUIRE(setting);
    CHECK(setting->given);
    CHECK(setting->number == other.config.find(section, key)->number);
    CHECK(setting->boolean == other.config.find(section, key)->boolean);
  }
  size_t names = 0;
  for (const Row& row : zero::deepspeed::rows()) {
    const std::string all = row.alias;
    if (!all.empty()) names += 1 + static_cast<size_t>(std::ranges::count(all, '|'));
  }
  CHECK(names == std::size(aliases));
}

TEST_CASE("deepspeed: auto in the fp16, bf16 and offload sections means the default") {
  for (const char* section : {"fp16", "bf16", "offload_param", "offload_optimizer"})
    for (const Row& row : zero::deepspeed::rows()) {
      if (std::string(row.section) != section) continue;
      CAPTURE(zero::deepspeed::path_of(row));
      json with = smallest_config_for(section), without = with;
      section_in(with, section)[row.key] = "auto";
      json& rest = section_in(without, section);
      if (rest.is_null()) rest = json::object();
      rest.erase(row.key);
      CHECK(fields_of(with) == fields_of(without));
    }
  CHECK(fields_of(json::parse(R"({"train_batch_size": 4, "fp16": {"enabled": "auto"}})"))
            .at("compute") == "f32");
}

}  // namespace zg::testing
