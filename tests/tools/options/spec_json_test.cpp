#include "tools/options/run_spec.h"

#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tools/options/fields.h"

namespace zg::testing {
namespace {

using tools::RunSpec;

/// The settings of a run of version 0.1, as its checkpoint has them.
constexpr const char* stored =
    R"({"data":{"bos_token":null,"bytes":0,"characters":"012","checksum":"","eos_tokens":[],)"
    R"("order":"random","pad_token":null,"source":"sort","split":[969.0,30.0,1.0],"tokenizer":"",)"
    R"("tokenizer_checksum":"","validation_bytes":0,"validation_checksum":"",)"
    R"("validation_fraction":0.1},"model":{"bias":true,"block_size":11,"embedding_norm":false,)"
    R"("family":"gpt","head_size":0,"heads":2,"hidden":0,"kv_heads":0,"layers":1,"mlp":"gelu_tanh",)"
    R"("norm":"layer","norm_epsilon":9.999999747378752e-06,"position":"learned","positions":0,)"
    R"("qkv_bias":true,"query_key_norm":false,"rope_attention_factor":0.0,"rope_beta_fast":32.0,)"
    R"("rope_beta_slow":1.0,"rope_factor":1.0,"rope_high_freq_factor":4.0,"rope_low_freq_factor":1.0,)"
    R"("rope_original_positions":8192,"rope_scaling":"none","rope_theta":10000.0,"rope_truncate":true,)"
    R"("rotated_share":1.0,"tied":false,"vocabulary":3,"width":16,"window":0},)"
    R"("position":{"loss":1.1258435547351837,"samples":16,"skipped_samples":0},"run":{"accumulation":4,)"
    R"("adafactor_beta2_decay":-0.800000011920929,"adafactor_clip":1.0,)"
    R"("adafactor_epsilon1":1.1920928955078125e-07,"adafactor_epsilon2":0.0010000000474974513,)"
    R"("beta1":0.8999999761581421,"beta2":0.949999988079071,"clip_norm":1.0,"compute":"f32",)"
    R"("consecutive_hysteresis":false,"cosine_min_ratio":0.0001,"cycle_decay_rate":0.0,)"
    R"("cycle_decay_steps":0,"cycle_first_steps":2000,"cycle_max_momentum":0.9,)"
    R"("cycle_min_momentum":0.8,"cycle_min_rate":0.0,"cycle_momentum":true,"cycle_momentum_decay":0.0,)"
    R"("cycle_second_steps":2000,"dampening":0.0,"decay_samples":0,"decay_style":"linear",)"
    R"("decoupled":true,"dropout":0.10000000149011612,"epochs":0.0,"epsilon":9.99999993922529e-09,)"
    R"("grad_accum":"f32","hysteresis":2,"initial_scale_power":16,"load":"f32","loss_scale":0.0,)"
    R"("loss_scale_window":1000,"micro_batch":4,"min_loss_scale":1.0,"min_rate":0.0,"momentum":0.0,)"
    R"("muon_adam_rate":1.0,"muon_momentum":0.949999988079071,"muon_nesterov":true,)"
    R"("muon_rate":"match_rms_adamw","nccl_reduce":false,"nesterov":false,)"
    R"("offload_activation":"device","offload_gradient":"device","offload_optimizer":"device",)"
    R"("offload_parameter":"device","optimizer":"f32","parameter_groups":"*.bias:rate=2",)"
    R"("pipeline_parallel":1,"preset":"","rampup_increment":16,"rampup_samples":32,"rampup_start":16,)"
    R"("range_test_staircase":false,"range_test_step_rate":1.0,"range_test_step_size":2000,"ranks":2,)"
    R"("rate":0.0005,"reduce_at_boundary":false,"rule":"adam","save_top_k":1,"schedule":"none",)"
    R"("schedule_steps":0,"seed":3407,"sequence_parallel":false,"stage":0,"steps":1,)"
    R"("stochastic_rounding":false,"tensor_parallel":1,"train_samples":0,"warmup_min_rate":0.0,)"
    R"("warmup_min_ratio":0.0,"warmup_samples":0,"warmup_steps":0,"warmup_type":"log",)"
    R"("weight_decay":0.10000000149011612}})";

}  // namespace

TEST_CASE("settings of an earlier version are read, and written again byte for byte") {
  const RunSpec spec = tools::settings_from_json(stored, "c");
  CHECK(nlohmann::json::parse(tools::to_json(spec)).dump() == stored);  // files have sorted keys
  CHECK(spec.model.width == 16);
  CHECK(spec.data_ranks == 2);
  CHECK(spec.rampup.samples == 32);
  CHECK(spec.engine.update.groups.size() == 1);
}

TEST_CASE("settings that an old version did not write have the values that it worked with") {
  tools::Json json = tools::Json::parse(stored);
  for (const tools::Field* field : tools::stored_fields()) {
    const std::string& key = field->stored.key;
    const size_t dot = key.find('.');
    if (!field->stored.always && key != "run.micro_batch")
      json[key.substr(0, dot)].erase(key.substr(dot + 1));
  }
  const RunSpec spec = tools::settings_from_json(json.dump(), "c");
  CHECK(spec.steps == 0);
  CHECK(spec.save_top_k == -1);
  CHECK(spec.data_ranks == 1);
  CHECK(spec.schedule.rate == RunSpec().schedule.rate);
  json["run"].erase("micro_batch");
  CHECK(message_of<FileError>([&] { tools::settings_from_json(json.dump(), "c"); }) ==
        "c: the checkpoint's settings cannot be read: run.micro_batch: expected a number of 1 or "
        "more, got none; expected those that zerograd train wrote");
}

TEST_CASE("a RunSpec as it is constructed is a run that a checkpoint may have") {
  RunSpec spec;
  spec.model.vocabulary = 3;
  spec.model.block_size = 11;
  const std::string json = tools::to_json(spec);
  CHECK(tools::to_json(tools::settings_from_json(json, "c")) == json);
}

}  // namespace zg::testing
