#include <algorithm>
#include <set>
#include <sstream>

#include "tests/tools/config/config_matrix.h"
#include "tests/zero/deepspeed/deepspeed_case.h"

// Keys that a run does not honour: each is refused by name, listed as without effect, or means
// nothing here.
namespace zg::testing {
namespace {

using nlohmann::json;
using zero::deepspeed::Effect;
using zero::deepspeed::Row;

// section: key=value, and for what is refused /the value that is what happens anyway.
const char* const refused_keys = R"(
: gradient_predivide_factor=2/1 gradient_allreduce_op=sum/mean sparse_gradients=true/false
: disable_allgather=true/false data_efficiency=true/false curriculum_learning=true/false
: compression_training=true/false sparse_attention=true/false hybrid_engine=true/false
: torch_autocast=true/false compile=true/{"deepcompile":0} tensor_parallel=true/{"autotp_size":1}
: eigenvalue=true/false progressive_layer_drop=true/false nebula=true/false pipeline=true/false
: quantize_training=true/false graph_harvesting=true/false expert_parallel=true/false fp8=true/false
: weight_quantization=true/false datastates_ckpt=true/false msamp=true/{"enabled":false,"x":2}
data_types: param_dtype=bf16/null buffer_dtype=bf16/null keep_in_fp32_modules=norm/auto
checkpoint: load_universal=true/false use_node_local_storage=true/false parallel_write=true/false
writer: type=PYTHON/FAST io_buffer_size=1024/67108864 io_buffer_double=false/true io_multiplier=2/1
writer: show_statistics=true/false data_parallel=SOCKET/null
fp16: fp16_master_weights_and_grads=true/false
bf16: immediate_grad_update=true/false check_grad_overflow=false/true
optimizer: legacy_fusion=true/false
adam: bias_correction=false/true amsgrad=true/false
sgd: maximize=true/false
muon: per_head_muon=true/false torch_adam=true/false adam_w_mode=false/true
WarmupLR: last_batch_iteration=5/-1
WarmupDecayLR: last_batch_iteration=5/-1
WarmupCosineLR: last_batch_iteration=5/-1
LRRangeTest: last_batch_iteration=5/-1
OneCycle: last_batch_iteration=5/-1
zero_optimization: zero_hpz_partition_size=2/1
zero_optimization: mics_shard_size=2/-1
zero_optimization: ignore_unused_parameters=false/true legacy_stage1=true/false
zero_optimization: zero_quantized_weights=true/false zero_quantized_gradients=true/false
zero_optimization: zero_quantized_nontrainable_weights=true/false
zero_optimization: mics_hierarchical_params_gather=true/false override_module_apply=false/true
zero_optimization: zeropp_loco_param=true/false zenflow=true/false leaf_module=true/false
offload_optimizer: super_offload=true/false
flops_profiler: enabled=true/false
comms_logger: enabled=true/false
elasticity: enabled=true/false
amp: enabled=true/false
accelerate: compute_environment=AMAZON_SAGEMAKER/LOCAL_MACHINE num_machines=2/1 machine_rank=1/0
accelerate: enable_cpu_affinity=true/false downcast_bf16=yes/no fp16=true/false
accelerate: parallelism_config={"x":2}/{"x":1} dynamo_backend=INDUCTOR/NO
accelerate: dynamo_config=true/{"dynamo_backend":"no","x":2} tpu_use_cluster=true/false tpu_use_sudo=true/false
accelerate_deepspeed: deepspeed_hostfile=true/false deepspeed_moe_layer_cls_names=true/false
)";

const char* const listed_keys = R"(
: prescale_gradients=true communication_data_type=fp16 wall_clock_breakdown=true
: zero_allow_untested_optimizer=true dataloader_drop_last=true
: tensorboard={} csv_monitor={} wandb={} comet={}
fp16: auto_cast=true
checkpoint: tag_validation=Fail
adam: torch_adam=true
zero_optimization: contiguous_gradients=false reduce_scatter=false allgather_partitions=false
zero_optimization: round_robin_gradients=true stage3_max_live_parameters=7
zero_optimization: stage3_model_persistence_threshold=7 stage3_module_granularity_threshold=7
zero_optimization: stage3_use_all_reduce_for_fetch_params=true stage3_allgather_sequential=true
zero_optimization: use_multi_rank_bucket_allreduce=false elastic_checkpoint=true
zero_optimization: compute_grad_norm=false parameter_alignment=true memory_efficient_linear=false
zero_optimization: pipeline_loading_checkpoint=true log_trace_cache_warnings=true
zero_optimization: enable_sanity_checks=true load_from_fp32_weights=false
zero_optimization: stage3_max_reuse_distance=7 stage3_gather_16bit_weights_on_model_save=true
offload_optimizer: buffer_count=7 pipeline_read=true pipeline_write=true
activation_checkpointing: partition_activations=true number_checkpoints=7
activation_checkpointing: contiguous_memory_optimization=true profile=true
activation_checkpointing: synchronize_checkpoint_boundary=true
)";

const char* const meaningless_keys = R"(
: zero_force_ds_cpu_optimizer=false timers={} disable_python_gc=true vocabulary_size=7
: managed_gradient_accumulation=false use_data_before_expert_parallelism=true log_level=info
: seq_parallel_communication_data_type=bf16 fp32_allreduce=true allgather_size=7
checkpoint: checkpoint_serialization=false
muon: ns_method=standard
OneCycle: cycle_first_stair_count=7 cycle_second_stair_count=7
zero_optimization: cpu_offload_use_pin_memory=true save_muon_momentum_buffer_in_memory=true
offload_param: pin_memory=false
offload_optimizer: pin_memory=false fast_init=true cpuadam_cores_perc=0.5
aio: intra_op_parallelism=7 single_submit=true overlap_events=false use_gds=true
tensorboard: enabled=true output_path=x job_name=x
csv_monitor: enabled=true output_path=x job_name=x
wandb: enabled=true group=x team=x project=x
flops_profiler: recompute_fwd_factor=1 profile_step=1 module_depth=1 top_modules=1 detailed=true
flops_profiler: output_file=x
comms_logger: prof_all=true prof_ops=[] verbose=true debug=true
autotuning: fast=true results_dir=x exps_dir=x overwrite=true start_profile_step=1
autotuning: end_profile_step=1 tuner_type=x tuner_early_stopping=1 tuner_num_trials=1
autotuning: num_tuning_micro_batch_sizes=1 metric=x metric_path=x model_info=x model_info_path=x
autotuning: arg_mappings={} mp_size=1 max_train_batch_size=1 min_train_batch_size=1
autotuning: max_train_micro_batch_size_per_gpu=1 min_train_micro_batch_size_per_gpu=1
elasticity: max_train_batch_size=1 micro_batch_sizes=[] min_gpus=1 max_gpus=1 min_time=1 version=1
elasticity: prefer_larger_batch=true ignore_non_elastic_batch_info=true model_parallel_size=1
elasticity: num_gpus_per_node=1
amp: opt_level=O1
)";

const char* const listed_of_accelerate = R"(
accelerate: main_training_function=x debug=true
accelerate_deepspeed: zero3_init_flag=true
)";

const char* const meaningless_of_accelerate = R"(
accelerate: main_process_ip=x main_process_port=7 rdzv_backend=x same_network=false use_cpu=true
accelerate: gpu_ids=all fsdp_config={} megatron_lm_config={} tpu_env=[]
accelerate: tpu_name=x tpu_zone=x tpu_vm=[] command_file=x commands=[] mpirun_config={} fp8_config={}
accelerate: ipex_config={}
accelerate_deepspeed: deepspeed_multinode_launcher=x deepspeed_inclusion_filter=x
accelerate_deepspeed: deepspeed_exclusion_filter=x
)";

struct OtherKey {
  const Row* row;
  json value, usual;

  std::string path() const { return zero::deepspeed::path_of(*row); }
};

json value_of(const std::string& word) {
  const json value = json::parse(word, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json(word) : value;
}

std::vector<OtherKey> keys_in(const char* table) {
  std::vector<OtherKey> keys;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(std::min(line.size(), line.find(':') + 1)));
    for (std::string word; words >> word;) {
      const std::string section = line.substr(0, line.find(':'));
      const size_t equal = word.find('='), slash = word.find('/');
      const Row* row = zero::deepspeed::find_row(section, word.substr(0, equal));
      REQUIRE_MESSAGE(row, line);
      keys.push_back({row, value_of(word.substr(equal + 1, slash - equal - 1)),
                      slash == std::string::npos ? json() : value_of(word.substr(slash + 1))});
    }
  }
  return keys;
}

json& object_of(json& config, const Row& row) {
  json& object = section_in(config, row.section);
  if (object.is_null()) object = json::object();
  return object;
}

json config_with(const OtherKey& key, const json& value) {
  json config = smallest_config_for(key.row->section);
  object_of(config, *key.row)[key.row->key] = value;
  return config;
}

// A config that has all the keys, and one that has their sections only.
std::pair<json, json> all_of(const std::vector<OtherKey>& keys, const json& value_of_all) {
  std::pair<json, json> configs = {json::object(), json::object()};
  for (json* config : {&configs.first, &configs.second})
    for (const OtherKey& key : keys) {
      config->merge_patch(smallest_config_for(key.row->section));
      json& object = object_of(*config, *key.row);
      if (config == &configs.first)
        object.merge_patch({{key.row->key, value_of_all.is_null() ? key.value : value_of_all}});
    }
  return configs;
}

// Where DeepSpeed reads a section by a pydantic model, which drops "auto", or where the key has it.
bool drops_auto(const Row& row) {
  static const std::set<std::string> sections = {
      "zero_optimization", "offload_param", "offload_optimizer", "fp16", "bf16", "tensorboard",
      "csv_monitor",       "wandb"};
  return sections.count(row.section) > 0 || row.automatic ||
         std::string(row.fallback) == "\"auto\"";
}

}  // namespace

TEST_CASE(
    "config: a key with an unsupported value is refused by name with the reason, its default is "
    "accepted") {
  for (const OtherKey& key : keys_in(refused_keys)) {
    const std::string refused = ": " + key.path() + ": ";
    CAPTURE(refused);
    const Outcome outcome = configured(config_with(key, key.value), "").outcome;
    CAPTURE(outcome.error);
    CHECK(outcome.status == 6);
    for (const std::string& part :
         {std::string("error: Unsupported: "), refused, std::string(key.row->why)})
      CHECK(contains(outcome.error, part));
    const Outcome usual = configured(config_with(key, key.usual), "").outcome;
    CHECK_MESSAGE(usual.status == 0, usual.error);
    const Outcome automatic = configured(config_with(key, "auto"), "").outcome;
    CAPTURE(automatic.error);
    CHECK((automatic.status == 0) == drops_auto(*key.row));
    CHECK((automatic.status == 0 || contains(automatic.error, refused)));
  }
}

TEST_CASE(
    "config: a key without effect is listed, a meaningless key is not, and neither changes a run") {
  const std::pair<const char*, const char*> tables[] = {
      {listed_keys, meaningless_keys}, {listed_of_accelerate, meaningless_of_accelerate}};
  for (const auto& [listed, meaningless] : tables)
    for (const bool lists : {true, false}) {
      const std::vector<OtherKey> keys = keys_in(lists ? listed : meaningless);
      const auto [with, without] = all_of(keys, {});
      const Configured run = configured(with, "");
      CHECK(surprise("same", run, configured(without, "").seen) == "");
      std::vector<OtherKey> automatic = keys;
      std::erase_if(automatic, [](const OtherKey& key) { return !drops_auto(*key.row); });
      if (!automatic.empty()) {
        const auto [all, none] = all_of(automatic, "auto");
        CHECK(surprise("same", configured(all, ""), configured(none, "").seen) == "");
      }
      for (const OtherKey& key : keys) {
        CAPTURE(key.path());
        const std::string line = ": " + key.path() + ": accepted without effect (" + key.row->why;
        CHECK(contains(run.outcome.error, line) == lists);
        if (drops_auto(*key.row) || key.row->type == zero::deepspeed::Type::any ||
            key.row->type == zero::deepspeed::Type::text)
          continue;
        const Outcome outcome = configured(config_with(key, "auto"), "").outcome;
        CAPTURE(outcome.error);
        CHECK(outcome.status == 2);
        CHECK(contains(outcome.error, ": " + key.path() + ": expected "));
      }
    }
}

TEST_CASE("config: every key that is not honoured has a case as refused, listed or meaningless") {
  std::set<const Row*> refused, listed, meaningless;
  for (const OtherKey& key : keys_in(refused_keys)) refused.insert(key.row);
  for (const char* table : {listed_keys, listed_of_accelerate})
    for (const OtherKey& key : keys_in(table)) listed.insert(key.row);
  for (const char* table : {meaningless_keys, meaningless_of_accelerate})
    for (const OtherKey& key : keys_in(table)) meaningless.insert(key.row);
  for (const Row& row : zero::deepspeed::rows()) {
    const std::string path = zero::deepspeed::path_of(row);
    CAPTURE(path);
    CHECK(refused.count(&row) == (row.effect == Effect::only));
    CHECK(listed.count(&row) == (row.effect == Effect::nothing));
    // accelerate's words for DeepSpeed's keys are in config_matrix_test.cpp.
    const bool is_elsewhere = row.type == zero::deepspeed::Type::section ||
                              std::string(row.section) == "accelerate_deepspeed" ||
                              path == "distributed_type";
    if (row.effect == Effect::inner && !is_elsewhere) CHECK(meaningless.count(&row) == 1);
    if (row.effect != Effect::inner) CHECK(meaningless.count(&row) == 0);
  }
}

}  // namespace zg::testing
