#include <string_view>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/deepspeed/schema.h"

namespace zg::zero::deepspeed {

const std::vector<std::string> optimizer_names = {"Adam", "AdamW", "Lion", "Muon", "SGD"};
const std::vector<std::string> unsupported_optimizer_names = {
    "Adagrad", "Lamb",    "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam",   "MuAdamW",
    "MuSGD",   "RMSprop", "NAdam",      "RAdam",       "Adamax",     "Adafactor"};

std::string instead_of_optimizer(const std::string& type) {
  return lower_case(type) == "adafactor" ? "--optimizer adafactor, without the block" : "AdamW";
}

namespace {

using enum Type;
using enum Effect;

constexpr double largest_integer = 0x1p53;
constexpr double largest_count = 2147483647.0;
constexpr double largest_float = 3e38;
constexpr double below_one = 0x1.fffffep-1;  // the largest f32 below 1

constexpr const char* off = "this version lacks it";
constexpr const char* layout = "gradients and values are always in flat shards";
constexpr const char* units = "values are gathered unit by unit and freed after their last use";
constexpr const char* speed = "it changes the speed or the log of DeepSpeed alone";
constexpr const char* one_writer = "each rank writes its shard through one buffer of 4 MiB at most";
constexpr const char* monitors = "--metrics F writes a JSON line per step";

std::vector<Row> top_level() {
  std::vector<Row> rows = {
      {"", "train_batch_size", integer, "null", honoured, "", "", 0, largest_count, nullptr, "",
       true},
      {"", "train_micro_batch_size_per_gpu", integer, "null", honoured, "", "", 0, largest_count,
       nullptr, "", true},
      {"", "gradient_accumulation_steps", integer, "null", honoured, "", "", 0, largest_count,
       nullptr, "", true},
      {"", "steps_per_print", integer, "null", honoured, "", "", 1, largest_integer},
      {"", "gradient_clipping", number, "1.0", honoured, "", "", 0, largest_float, "0.0", "", true},
      {"", "memory_breakdown", boolean, "false"},
      {"", "dump_state", boolean, "false"},
      {"", "prescale_gradients", boolean, "false", nothing,
       "gradients are added unscaled and divided once"},
      {"", "gradient_predivide_factor", number, "1.0", only, off, "", 0, largest_float},
      {"", "gradient_allreduce_op", choice, "\"mean\"", only, off, "mean|sum"},
      {"", "communication_data_type", choice, "null", nothing,
       "gradients are sent in the compute dtype, added in data_types.grad_accum_dtype",
       "fp32|fp16|bf16"},
      {"", "sparse_gradients", boolean, "false", only, off},
      {"", "disable_allgather", boolean, "false", only, off},
      {"", "wall_clock_breakdown", boolean, "false", nothing, "--trace F shows each phase's time"},
      {"", "zero_allow_untested_optimizer", boolean, "false", nothing,
       "every optimizer is tested at every stage"},
      {"", "zero_force_ds_cpu_optimizer", boolean, "true", inner},
      {"", "dataloader_drop_last", boolean, "false", nothing, "every batch is complete"},
      {"", "bf16", section, "null", inner, "", "bf16", 0, 0, nullptr, "bfloat16"},
      {"", "comet", any, "null", nothing, monitors},
      {"data_types", "grad_accum_dtype", choice, "null", honoured, "", "fp32|bf16|fp16"},
      {"data_types", "param_dtype", any, "null", only, off},
      {"data_types", "buffer_dtype", any, "null", only, off},
      {"data_types", "keep_in_fp32_modules", text, "\"auto\"", only, off},
      {"checkpoint", "tag_validation", choice, "\"Warn\"", nothing,
       "all ranks write to the same step_N", "Ignore|Warn|Fail"},
      {"checkpoint", "load_universal", boolean, "false", only,
       "checkpoints always load on any number of ranks"},
      {"checkpoint", "use_node_local_storage", boolean, "false", only, off},
      {"checkpoint", "parallel_write", any, "null", only, off},
      {"checkpoint", "checkpoint_serialization", boolean, "true", inner},
      {"checkpoint", "writer", section, "null", inner, "", "writer"},
      {"writer", "decoupled", boolean, "false"},
      {"writer", "type", choice, "\"FAST\"", only, one_writer, "FAST|PYTHON|MOCK"},
      {"writer", "io_buffer_size", integer, "67108864", only, one_writer, "", 0, largest_integer},
      {"writer", "io_buffer_double", boolean, "true", only, one_writer},
      {"writer", "io_multiplier", integer, "1", only, one_writer, "", 0, largest_count},
      {"writer", "show_statistics", boolean, "false", only, off},
      {"writer", "data_parallel", choice, "null", only, one_writer, "REPLICA|SOCKET|MACHINE"},
  };
  for (const char* name : {"optimizer", "scheduler", "fp16", "zero_optimization", "data_types",
                           "checkpoint", "activation_checkpointing", "aio", "flops_profiler",
                           "comms_logger", "autotuning", "zerograd", "elasticity", "amp"})
    rows.push_back({"", name, section, "null", inner, "", name});
  for (const char* name : {"tensorboard", "csv_monitor", "wandb"})
    rows.push_back({"", name, section, "null", nothing, monitors, name});
  for (const char* key :
       {"data_efficiency", "curriculum_learning", "compression_training", "sparse_attention",
        "hybrid_engine", "torch_autocast", "compile", "tensor_parallel", "pipeline", "eigenvalue",
        "progressive_layer_drop", "nebula", "quantize_training", "graph_harvesting",
        "expert_parallel", "weight_quantization", "datastates_ckpt", "msamp", "fp8"})
    rows.push_back({"", key, any, "null", only, off});
  // Older or newer keys that change no value of a run here: there are no expert ranks, and Python's
  // garbage collector, warnings and timers of DeepSpeed do not exist.
  for (const char* key :
       {"timers", "disable_python_gc", "managed_gradient_accumulation", "vocabulary_size",
        "log_level", "use_data_before_expert_parallelism", "seq_parallel_communication_data_type",
        "fp32_allreduce", "allgather_size"})
    rows.push_back({"", key, any, "null", inner});
  return rows;
}

std::vector<Row> precision() {
  return {
      {"fp16", "enabled", boolean, "false"},
      {"fp16", "auto_cast", boolean, "false", nothing,
       "inputs are token numbers, which are not cast"},
      {"fp16", "loss_scale", number, "0", honoured, "", "", 0, largest_float},
      {"fp16", "initial_scale_power", integer, "16", honoured, "", "", 0, 127},
      {"fp16", "loss_scale_window", integer, "1000", honoured, "", "", 1, largest_integer},
      {"fp16", "hysteresis", integer, "2", honoured, "", "", 1, largest_integer},
      {"fp16", "consecutive_hysteresis", boolean, "false"},
      {"fp16", "min_loss_scale", number, "1", honoured, "", "", 1e-38, largest_float},
      {"fp16", "fp16_master_weights_and_grads", boolean, "false", only,
       "with fp16 masters and gradient accumulators are f32"},
      {"bf16", "enabled", boolean, "false"},
      {"bf16", "immediate_grad_update", boolean, "false", only, off},
      {"bf16", "check_grad_overflow", boolean, "true", only,
       "a step with a gradient that is not finite is always skipped"},
      {"bf16", "bf16_master_weights_and_grads", boolean, "false"},
      {"bf16", "bf16_optimizer_states", boolean, "false"},
  };
}

std::vector<Row> range_test_and_cycle() {
  constexpr const char *test = "LRRangeTest", *cycle = "OneCycle";
  const auto number_of = [](const char* section, const char* key, const char* fallback,
                            double maximum = largest_float) {
    return Row{section, key, number, fallback, honoured, "", "", 0, maximum};
  };
  const auto count_of = [](const char* section, const char* key, const char* fallback,
                           double minimum) {
    return Row{section, key, integer, fallback, honoured, "", "", minimum, largest_count};
  };
  return {
      number_of(test, "lr_range_test_min_lr", "1e-3"),
      count_of(test, "lr_range_test_step_size", "2000", 1),
      number_of(test, "lr_range_test_step_rate", "1.0"),
      {test, "lr_range_test_staircase", boolean, "false"},
      number_of(cycle, "cycle_min_lr", ""),
      number_of(cycle, "cycle_max_lr", ""),
      number_of(cycle, "decay_lr_rate", "0"),
      count_of(cycle, "cycle_first_step_size", "2000", 1),
      count_of(cycle, "cycle_second_step_size", "null", 1),
      {cycle, "cycle_first_stair_count", integer, "0", inner},      // DeepSpeed ignores this key
      {cycle, "cycle_second_stair_count", integer, "null", inner},  // DeepSpeed ignores this key
      count_of(cycle, "decay_step_size", "0", 0),
      {cycle, "cycle_momentum", boolean, "true"},
      number_of(cycle, "cycle_min_mom", "0.8", below_one),
      number_of(cycle, "cycle_max_mom", "0.9", below_one),
      number_of(cycle, "decay_mom_rate", "0"),
  };
}

std::vector<Row> learning() {
  std::vector<Row> rows = {
      {"optimizer", "type", text, ""},
      {"optimizer", "params", section, "null", inner, "", "adam"},
      {"optimizer", "legacy_fusion", boolean, "false", only, off},
      {"adam", "lr", number, "1e-3", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"adam", "betas", numbers, "[0.9, 0.999]", honoured, "", "", 0, 1, nullptr, "", true},
      {"adam", "eps", number, "1e-8", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"adam", "weight_decay", number, "0", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"adam", "bias_correction", boolean, "true", only, "AdamW always corrects its bias"},
      {"adam", "amsgrad", boolean, "false", only, off},
      {"adam", "torch_adam", boolean, "false", nothing,
       "there is only one implementation of AdamW"},
      {"adam", "adam_w_mode", boolean, "true"},
      {"lion", "lr", number, "1e-3", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"lion", "betas", numbers, "[0.9, 0.99]", honoured, "", "", 0, 1, nullptr, "", true},
      {"lion", "weight_decay", number, "0", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"muon", "lr", number, "1e-3", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"muon", "muon_lr", number, "null", honoured, "", "", 0, largest_float},
      {"muon", "adam_lr", number, "null", honoured, "", "", 0, largest_float},
      {"muon", "momentum", number, "0.95", honoured, "", "", 0, below_one},
      {"muon", "betas", numbers, "[0.9, 0.999]", honoured, "", "", 0, 1, nullptr, "", true},
      {"muon", "eps", number, "1e-8", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"muon", "weight_decay", number, "0", honoured, "", "", 0, largest_float, nullptr, "", true},
      // The two methods are the same iteration, in other orders of operations. Here it is done in
      // f32.
      {"muon", "ns_method", choice, "\"gram\"", inner, "", "gram|standard"},
      {"muon", "per_head_muon", boolean, "false", only, "a projection is one matrix"},
      {"muon", "torch_adam", boolean, "false", only, "there is only one implementation of AdamW"},
      {"muon", "adam_w_mode", boolean, "true", only, "weight decay is decoupled"},
      {"sgd", "lr", number, "1e-3", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"sgd", "momentum", number, "0", honoured, "", "", 0, below_one},
      {"sgd", "dampening", number, "0", honoured, "", "", 0, 1},
      {"sgd", "nesterov", boolean, "false"},
      {"sgd", "maximize", boolean, "false", only, off},
      {"sgd", "weight_decay", number, "0", honoured, "", "", 0, largest_float, nullptr, "", true},
      {"scheduler", "type", text, ""},
      {"scheduler", "params", section, "null", inner, "", "WarmupLR"},
  };
  for (const char* schedule : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    const bool cosine = schedule[6] == 'C', decays = schedule[6] != 'L';
    const auto rate = [&](const char* key, const char* fallback) {
      rows.push_back(
          {schedule, key, number, fallback, honoured, "", "", 0, largest_float, nullptr, "", true});
    };
    if (cosine) {
      rows.push_back({schedule, "warmup_min_ratio", number, "0.0", honoured, "", "", 0, 1});
      rows.push_back({schedule, "cos_min_ratio", number, "0.0001", honoured, "", "", 0, 1});
    } else {
      rate("warmup_min_lr", "0.0");
      rate("warmup_max_lr", decays ? "0.001" : "null");
      if (!decays) rows.back().fallback_0_16 = "0.001";
    }
    rows.push_back({schedule, "warmup_num_steps", integer, "1000", honoured, "", "", 0,
                    largest_count, nullptr, "", true});
    if (decays)
      rows.push_back({schedule, "total_num_steps", integer, "", honoured, "", "", 1, largest_count,
                      nullptr, "", true});
    rows.push_back({schedule, "warmup_type", choice, "\"log\"", honoured, "", "log|linear"});
  }
  const std::vector<Row> more = range_test_and_cycle();
  rows.insert(rows.end(), more.begin(), more.end());
  for (const char* schedule :
       {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"})
    rows.push_back(
        {schedule, "last_batch_iteration", integer, "-1", only, off, "", -1, largest_count});
  return rows;
}

std::vector<Row> zero_optimization() {
  constexpr const char* in = "zero_optimization";
  const auto size = [&](const char* key, const char* fallback, const char* alias, double minimum) {
    return Row{in, key,     integer,         fallback, honoured, "",
               "", minimum, largest_integer, nullptr,  alias,    true};
  };
  const auto only_default = [&](const char* key, const char* fallback) {
    return Row{in, key, boolean, fallback, only, off};
  };
  const auto listed = [&](const char* key, const char* fallback, const char* alias = "") {
    return Row{in, key, boolean, fallback, nothing, speed, "", 0, 0, nullptr, alias};
  };
  return {
      {in, "stage", integer, "0", honoured, "", "", 0, 3},
      size("reduce_bucket_size", "5e8", "", 1),
      size("allgather_bucket_size", "5e8", "", 0),
      {in, "overlap_comm", boolean, "null"},
      size("stage3_prefetch_bucket_size", "5e7", "prefetch_bucket_size", 0),
      size("stage3_param_persistence_threshold", "1e5", "param_persistence_threshold", 0),
      {in, "offload_param", section, "null", inner, "", "offload_param"},
      {in, "offload_optimizer", section, "null", inner, "", "offload_optimizer"},
      {in, "cpu_offload", boolean, "null"},
      {in, "cpu_offload_param", boolean, "null"},
      {in, "cpu_offload_use_pin_memory", boolean, "null", inner},
      {in, "contiguous_gradients", boolean, "true", nothing, layout},
      {in, "reduce_scatter", boolean, "true", nothing,
       "gradients are always reduced by reduce_scatter"},
      {in, "allgather_partitions", boolean, "true", nothing, units},
      {in, "round_robin_gradients", boolean, "false", nothing, layout},
      // Every moment is stored where offload_optimizer says.
      {in, "save_muon_momentum_buffer_in_memory", boolean, "false", inner},
      {in, "sub_group_size", integer, "1e9", honoured, "", "", 0, largest_integer},
      {in, "stage3_max_live_parameters", integer, "1e9", nothing, units, "", 0, largest_integer,
       nullptr, "max_live_parameters"},
      {in, "stage3_max_reuse_distance", integer, "1e9", nothing, units, "", 0, largest_integer,
       nullptr, "max_reuse_distance"},
      {in, "stage3_gather_16bit_weights_on_model_save", boolean, "false", nothing,
       "a checkpoint has the f32 masters, not 16-bit weights", "", 0, 0, nullptr,
       "gather_16bit_weights_on_model_save|stage3_gather_fp16_weights_on_model_save"},
      {in, "stage3_model_persistence_threshold", integer, "9223372036854775807", nothing, units, "",
       0, 1e19, nullptr, "model_persistence_threshold"},
      {in, "stage3_module_granularity_threshold", integer, "0", nothing, units, "",
       -largest_integer, largest_integer, nullptr, "module_granularity_threshold"},
      listed("stage3_use_all_reduce_for_fetch_params", "false", "use_all_reduce_for_fetch_params"),
      listed("stage3_allgather_sequential", "false", "allgather_sequential"),
      listed("use_multi_rank_bucket_allreduce", "true"),
      {in, "load_from_fp32_weights", boolean, "true", nothing, "masters are loaded from f32"},
      listed("elastic_checkpoint", "false"),
      listed("compute_grad_norm", "true"),
      listed("parameter_alignment", "false"),
      only_default("ignore_unused_parameters", "true"),
      only_default("legacy_stage1", "false"),
      only_default("zero_quantized_weights", "false"),
      only_default("zero_quantized_nontrainable_weights", "false"),
      only_default("zero_quantized_gradients", "false"),
      only_default("mics_hierarchical_params_gather", "false"),
      listed("memory_efficient_linear", "true"),
      only_default("override_module_apply", "true"),
      listed("pipeline_loading_checkpoint", "false"),
      listed("log_trace_cache_warnings", "false"),
      listed("enable_sanity_checks", "false"),
      {in, "zero_hpz_partition_size", integer, "1", only, off, "", 0, largest_count},
      {in, "mics_shard_size", integer, "-1", only, off, "", -1, largest_count},
      {in, "zeropp_loco_param", any, "null", only, off},
      {in, "zenflow", any, "null", only, off},
      {in, "leaf_module", any, "null", only, off},
  };
}

std::vector<Row> offload() {
  std::vector<Row> rows;
  for (const char* in : {"offload_param", "offload_optimizer"}) {
    const bool optimizer = in[8] == 'o';
    rows.push_back({in, "device", choice, "\"none\"", honoured, "", "none|cpu|nvme"});
    rows.push_back({in, "nvme_path", text, "null"});
    rows.push_back({in, "pin_memory", boolean, "true", inner, "", "", 0, 0, "false"});
    if (!optimizer) {
      rows.push_back({in, "buffer_count", integer, "5", honoured, "", "", 0, largest_count});
      rows.push_back({in, "buffer_size", integer, "1e8", honoured, "", "", 0, largest_integer});
      rows.push_back({in, "max_in_cpu", integer, "1e9", honoured, "", "", 0, largest_integer});
      continue;
    }
    rows.push_back({in, "buffer_count", integer, "4", nothing,
                    "states are streamed through two sets of buffers of sub_group_size", "", 0,
                    largest_count});
    for (const char* key : {"pipeline_read", "pipeline_write"})
      rows.push_back(
          {in, key, boolean, "false", nothing, "reads and writes always overlap with computation"});
    rows.push_back({in, "fast_init", boolean, "false", inner});
    rows.push_back({in, "super_offload", boolean, "false", only, off});
    rows.push_back({in, "ratio", number, "1.0", honoured, "", "", 0, 1});
    rows.push_back({in, "cpuadam_cores_perc", number, "0.8", inner, "", "", 0, 1});
  }
  return rows;
}

std::vector<Row> activation_checkpointing() {
  constexpr const char* in = "activation_checkpointing";
  return {
      {in, "partition_activations", boolean, "false", nothing, "one rank has the whole model"},
      {in, "number_checkpoints", integer, "null", nothing,
       "--activation-checkpoint checkpoints every block", "", 0, largest_count},
      {in, "contiguous_memory_optimization", boolean, "false", nothing,
       "the memory arena always allocates contiguously"},
      {in, "synchronize_checkpoint_boundary", boolean, "false", nothing, speed},
      {in, "profile", boolean, "false", nothing, "--trace F shows each phase's time"},
      {in, "cpu_checkpointing", boolean, "false"},
  };
}

// The section `zerograd`: settings that DeepSpeed takes from the program or from another key.
// DeepSpeed ignores this section.
std::vector<Row> own() {
  return {{"zerograd", "activation_checkpoint", boolean, "null"},
          {"zerograd", "offload_gradients", choice, "null", honoured, "", "none|cpu|nvme"},
          {"zerograd", "offload_activations", choice, "null", honoured, "", "none|cpu|nvme"},
          {"zerograd", "stochastic_rounding", boolean, "false"}};
}

std::vector<Row> services() {
  std::vector<Row> rows = {
      {"aio", "block_size", integer, "1048576", honoured, "", "", 1, 1 << 30},
      {"aio", "queue_depth", integer, "8", honoured, "", "", 1, 1024},
      {"aio", "intra_op_parallelism", integer, "1", inner, "", "", 1, largest_count, nullptr,
       "thread_count"},
      {"aio", "single_submit", boolean, "false", inner},
      {"aio", "overlap_events", boolean, "true", inner},
      {"aio", "use_gds", boolean, "false", inner},
  };
  // In the first three sections `enabled` has no effect. The row of the section gives the reason.
  const struct {
    const char* section;
    std::vector<const char*> keys;
  } services[] = {
      {"tensorboard", {"output_path", "job_name"}},
      {"csv_monitor", {"output_path", "job_name"}},
      {"wandb", {"group", "team", "project"}},
      {"flops_profiler",
       {"recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed",
        "output_file"}},
      {"comms_logger", {"prof_all", "prof_ops", "verbose", "debug"}},
      {"autotuning",
       {"fast",
        "results_dir",
        "exps_dir",
        "overwrite",
        "start_profile_step",
        "end_profile_step",
        "tuner_type",
        "tuner_early_stopping",
        "tuner_num_trials",
        "num_tuning_micro_batch_sizes",
        "metric",
        "metric_path",
        "model_info",
        "model_info_path",
        "arg_mappings",
        "mp_size",
        "max_train_batch_size",
        "min_train_batch_size",
        "max_train_micro_batch_size_per_gpu",
        "min_train_micro_batch_size_per_gpu"}},
      {"elasticity",
       {"max_train_batch_size", "micro_batch_sizes", "min_gpus", "max_gpus", "min_time", "version",
        "prefer_larger_batch", "ignore_non_elastic_batch_info", "model_parallel_size",
        "num_gpus_per_node"}},
      {"amp", {"opt_level"}},
  };
  for (const auto& [section, keys] : services) {
    const bool listed = &section == &services[0].section || &section == &services[1].section ||
                        &section == &services[2].section;
    if (std::string_view(section) == "autotuning")
      rows.push_back({section, "enabled", boolean, "false"});
    else
      rows.push_back({section, "enabled", boolean, "false", listed ? inner : only,
                      listed ? "" : off, "", 0, 0, nullptr, "",
                      std::string_view(section) == "amp"});
    for (const char* key : keys) rows.push_back({section, key, any, "null", inner});
  }
  return rows;
}

// The config file of accelerate. It may name a config file of DeepSpeed.
std::vector<Row> accelerate() {
  constexpr const char *in = "accelerate", *block = "accelerate_deepspeed";
  constexpr const char* threads = "use zerograd launch --hostfile for several machines";
  std::vector<Row> rows = {
      {in, "compute_environment", choice, "\"LOCAL_MACHINE\"", only, off,
       "LOCAL_MACHINE|AMAZON_SAGEMAKER"},
      {in, "deepspeed_config", section, "null", inner, "", block},
      {in, "distributed_type", choice, "\"DEEPSPEED\"", inner, "",
       "DEEPSPEED|NO|MULTI_CPU|MULTI_GPU|MULTI_HPU|MULTI_XPU|MULTI_NPU|MULTI_MLU|MULTI_SDAA|"
       "MULTI_MUSA|MULTI_NEURON|FSDP|MEGATRON_LM|XLA|TPU"},
      {in, "num_processes", integer, "null", honoured, "", "", 1, largest_count},
      {in, "mixed_precision", choice, "\"no\"", honoured, "", "no|fp16|bf16|fp8"},
      {in, "num_machines", integer, "1", only, threads, "", 0, largest_count},
      {in, "machine_rank", integer, "0", only, threads, "", 0, largest_count},
      {in, "rdzv_backend", text, "\"static\"", inner},
      {in, "same_network", boolean, "true", inner},
      {in, "main_training_function", text, "\"main\"", nothing, "there is one training function"},
      {in, "use_cpu", boolean, "false", inner},  // --device selects the device
      {in, "enable_cpu_affinity", boolean, "false", only, off},
      {in, "debug", boolean, "false", nothing, "collectives are always compared between ranks"},
      {in, "downcast_bf16", choice, "\"no\"", only, off, "no|yes"},
      {in, "dynamo_config", any, "null", only, off},
      {in, "parallelism_config", any, "null", only, off},
      {in, "dynamo_backend", any, "null", only, off},
      {in, "fp16", boolean, "false", only, "try mixed_precision: fp16"},
      {in, "tpu_use_cluster", boolean, "false", only, off},
      {in, "tpu_use_sudo", boolean, "false", only, off},
      {block, "deepspeed_config_file", text, "null", inner},
      {block, "zero3_init_flag", boolean, "false", nothing,
       "every rank initialises its own shard of each parameter"},
      {block, "zero3_save_16bit_model", boolean, "false", inner},  // this key and the next seven
      {block, "zero_stage", integer, "2", inner, "", "", 0, 3},    // set keys of DeepSpeed's config
      {block, "gradient_accumulation_steps", any, "null", inner},
      {block, "gradient_clipping", any, "null", inner},
      {block, "offload_optimizer_device", choice, "\"none\"", inner, "", "none|cpu|nvme"},
      {block, "offload_optimizer_nvme_path", text, "null", inner},
      {block, "offload_param_device", choice, "\"none\"", inner, "", "none|cpu|nvme"},
      {block, "offload_param_nvme_path", text, "null", inner},
      {block, "deepspeed_hostfile", any, "null", only, threads},
      {block, "deepspeed_multinode_launcher", any, "null", inner},
      {block, "deepspeed_inclusion_filter", any, "null", inner},
      {block, "deepspeed_exclusion_filter", any, "null", inner},
      {block, "deepspeed_moe_layer_cls_names", any, "null", only, off},
  };
  for (const char* key :
       {"main_process_ip", "main_process_port",  // of several machines, which num_machines refuses
        "gpu_ids", "fsdp_config",
        "megatron_lm_config",  // distributed_type tells whether it is FSDP
        "tpu_env", "tpu_name", "tpu_zone", "tpu_vm", "command_file", "commands",  // of TPUs
        "mpirun_config", "fp8_config",  // mixed_precision tells whether fp8 is used
        "ipex_config"})                 // older files; it changes only the speed
    rows.push_back({in, key, any, "null", inner});
  return rows;
}

}  // namespace

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> rows;
    for (const auto& part : {top_level(), precision(), learning(), zero_optimization(), offload(),
                             activation_checkpointing(), own(), services(), accelerate()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return all;
}

}  // namespace zg::zero::deepspeed
