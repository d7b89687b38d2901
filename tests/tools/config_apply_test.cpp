#include <doctest/doctest.h>

#include "tests/tools/config_case.h"

namespace zg::testing {
TEST_CASE("config: a section's defaults are DeepSpeed's, of the version that is asked for") {
  const std::string batch = "{train_batch_size: 8, ";
  const auto engine = [&](const std::string& text, tools::Compat compat) {
    return load(batch + text + "}", compat).options.optimisation.engine;
  };
  using enum tools::Compat;
  CHECK(engine("", v0_19).clip_norm == 1.0f);
  CHECK(engine("", v0_16).clip_norm == 0.0f);
  CHECK(engine("gradient_clipping: 0.5", v0_16).clip_norm == 0.5f);
  const Loaded adam = load(batch + "optimizer: {type: \"adamw\"}}");
  CHECK(adam.options.optimisation.engine.adam.beta1 == 0.9f);
  CHECK(adam.options.optimisation.engine.adam.beta2 == 0.999f);
  CHECK(adam.options.optimisation.engine.adam.weight_decay == 0.0f);
  CHECK(adam.options.optimisation.schedule.rate == 1e-3);
  // Without the block the optimizer is the command's own.
  CHECK(engine("", v0_19).adam.beta2 == 0.95f);
  const Loaded warmup =
      load(batch +
           "optimizer: {type: \"Adam\", params: {lr: 0.5}}, scheduler: {type: \"WarmupLR\", "
           "params: {}}}");
  CHECK(warmup.options.optimisation.schedule.rate == 0.5);  // warmup_max_lr: the optimizer's
  CHECK(warmup.options.optimisation.schedule.warmup_num_steps == 1000);
  CHECK(warmup.options.optimisation.schedule.warmup_type == zero::WarmupType::log);
}

TEST_CASE("config: a flag that is given overrides its key, a default of a flag never does") {
  const std::string text =
      "{train_batch_size: 8, optimizer: {type: \"Adam\", params: {lr: 0.5}}, bf16: {enabled: "
      "true}, "
      "zero_optimization: {stage: 2}}";
  Loaded loaded = load(text);
  CHECK(loaded.overridden.empty());
  CHECK(loaded.options.optimisation.schedule.rate == 0.5);
  CHECK(loaded.options.given.count("--lr") == 1);
  loaded = load(text, tools::Compat::v0_19, false, {"--lr", "--strategy", "--precision"});
  CHECK(loaded.overridden == std::vector<std::string>{"optimizer.params.lr (--lr)",
                                                      "bf16.enabled (--precision)",
                                                      "zero_optimization.stage (--strategy)"});
  CHECK(loaded.options.optimisation.schedule.rate == 5e-4);
  CHECK(loaded.options.optimisation.engine.stage == 0);
  CHECK(loaded.options.optimisation.engine.compute == DType::f32);
}

TEST_CASE("config: auto is filled from flags and the model, as accelerate fills it") {
  const std::string text =
      "{train_batch_size: \"auto\", train_micro_batch_size_per_gpu: \"auto\", "
      "gradient_clipping: \"auto\", optimizer: {type: \"AdamW\", params: {lr: \"auto\", "
      "weight_decay: \"auto\"}}, scheduler: {type: \"WarmupDecayLR\", params: {warmup_min_lr: "
      "\"auto\", warmup_max_lr: \"auto\", warmup_num_steps: \"auto\", total_num_steps: \"auto\"}}, "
      "zero_optimization: {stage: 3, reduce_bucket_size: \"auto\", stage3_prefetch_bucket_size: "
      "\"auto\", stage3_param_persistence_threshold: \"auto\"}}";
  const Loaded loaded = load(text);
  const tools::TrainOptions &options = loaded.options, defaults;
  CHECK(options.batch.micro == 64);
  CHECK(!options.batch.train);
  CHECK(options.optimisation.engine.clip_norm == defaults.optimisation.engine.clip_norm);
  CHECK(options.optimisation.schedule.rate == defaults.optimisation.schedule.rate);
  CHECK(options.optimisation.engine.adam.weight_decay ==
        defaults.optimisation.engine.adam.weight_decay);
  CHECK(options.optimisation.engine.adam.beta2 == 0.999f);    // not "auto": DeepSpeed's default
  CHECK(options.optimisation.schedule.total_num_steps == 0);  // the run's
  CHECK(options.buckets.reduce_per_square == 1.0);
  CHECK(options.buckets.prefetch_per_square == 0.9);
  CHECK(options.buckets.persistence_per_width == 10.0);
  const Loaded with_flag =
      load(text, tools::Compat::v0_19, false, {"--reduce-bucket-size", "--lr"});
  CHECK(with_flag.options.buckets.reduce_per_square == 0.0);
  CHECK(with_flag.overridden.empty());
}

}  // namespace zg::testing
