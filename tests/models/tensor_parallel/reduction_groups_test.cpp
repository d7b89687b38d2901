#include "tests/models/gpt/gpt_case.h"
#include "tests/models/tensor_parallel/parallel_training.h"
#include "tests/support/cover.h"
#include "tests/support/error_message.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

constexpr int four_groups = 4;

/// Widths and a vocabulary that the groups do not divide.
GPTConfig uneven(GPTConfig config) {
  config.layers = 2;
  config.heads = 8;
  config.width = 24;
  config.vocabulary = 13;
  config.block_size = 8;
  config.dropout = 0.0f;
  return config;
}

GPTConfig grouped_llama() {
  GPTConfig config = GPTConfig::of(Family::llama);
  config.layers = 2;
  config.heads = 8;
  config.kv_heads = 4;
  config.head_size = 4;
  config.width = 16;
  config.hidden = 26;
  config.vocabulary = 13;
  config.block_size = 8;
  return config;
}

std::vector<GPTConfig> grouped_decoders() {
  GPTConfig gpt = uneven(tiny_config()), tied = gpt;
  tied.tied = true;
  return {gpt, tied, uneven(tiny_bloom()), grouped_llama()};
}

Training grouped_training(const GPTConfig& config, const TrainingSetting& setting) {
  return trained_on_ranks(setting, [&](ParameterStore& store, const Mesh& mesh) -> LossOfStep {
    const auto gpt = std::make_shared<GPT>(
        store, config, GPTPart{.mesh = &mesh, .reduction_groups = setting.groups});
    return [&config, &setting, gpt](Tape& tape, int step) {
      const auto seed = static_cast<uint64_t>(2 * step);
      const Tensor ids = random_ids(3, config.block_size, config.vocabulary, tape.device(), seed);
      Tensor targets = random_ids(3, config.block_size, config.vocabulary, tape.device(), seed + 1);
      targets.data<int32_t>()[4] = -1;
      return gpt->loss(tape, ids, targets, {.seed = 5, .step = step, .first_sample = 3 * step},
                       setting.checkpointing);
    };
  });
}

void check_same_bits(const Training& a, const Training& b) {
  CHECK(a.replicas_agree);
  CHECK(same_doubles(a.losses, b.losses));
  for (const auto& [name, values] : b.gradients) {
    CAPTURE(name);
    CHECK(same_doubles(a.gradients.at(name), values));
  }
  for (const auto& [name, values] : b.weights) {
    CAPTURE(name);
    CHECK(same_doubles(a.weights.at(name), values));
  }
}

}  // namespace

TEST_CASE("with reduction groups every number of tensor ranks trains with the same bits") {
  for_cover(
      [](const GPTConfig& config, DType dtype, bool checkpointing) {
        TrainingSetting setting{
            .dtype = dtype, .checkpointing = checkpointing, .steps = 3, .groups = four_groups};
        const Training whole = grouped_training(config, setting);
        CHECK(whole.losses.back() != whole.losses.front());
        for (const int ranks : {2, 4}) {
          INFO(text_of(config), ", ", name_of(dtype), ", checkpointing ", checkpointing, ", ranks ",
               ranks);
          setting.ranks = ranks;
          check_same_bits(grouped_training(config, setting), whole);
        }
      },
      grouped_decoders(), std::vector{DType::f32, DType::bf16}, std::array{false, true});
}

TEST_CASE("with reduction groups the blocks of rows of a long loss do not depend on the ranks") {
  constexpr int64_t vocabulary = 13, rows = 45000, width = 3;
  const auto on_ranks = [&](int count) {
    std::vector<double> losses, dx, dweight(vocabulary * width);
    run_local(count, [&](Communicator& ranks, const Device& device) {
      const TensorParallel parallel{.ranks = &ranks, .groups = four_groups};
      const auto [begin, own] = rows_of_rank(vocabulary, parallel);
      Tape tape(device);
      const Tensor whole = random_tensor({vocabulary, width}, DType::f32, device, 1);
      const Var x = tape.variable(random_tensor({1, rows, width}, DType::f32, device, 2));
      const Var weight = tape.variable(whole.slice(begin, begin + own));
      const Var loss = parallel_projection_cross_entropy(
          x, weight, random_ids(1, rows, vocabulary, device, 3), vocabulary, parallel);
      tape.backward(loss);
      const std::vector<double> part = tape.gradient(weight).to_doubles();
      std::ranges::copy(part, dweight.begin() + begin * width);
      if (ranks.rank() > 0) return;
      losses = {loss.value().item()};
      dx = tape.gradient(x).to_doubles();
    });
    return std::tuple(losses, dx, dweight);
  };
  const auto one = on_ranks(1);
  for (const int count : {2, 4}) {
    CAPTURE(count);
    CHECK((on_ranks(count) == one));
  }
}

TEST_CASE("with reduction groups a bias has the same gradient for every number of tensor ranks") {
  constexpr int64_t rows = 5000, features = 64;
  const auto on_ranks = [&](int count) {
    std::vector<double> gradient(features);
    run_local(count, [&](Communicator& ranks, const Device& device) {
      const TensorParallel parallel{.ranks = &ranks, .groups = four_groups};
      const auto [begin, own] = rows_of_rank(features, parallel);
      Tape tape(device);
      const Var x(random_tensor({1, rows, 2}, DType::f64, device, 1));
      const Tensor weight = Tensor::full({own, 2}, 1.0, DType::f64, device);
      // Divided by 3, so that the sums are not exact.
      const Tensor dy =
          div(Var(random_tensor({features, rows}, DType::f64, device, 2)), 3.0).value();
      const Var bias = tape.variable(Tensor::zeros({own}, DType::f64, device));
      const Var y = column_parallel_linear(x, Var(weight), bias, parallel, features);
      const Tensor seed = transpose(Var(dy.slice(begin, begin + own)), 0, 1).value();
      tape.backward(std::span(&y, 1), std::vector{seed.view({1, rows, own})});
      std::ranges::copy(tape.gradient(bias).to_doubles(), gradient.begin() + begin);
    });
    return gradient;
  };
  const std::vector<double> one = on_ranks(1);
  for (const int count : {2, 4}) {
    CAPTURE(count);
    CHECK(same_doubles(on_ranks(count), one));
  }
}

TEST_CASE("training with reduction groups is close to training without") {
  for (const GPTConfig& config : grouped_decoders()) {
    CAPTURE(text_of(config));
    check_near(grouped_training(config, {.ranks = 2, .groups = four_groups}),
               grouped_training(config, {}), 1e-5, 1e-4);
    check_same_bits(grouped_training(config, {.steps = 3, .groups = 1}),
                    grouped_training(config, {.steps = 3}));
  }
}

TEST_CASE("reduction groups that do not fit the model or the ranks are refused by name") {
  const GPTConfig config = grouped_llama();
  CHECK_ERROR(ConfigError,
              "gpt: reduction groups: expected a power of two that 1 tensor ranks divide, got 3",
              grouped_training(config, {.groups = 3}));
  CHECK_ERROR(ConfigError,
              "gpt: reduction groups: expected a power of two that 4 tensor ranks divide, got 2",
              grouped_training(config, {.ranks = 4, .groups = 2}));
  CHECK_ERROR(ConfigError,
              "gpt: reduction groups: expected a divisor of the 4 key-value heads (1, 2, 4), got 8",
              grouped_training(config, {.groups = 8}));
  GPTConfig normed = config;
  normed.query_key_norm = true;
  CHECK_ERROR(Unsupported, "attention: a norm of queries and keys with 4 reduction groups",
              grouped_training(normed, {.groups = 4}));
}
