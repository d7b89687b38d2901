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
  config.dropout = 0.1f;
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
  config.dropout = 0.1f;
  return config;
}

std::vector<GPTConfig> grouped_decoders() {
  GPTConfig gpt = uneven(tiny_config()), tied = gpt, normed = grouped_llama();
  tied.tied = true;
  normed.query_key_norm = true;
  return {gpt, tied, uneven(tiny_bloom()), grouped_llama(), normed};
}

Training grouped_training(const GPTConfig& config, const TrainingSetting& setting,
                          int64_t samples = 3, const LoraConfig& lora = {}) {
  return trained_on_ranks(setting, [&](ParameterStore& store, const Mesh& mesh) -> LossOfStep {
    const auto gpt = std::make_shared<GPT>(store, config,
                                           GPTPart{.mesh = &mesh,
                                                   .sequence_parallel = setting.sequence,
                                                   .reduction_groups = setting.groups},
                                           lora);
    return [&config, &setting, gpt, samples](Tape& tape, int step) {
      const auto seed = static_cast<uint64_t>(2 * step);
      const Tensor ids =
          random_ids(samples, config.block_size, config.vocabulary, tape.device(), seed);
      Tensor targets =
          random_ids(samples, config.block_size, config.vocabulary, tape.device(), seed + 1);
      targets.data<int32_t>()[4] = -1;
      return gpt->loss(tape, ids, targets,
                       {.seed = 5, .step = step, .first_sample = samples * step},
                       setting.checkpointing);
    };
  });
}

void check_same_bits(const Training& a, const Training& b) {
  CHECK(a.replicas_agree);
  CHECK(same_bits(a.losses, b.losses));
  for (const auto& [name, values] : b.gradients) {
    INFO("gradient of ", name);
    CHECK(same_bits(a.gradients.at(name), values));
  }
  for (const auto& [name, values] : b.weights) {
    INFO("weights of ", name);
    CHECK(same_bits(a.weights.at(name), values));
  }
}

}  // namespace

TEST_CASE("with reduction groups tensor ranks and sequence parallelism change no bit of training") {
  for_cover(
      [](const GPTConfig& config, DType dtype, bool checkpointing) {
        TrainingSetting setting{
            .dtype = dtype, .checkpointing = checkpointing, .steps = 3, .groups = four_groups};
        const Training whole = grouped_training(config, setting);
        CHECK(whole.losses.back() != whole.losses.front());
        for (const int ranks : {2, 4})
          for (const bool sequence : {false, true}) {
            INFO(text_of(config), ", ", name_of(dtype), ", checkpointing ", checkpointing,
                 ", ranks ", ranks, ", sequence ", sequence);
            setting.ranks = ranks;
            setting.sequence = sequence;
            check_same_bits(grouped_training(config, setting), whole);
          }
      },
      grouped_decoders(), std::vector{DType::f32, DType::bf16, DType::f16},
      std::array{false, true});
}

TEST_CASE("with reduction groups the sums over many samples do not depend on the ranks' tokens") {
  constexpr int64_t samples = 200;
  GPTConfig config = uneven(tiny_config());
  config.layers = 1;
  config.width = 128;
  TrainingSetting setting{.dtype = DType::f64, .steps = 1, .groups = four_groups};
  const Training whole = grouped_training(config, setting, samples);
  setting.ranks = 4;
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    setting.sequence = sequence;
    check_same_bits(grouped_training(config, setting, samples), whole);
  }
}

TEST_CASE("with reduction groups the blocks of rows of a long loss do not depend on the ranks") {
  constexpr int64_t vocabulary = 13, rows = 45000, width = 3;
  const auto on_ranks = [&](int count, bool sequence) {
    std::vector<double> losses, dx(rows * width), dweight(vocabulary * width);
    run_local(count, [&](Communicator& ranks, const Device& device) {
      const TensorParallel parallel{.ranks = &ranks, .sequence = sequence, .groups = four_groups};
      const auto [begin, own] = rows_of_rank(vocabulary, parallel);
      Tape tape(device);
      const Tensor whole = random_tensor({vocabulary, width}, DType::f32, device, 1);
      const int64_t tokens = sequence ? rows / count : rows,
                    first = sequence ? ranks.rank() * tokens : 0;
      const Tensor all = random_tensor({rows, width}, DType::f32, device, 2);
      const Var x = tape.variable(all.slice(first, first + tokens).view({1, tokens, width}));
      const Var weight = tape.variable(whole.slice(begin, begin + own));
      const Var loss = parallel_projection_cross_entropy(
          x, weight, random_ids(1, rows, vocabulary, device, 3), vocabulary, parallel);
      tape.backward(loss);
      const std::vector<double> part = tape.gradient(weight).to_doubles();
      std::ranges::copy(part, dweight.begin() + begin * width);
      if (ranks.rank() > 0 && !sequence) return;
      std::ranges::copy(tape.gradient(x).to_doubles(), dx.begin() + first * width);
      if (ranks.rank() == 0) losses = {loss.value().item()};
    });
    return std::tuple(losses, dx, dweight);
  };
  const auto one = on_ranks(1, false);
  for (const int count : {2, 4})
    for (const bool sequence : {false, true}) {
      INFO("count ", count, ", sequence ", sequence);
      CHECK((on_ranks(count, sequence) == one));
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
    CHECK(same_bits(on_ranks(count), one));
  }
}

TEST_CASE(
    "with reduction groups adapters have the same bits on any tensor ranks, and are near those "
    "without") {
  const LoraConfig lora{.rank = 3, .dropout = 0.1f, .targets = {all_linear}};
  for (const GPTConfig& config : {uneven(tiny_config()), grouped_llama()})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto train = [&](const TrainingSetting& setting) {
        return grouped_training(config, setting, 3, lora);
      };
      const Training whole = train({.dtype = dtype, .steps = 3, .groups = four_groups});
      REQUIRE(!whole.gradients.empty());
      if (dtype == DType::f32) check_near(whole, train({.steps = 3}), 1e-5, 1e-4);
      for (const int ranks : {2, 4})
        for (const bool sequence : {false, true}) {
          INFO(text_of(config), ", ", name_of(dtype), ", ranks ", ranks, ", sequence ", sequence);
          check_same_bits(train({.ranks = ranks,
                                 .sequence = sequence,
                                 .dtype = dtype,
                                 .steps = 3,
                                 .groups = four_groups}),
                          whole);
        }
    }
}

TEST_CASE("training with reduction groups is close to training without") {
  for (const GPTConfig& config : grouped_decoders()) {
    CAPTURE(text_of(config));
    const Training plain = grouped_training(config, {});
    for (const bool sequence : {false, true})
      check_near(
          grouped_training(config, {.ranks = 2, .sequence = sequence, .groups = four_groups}),
          plain, 1e-5, 1e-4);
    check_same_bits(grouped_training(config, {.steps = 3, .groups = 1}),
                    grouped_training(config, {.steps = 3}));
  }
}

TEST_CASE(
    "learned positions of packed documents are refused with groups and sequence parallelism") {
  const GPTConfig config = uneven(tiny_config());
  CHECK_ERROR(Unsupported,
              "positions 'transformer.wpe': packed documents with 4 reduction groups and sequence "
              "parallelism; expected two of the three",
              run_local(2, [&](Communicator& world, const Device& device) {
                const Mesh mesh(world, {.tensor = 2});
                ParameterStore store;
                const GPT gpt(store, config,
                              {.mesh = &mesh, .sequence_parallel = true, .reduction_groups = 4});
                FakeSource source(store, device, DType::f32);
                Tape tape(device, &source);
                const Tensor ids = Tensor::zeros({1, 8}, DType::i32, device);
                gpt.loss(tape, ids, ids, {}, false, {.starts = ids, .positions = ids});
              }));
}

TEST_CASE("reduction groups that do not fit the model or the ranks are refused by name") {
  const GPTConfig config = grouped_llama();
  CHECK_ERROR(ConfigError,
              "gpt: 3 reduction groups with 1 tensor ranks; expected a power of two of groups that "
              "the ranks divide; try 4 groups, or other tensor ranks",
              grouped_training(config, {.groups = 3}));
  CHECK_ERROR(ConfigError,
              "gpt: 2 reduction groups with 4 tensor ranks; expected a power of two of groups that "
              "the ranks divide; try 4 groups, or other tensor ranks",
              grouped_training(config, {.ranks = 4, .groups = 2}));
  CHECK_ERROR(ConfigError,
              "gpt: reduction groups: expected a divisor of the 4 key-value heads (1, 2, 4), got 8",
              grouped_training(config, {.groups = 8}));
  GPTConfig short_of_two = config;
  short_of_two.block_size = 6;
  CHECK_ERROR(
      ConfigError,
      "gpt: reduction groups: expected a divisor of the 6 positions of the block size (1, 2, "
      "3, 6), got 4",
      grouped_training(short_of_two, {.groups = 4}));
  GPTConfig fused = config;
  fused.family = Family::phi3;
  CHECK_ERROR(Unsupported,
              "attention: one matrix for grouped queries, keys and values with 4 reduction groups; "
              "expected one: its parts have different sizes",
              grouped_training(fused, {.groups = 4}));
}
