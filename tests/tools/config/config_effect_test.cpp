#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tests/zero/deepspeed/deepspeed_case.h"

// Checks that honoured keys change the behaviour of a run, not only a setting.
namespace zg::testing {
namespace {

using nlohmann::json;
using zero::deepspeed::Row;

// Additional settings with which a key changes the first eight steps, as changes of a config.
// "value" is the key's value where other_than_default() does not suit. "flags" are flags for the
// command.
const std::map<std::string, const char*> needs = {
    {"train_batch_size", R"({"value": 16})"},
    {"gradient_accumulation_steps", R"({"value": 2})"},
    {"fp16.loss_scale_window", R"({"value": 1})"},
    {"fp16.min_loss_scale", R"({"value": 40000})"},
    {"bf16.bf16_master_weights_and_grads", R"({"bf16": {"bf16_optimizer_states": true}})"},
    {"bf16.bf16_optimizer_states", R"({"bf16": {"bf16_master_weights_and_grads": true}})"},
    {"optimizer.type", R"({"value": "AdamW", "optimizer": {"params": {"adam_w_mode": false}}})"},
    {"OneCycle.cycle_second_step_size",
     R"({"scheduler": {"params": {"cycle_first_step_size": 1}}})"},
    {"OneCycle.decay_step_size", R"({"scheduler": {"params": {"cycle_first_step_size": 1,
      "decay_lr_rate": 0.5}}})"},
    {"OneCycle.decay_lr_rate", R"({"scheduler": {"params": {"cycle_first_step_size": 1,
      "decay_step_size": 1}}})"},
    {"OneCycle.decay_mom_rate",
     R"({"value": 0.01, "scheduler": {"params": {"cycle_first_step_size": 1,
      "decay_step_size": 1}}})"},
    {"zero_optimization.reduce_bucket_size",
     R"({"value": 1000, "zero_optimization": {"stage": 2}})"},
    {"zero_optimization.allgather_bucket_size",
     R"({"value": 1000, "zero_optimization": {"stage": 2}})"},
    {"zero_optimization.stage3_param_persistence_threshold",
     R"({"value": 0, "zero_optimization": {"stage": 3}})"},
    {"zero_optimization.cpu_offload_param",
     R"({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})"},
    {"zero_optimization.offload_param.device",
     R"({"zero_optimization": {"stage3_param_persistence_threshold": 0}})"},
    {"zero_optimization.offload_optimizer.ratio",
     R"({"value": 0, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"},
    {"activation_checkpointing.cpu_checkpointing",
     R"({"flags": "--activation-checkpoint --dump-memory"})"},
    {"zerograd.activation_checkpoint", R"({"flags": "--dump-memory"})"},
    {"zerograd.offload_gradients", R"({"flags": "--dump-memory"})"},
    {"zerograd.offload_activations", R"({"flags": "--dump-memory"})"},
    {"zerograd.stochastic_rounding", R"({"bf16": {"enabled": true,
      "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}})"},
};

// Keys that change neither bits nor exchanges. These determine when a unit's values are in memory,
// which tests/zero/states/residency_test.cpp checks.
const std::set<std::string> only_when = {
    "zero_optimization.overlap_comm", "zero_optimization.stage3_prefetch_bucket_size",
    // Which values in a file are also in memory: tests/zero/states/placements_test.cpp
    "zero_optimization.offload_param.max_in_cpu", "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size",
    // Where and how a file on disk is read: tests/runtime/storage/swap_test.cpp
    "zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path",
    "zero_optimization.sub_group_size", "aio.block_size", "aio.queue_depth",
    // When files are written: tests/tools/async_save_test.cpp
    "checkpoint.writer.decoupled",
    // Which setting runs: tests/tools/tune_test.cpp
    "autotuning.enabled"};

std::string name_of(const Row& row) {
  const std::string section = row.section;
  return zero::deepspeed::path_of(section) == "scheduler.params" ? section + "." + row.key
                                                                 : zero::deepspeed::path_of(row);
}

class Runs {
 public:
  // Losses, norms, rates, scales, bytes, parameters, printed lines, and sizes of the exchanges.
  std::string seen(const std::string& config, const std::string& flags, bool is_yaml = false) {
    const std::string file = folder_ / (is_yaml ? "a.yaml" : "ds.json");
    const std::string metrics = folder_ / "metrics";
    write_file(file, config);
    write_file(metrics, "");
    const Outcome outcome = zerograd(
        "train --data sort --model-type gpt-nano --threads 1 --score-samples 0 --log-interval 0 "
        "--steps 8 --dump-collectives --metrics " +
        metrics + " --config " + file + " " + flags);
    CAPTURE(outcome.error);
    CHECK(outcome.status == (contains(flags, "fault=throw") ? 1 : 0));
    std::string all;
    for (json line : json_lines(metrics)) {
      for (const char* time : {"tokens_per_s", "step_s"}) line.erase(time);
      all += line.dump() + "\n";
    }
    for_lines(outcome.out, [&](const std::string& line) {
      const size_t step = line.find("step=");  // DeepSpeed's two lines begin with the time
      if (!line.starts_with("[20")) all += line + "\n";
      if (line.starts_with("[20") && step != std::string::npos) all += line.substr(step) + "\n";
    });
    std::set<std::string> exchanges;
    for_lines(outcome.error, [&](const std::string& line) {
      const size_t size = line.find("(f32, "), comma = line.find(", ");
      if (line.starts_with("rank 0/2 collective #") && size != std::string::npos)
        exchanges.insert(line.substr(comma, line.find(" of ") - comma) +
                         line.substr(size, line.find(')') - size));
      if (line.starts_with(file + ": ") && contains(line, " = ")) all += line + "\n";
    });
    for (const std::string& exchange : exchanges) all += exchange + "\n";
    return all;
  }

 private:
  template <class F>
  static void for_lines(const std::string& text, const F& f) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) f(line);
  }

  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("config: every honoured key changes what a run does") {
  Runs runs;
  std::map<std::string, std::string> before;  // by config without the key
  int shown = 0;
  for (const Row& row : zero::deepspeed::rows()) {
    const std::string name = name_of(row);
    if (row.effect != zero::deepspeed::Effect::honoured || only_when.count(name)) continue;
    if (std::string(row.section).starts_with("accelerate")) continue;  // tested below
    CAPTURE(name);
    json need = needs.count(name) ? json::parse(needs.at(name)) : json::object();
    const json value = need.contains("value") ? need["value"] : other_than_default(row);
    const std::string more = need.value("flags", "");
    need.erase("value");
    need.erase("flags");
    json with = smallest_config_for(row.section);
    if (std::string(row.section).starts_with("Warmup"))
      section_in(with, row.section)["warmup_num_steps"] = 3;
    with.merge_patch(need);
    json without = with;
    if (std::string(row.key) == "enabled") without.erase(row.section);
    if (std::string(row.key) == "warmup_num_steps") section_in(without, row.section).erase(row.key);
    if (name == "bf16.bf16_master_weights_and_grads" || name == "bf16.bf16_optimizer_states")
      without = smallest_config_for("bf16");  // one without the other is Unsupported
    section_in(with, row.section)[row.key] = value;
    // Overflows in two steps that are not adjacent, and an end that lists exchanges.
    std::string flags = "--ranks 2 " + more;
    if (std::string(row.section) == "fp16") flags += " --inject rank=0,step=1+3,fault=inf";
    if (zero::deepspeed::path_of(row).starts_with("zero_optimization"))
      flags += " --inject rank=1,step=2,fault=throw --dump-memory";
    CAPTURE(with.dump());
    const auto [known, is_new] = before.emplace(without.dump() + flags, "");
    if (is_new) {
      known->second = runs.seen(without.dump(), flags);
      // The run must be reproducible; otherwise a difference would prove nothing.
      REQUIRE(runs.seen(without.dump(), flags) == known->second);
    }
    CHECK(runs.seen(with.dump(), flags) != known->second);
    ++shown;
  }
  CHECK(shown >= 55);
  for (const auto& [name, need] : needs)
    CHECK(std::any_of(zero::deepspeed::rows().begin(), zero::deepspeed::rows().end(),
                      [&](const Row& row) { return name_of(row) == name; }));
}

TEST_CASE("accelerate: every honoured key, also of deepspeed_config, changes what a run does") {
  Runs runs;
  const std::string flags = "--batch-size 4 --dump-memory";
  const std::string block =
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero3_init_flag: false\n";
  const std::map<std::string, std::pair<std::string, std::string>> cases = {
      {"num_processes", {"distributed_type: MULTI_CPU\n", "num_processes: 2\n"}},
      {"mixed_precision", {"distributed_type: MULTI_CPU\n", "mixed_precision: bf16\n"}},
      {"deepspeed_config.zero_stage", {"num_processes: 2\n" + block, "  zero_stage: 3\n"}},
      {"deepspeed_config.gradient_accumulation_steps",
       {block, "  gradient_accumulation_steps: 2\n"}},
      {"deepspeed_config.gradient_clipping", {block, "  gradient_clipping: 0.1\n"}}};
  for (const auto& [name, texts] : cases) {
    CAPTURE(name);
    CHECK(runs.seen(texts.first, flags, true) !=
          runs.seen(texts.first + texts.second, flags, true));
  }
  for (const Row& row : zero::deepspeed::rows())
    if (std::string(row.section).starts_with("accelerate") &&
        row.effect == zero::deepspeed::Effect::honoured)
      CHECK(cases.count(zero::deepspeed::path_of(row)) == 1);
}

}  // namespace zg::testing
