#include <doctest/doctest.h>

#include "tools/deepspeed/load.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/zero/deepspeed/hjson.h"

namespace zg::testing {
namespace {

struct Applied {
  tools::TrainOptions options;
  std::vector<std::string> overridden;
};

/// `given`: flags of the command line, which keep their values in `options`.
Applied applied(const std::string& text, tools::TrainOptions options, const Given& given = {}) {
  using namespace zero::deepspeed;
  options.given.insert(given.begin(), given.end());
  Applied loaded{.options = options};
  loaded.overridden = tools::apply_config(
      check_config(read_hjson(text, "c.json"), "c.json", options.config.compat, false),
      loaded.options);
  return loaded;
}

}  // namespace

TEST_CASE("config: a flag that is given overrides its key, a default of a flag never does") {
  const std::string text =
      "{train_batch_size: 8, optimizer: {type: \"Adam\", params: {lr: 0.5}}, bf16: {enabled: "
      "true}, "
      "zero_optimization: {stage: 2}}";
  Applied loaded = applied(text, {});
  CHECK(loaded.overridden.empty());
  CHECK(loaded.options.optimisation.schedule.rate == 0.5);
  CHECK(loaded.options.given.count("--lr") == 1);
  CHECK(loaded.options.defaulted.count("--lr") == 0);
  CHECK(loaded.options.defaulted.count("--betas") == 1);
  loaded = applied(text, {}, {"--lr", "--strategy", "--precision"});
  CHECK(loaded.overridden == std::vector<std::string>{"optimizer.params.lr (--lr)",
                                                      "bf16.enabled (--precision)",
                                                      "zero_optimization.stage (--strategy)"});
  CHECK(loaded.options.optimisation.schedule.rate == 5e-4);
  CHECK(loaded.options.optimisation.engine.stage == 0);
  CHECK(loaded.options.optimisation.engine.compute == DType::f32);
}

TEST_CASE(
    "config: --betas or --adam-beta2 overrides the betas key, and the flag is listed with the "
    "key") {
  const std::string text =
      "{train_batch_size: 8, optimizer: {type: \"Adam\", params: {betas: [0.5, 0.75]}}}";
  CHECK(applied(text, {}, {"--betas"}).overridden ==
        std::vector<std::string>{"optimizer.params.betas (--betas)"});
  const Applied one = applied(text, {}, {"--adam-beta2"});
  CHECK(one.overridden == std::vector<std::string>{"optimizer.params.betas (--adam-beta2)"});
  CHECK(one.options.optimisation.engine.update.beta1 == 0.5f);
  CHECK(one.options.optimisation.engine.update.beta2 == 0.95f);
}

TEST_CASE("config: --cpu-offload overrides offload_optimizer, and offload_param only at stage 3") {
  const auto text = [](int stage) {
    return "{train_batch_size: 8, zero_optimization: {stage: " + std::to_string(stage) +
           ", offload_optimizer: {device: \"none\"}, offload_param: {device: \"none\"}}}";
  };
  tools::TrainOptions options;
  options.offload.cpu_offload = true;
  using Lines = std::vector<std::string>;
  const std::string optimizer = "zero_optimization.offload_optimizer.device (--cpu-offload)";
  CHECK(applied(text(2), options, {"--cpu-offload"}).overridden == Lines{optimizer});
  CHECK(applied(text(3), options, {"--cpu-offload"}).overridden ==
        Lines{optimizer, "zero_optimization.offload_param.device (--cpu-offload)"});
  options.optimisation.engine.stage = 3;
  CHECK(applied(text(2), options, {"--strategy"}).overridden ==
        Lines{"zero_optimization.stage (--strategy)",
              "zero_optimization.offload_optimizer.device (--strategy)",
              "zero_optimization.offload_param.device (--strategy)"});
}

TEST_CASE("config: a key of a config marks the corresponding flag as given") {
  const Applied loaded = applied(
      "{train_batch_size: 8, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 2, "
      "gradient_clipping: 0.5, memory_breakdown: true, fp16: {enabled: true}, data_types: "
      "{grad_accum_dtype: \"fp32\"}, optimizer: {type: \"Adam\"}, scheduler: {type: \"WarmupLR\"}, "
      "checkpoint: {writer: {decoupled: true}}, zero_optimization: {stage: 3, offload_optimizer: "
      "{device: \"nvme\", nvme_path: \"/tmp\"}, offload_param: {device: \"cpu\"}, overlap_comm: "
      "true}, zerograd: {activation_checkpoint: true, offload_gradients: \"cpu\", "
      "offload_activations: \"cpu\"}}",
      {});
  const Given& given = loaded.options.given;
  CHECK(join({given.begin(), given.end()}, " ") ==
        "--activation-checkpoint --adam-eps --async-save --batch-size --betas --clip --dump-memory "
        "--grad-accum --grad-accum-dtype --initial-scale-power --lr --nvme-path "
        "--offload-activations --offload-gradients --offload-optimizer --offload-param --optimizer "
        "--overlap-comm --param-persistence-threshold --precision --prefetch-bucket-size "
        "--reduce-bucket-size --schedule --train-batch-size --warmup-steps --weight-decay "
        "--zero-stage");
  CHECK(loaded.options.offload.nvme_path == "/tmp");
  CHECK(loaded.options.batch.place == "c.json:1:2: train_batch_size: ");
}

}  // namespace zg::testing
