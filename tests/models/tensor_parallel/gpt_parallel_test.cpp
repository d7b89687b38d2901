#include <cmath>
#include <memory>
#include <utility>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/tensor_parallel/parallel_training.h"
#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "zerograd/models/gpt/generate.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

/// Dropout, four heads, and a vocabulary that neither two nor four ranks divide.
GPTConfig shared_gpt() {
  GPTConfig config = tiny_config();
  config.heads = 4;
  config.width = 16;
  config.vocabulary = 13;
  config.block_size = 8;
  config.dropout = 0.1f;
  return config;
}

/// Twelve heads, not a power of two: ALiBi's other formula for slopes.
GPTConfig shared_bloom() {
  GPTConfig config = tiny_bloom();
  config.heads = 12;
  config.width = 24;
  config.vocabulary = 13;
  config.block_size = 8;
  config.dropout = 0.1f;
  return config;
}

std::vector<GPTConfig> shared_decoders() {
  GPTConfig tied = shared_gpt();
  tied.tied = true;
  return {shared_gpt(), tied, shared_bloom()};
}

/// Gives the second matrices of adapters, which begin as zeros, values that depend on the element
/// alone, and not on the rank that has it.
void fill_adapters(const ParameterStore& store, FakeSource& source) {
  for (const auto& parameter : store.parameters()) {
    if (!parameter->name.ends_with("lora_B.weight")) continue;
    std::vector<float> values(static_cast<size_t>(parameter->shape.numel()));
    const Slice& slice = parameter->slice;
    for (int64_t i = 0; i < slice.numel(); ++i)
      initialise(Init::normal(0.3f), 1, parameter->name, slice.whole_index(i),
                 std::span(&values[static_cast<size_t>(i)], 1));
    source.at_rest(*parameter).assign(values.begin(), values.end());
  }
}

/// Gradient descent on batches of three samples.
Training trained(const GPTConfig& config, const TrainingSetting& setting,
                 const LoraConfig& lora = {}) {
  return trained_on_ranks(setting, [&](ParameterStore& store, const Mesh& mesh) -> LossOfStep {
    const auto gpt = std::make_shared<GPT>(
        store, config, GPTPart{.mesh = &mesh, .sequence_parallel = setting.sequence}, lora);
    return [&config, &setting, gpt](Tape& tape, int step) {
      const Device device = tape.device();
      const auto seed = static_cast<uint64_t>(2 * step);
      const Tensor ids = random_ids(3, config.block_size, config.vocabulary, device, seed);
      Tensor targets = random_ids(3, config.block_size, config.vocabulary, device, seed + 1);
      targets.data<int32_t>()[4] = -1;
      const ForwardPosition place{.seed = 5, .step = step, .first_sample = 3 * step};
      return gpt->loss(tape, ids, targets, place, setting.checkpointing);
    };
  });
}

/// A small decoder with rotary positions.
GPTConfig small_decoder(Family family) {
  GPTConfig config = GPTConfig::of(family);
  config.layers = 2;
  config.heads = config.kv_heads = config.head_size = 4;
  config.width = 16;
  config.vocabulary = 13;
  config.block_size = 8;
  if (config.rotated_share < 1.0) config.rotated_share = 0.5;
  if (config.window_period > 0) {
    config.window_period = 2;
    config.window = 3;
  }
  return config;
}

}  // namespace

TEST_CASE("a structure that tensor ranks cannot divide is Unsupported") {
  GPTConfig grouped = small_decoder(Family::phi3);
  grouped.kv_heads = 2;
  for (const auto& [config, why] :
       {std::pair(small_decoder(Family::olmo2),
                  "attention: a norm of all heads' queries and keys "
                  "with 2 tensor ranks; expected one"),
        std::pair(grouped,
                  "attention: one matrix for grouped queries, keys and values with 2 "
                  "tensor ranks; expected one")})
    CHECK_ERROR(Unsupported, why, trained(config, {.ranks = 2}));
}

TEST_CASE("adapters on tensor ranks train as on one rank, also with sequence parallelism") {
  const LoraConfig lora{.rank = 3, .dropout = 0.2f, .targets = {"all-linear"}};
  for_cover(
      [&](const GPTConfig& config, int ranks, bool sequence) {
        INFO(text_of(config), ", ranks ", ranks, ", sequence ", sequence);
        // In f32 the rounding of so many steps grows above any useful limit.
        TrainingSetting setting{.dtype = DType::f64, .steps = 8, .prepare = fill_adapters};
        const Training whole = trained(config, setting, lora);
        CHECK(whole.losses.back() != whole.losses.front());
        setting.ranks = ranks;
        setting.sequence = sequence;
        check_near(trained(config, setting, lora), whole, 1e-9, 1e-12);
      },
      std::vector{shared_gpt(), shared_bloom(), small_decoder(Family::llama),
                  small_decoder(Family::gpt_neox), small_decoder(Family::gemma3),
                  small_decoder(Family::phi3)},
      std::vector{2, 4}, std::array{false, true});
}

TEST_CASE("tensor ranks train with dropout as one rank does, also with sequence parallelism") {
  for_cover(
      [](const GPTConfig& config, DType dtype, int ranks, bool sequence) {
        INFO(text_of(config), ", ", name_of(dtype), ", ranks ", ranks, ", sequence ", sequence);
        const bool is_wide = dtype == DType::f32;
        const Training whole = trained(config, {.dtype = dtype});
        CHECK(whole.losses.back() != whole.losses.front());
        check_near(trained(config, {ranks, sequence, dtype}), whole, is_wide ? 1e-5 : 2e-2,
                   is_wide ? 1e-4 : 5e-2);
      },
      shared_decoders(), std::vector{DType::f32, DType::bf16}, std::vector{2, 4},
      std::array{false, true});
}

TEST_CASE("one tensor parallel rank gives the same loss bits as no tensor parallelism") {
  for (const GPTConfig& config : shared_decoders()) {
    CAPTURE(text_of(config));
    GPTCase model(config);
    const Tensor ids = random_ids(2, 8, 13, model.device, 1);
    const double expected = model.loss(ids, ids);
    run_local(1, [&](Communicator& world, const Device& device) {
      const Mesh mesh(world, {});
      ParameterStore store;
      const GPT gpt(store, config, {.mesh = &mesh, .sequence_parallel = true});
      FakeSource source(store, device, DType::f32);
      Tape tape(device, &source);
      CHECK(gpt.loss(tape, random_ids(2, 8, 13, device, 1), random_ids(2, 8, 13, device, 1), {})
                .value()
                .item() == expected);
    });
  }
}

TEST_CASE("checkpointing gives tensor ranks the same bits") {
  for (bool sequence : {false, true}) {
    CAPTURE(sequence);
    const GPTConfig config = shared_bloom();
    const Training plain = trained(config, {.ranks = 2, .sequence = sequence, .steps = 2});
    const Training again =
        trained(config, {.ranks = 2, .sequence = sequence, .checkpointing = true, .steps = 2});
    CHECK(same_bits(plain.losses, again.losses));
    CHECK(plain.gradients == again.gradients);
  }
}

TEST_CASE("tensor and pipeline ranks give the losses of chosen tokens that one rank gives") {
  for (const GPTConfig& config : shared_decoders()) {
    CAPTURE(text_of(config));
    const std::vector<int32_t> places{3, 6, 7, 11}, targets{12, 0, 5, 9};
    const auto losses_of = [&](const GPT& gpt, Tape& tape, const Device& device) {
      const Tensor ids = random_ids(2, 7, 13, device, 1);
      const Tensor where = Tensor::from(places, {1, 4}, device);
      const Tensor wanted = Tensor::from(targets, {1, 4}, device);
      return gpt.losses_at(tape, ids, where, wanted).to_doubles();
    };
    GPTCase model(config, Device::cpu(), DType::f32, /*spread=*/15.0);
    Tape tape = model.tape(TapeMode::inference);
    const std::vector<double> expected = losses_of(model.gpt, tape, model.device);
    for (const MeshShape& shape : {MeshShape{.pipeline = 2}, MeshShape{.tensor = 2}}) {
      CAPTURE(shape.pipeline);
      std::vector<std::vector<double>> of_ranks(2);
      run_local(2, [&](Communicator& world, const Device& device) {
        const Mesh mesh(world, shape);
        ParameterStore store;
        const GPT gpt(store, config, part_of(mesh, config, DType::f32, shape.tensor > 1));
        FakeSource source(store, device, DType::f32);
        spread_weights(store, source, 15.0);
        Tape on(device, &source, TapeMode::inference);
        of_ranks[static_cast<size_t>(world.rank())] = losses_of(gpt, on, device);
      });
      for (const std::vector<double>& own : of_ranks) {
        REQUIRE(own.size() == 4);
        for (size_t i = 0; i < 4; ++i) CHECK(own[i] == doctest::Approx(expected[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("tensor parallel ranks give the whole model's logits and generate the same tokens") {
  for (const GPTConfig& config : shared_decoders()) {
    CAPTURE(text_of(config));
    GPTCase model(config, Device::cpu(), DType::f32, /*spread=*/15.0);
    const std::vector<std::vector<int32_t>> prompts{{3, 1, 12}, {0, 5, 7}};
    Tape tape = model.tape(TapeMode::inference);
    const std::vector<double> logits =
        model.gpt.logits(tape, random_ids(2, 7, 13, model.device, 1)).value().to_doubles();
    const auto expected = generate(model.gpt, [&] { return model.tape(TapeMode::inference); },
                                   prompts, 8, {.temperature = 0.0});
    for (int ranks : {2, 4}) {
      CAPTURE(ranks);
      std::vector<std::vector<double>> of_ranks(static_cast<size_t>(ranks));
      std::vector<std::vector<std::vector<int32_t>>> tokens(static_cast<size_t>(ranks));
      run_local(ranks, [&](Communicator& world, const Device& device) {
        const Mesh mesh(world, {.tensor = ranks});
        ParameterStore store;
        // Seven tokens, which the ranks do not divide. Only a loss pass splits tokens.
        const GPT gpt(store, config, {.mesh = &mesh, .sequence_parallel = true});
        FakeSource source(store, device, DType::f32);
        spread_weights(store, source, 15.0);
        const auto place = static_cast<size_t>(world.rank());
        Tape on(device, &source, TapeMode::inference);
        of_ranks[place] = gpt.logits(on, random_ids(2, 7, 13, device, 1)).value().to_doubles();
        tokens[place] = generate(gpt, [&] { return Tape(device, &source, TapeMode::inference); },
                                 prompts, 8, {.temperature = 0.0});
      });
      for (int rank = 0; rank < ranks; ++rank) {
        CAPTURE(rank);
        const std::vector<double>& own = of_ranks[static_cast<size_t>(rank)];
        REQUIRE(own.size() == logits.size());
        double worst = 0.0;
        for (size_t i = 0; i < own.size(); ++i)
          worst = std::fmax(worst, std::fabs(own[i] - logits[i]));
        CHECK(worst < 1e-4);  // logits up to about 10 in f32
        CHECK(tokens[static_cast<size_t>(rank)] == expected);
      }
    }
  }
}

namespace {

Account account_of_a_step(Communicator& world, const Device& device, bool sequence,
                          bool checkpointing, int groups) {
  const Mesh mesh(world, {.tensor = world.size()});
  ParameterStore store;
  const GPT gpt(store, shared_bloom(),
                {.mesh = &mesh, .sequence_parallel = sequence, .reduction_groups = groups});
  Values source(store, normal_weights(store, 0.1f), device, {.compute = DType::bf16});
  const Tensor ids = Tensor::full({3, 8}, 12, DType::i32, device);
  Tape tape(device, &source);
  tape.backward(gpt.loss(tape, ids, ids, {}, checkpointing));
  return {device, *mesh.tensor};
}

}  // namespace

TEST_CASE("a step of tensor ranks on a meta device counts the memory and messages of a real one") {
  for (int count : {2, 4})
    for (bool sequence : {false, true})
      for (bool checkpointing : {false, true})
        for (int groups : {0, 4}) {
          INFO("count ", count, ", sequence ", sequence, ", checkpointing ", checkpointing,
               ", groups ", groups);
          check_account_on_meta(count, [&](Communicator& world, const Device& device) {
            return account_of_a_step(world, device, sequence, checkpointing, groups);
          });
        }
}

namespace {

/// Bytes that a loss keeps for backward on one of `count` ranks.
int64_t kept_for_backward(int64_t layers, int count, bool sequence, int groups) {
  GPTConfig config = shared_bloom();
  config.layers = layers;
  config.heads = 4;
  config.width = 64;
  config.block_size = 256;
  const Device device = Device::meta(0, {.threads = 1});
  const auto world = counting_communicator(0, count);
  const Mesh mesh(*world, {.tensor = count});
  ParameterStore store;
  const GPT gpt(store, config,
                {.mesh = &mesh, .sequence_parallel = sequence, .reduction_groups = groups});
  Values source(store, normal_weights(store, 0.1f), device, {.compute = DType::bf16});
  const Tensor ids = Tensor::full({2, 256}, 1, DType::i32, device);
  Tape tape(device, &source);
  const int64_t before = device.memory().live();
  const Var loss = gpt.loss(tape, ids, ids, {});
  return device.memory().live() - before;
}

}  // namespace

TEST_CASE("sequence parallel ranks divide evenly all bytes that a layer keeps for backward") {
  for (int groups : {0, 4}) {
    const auto of_a_layer = [&](int count, bool sequence) {
      return kept_for_backward(3, count, sequence, groups) -
             kept_for_backward(2, count, sequence, groups);
    };
    const int64_t whole = of_a_layer(1, false);
    for (int count : {2, 4}) {
      INFO("count ", count, ", groups ", groups);
      CHECK(of_a_layer(count, true) * count == whole);
      CHECK(of_a_layer(count, false) * count > whole);
    }
  }
}

TEST_CASE(
    "GPT refuses tensor ranks that do not divide the heads or the sequence-parallel block size") {
  const auto world = counting_communicator(0, 8);
  const Mesh mesh(*world, {.tensor = 8});
  ParameterStore store;
  CHECK_THROWS_WITH_AS(GPT(store, shared_gpt(), {.mesh = &mesh}),
                       "gpt: tensor ranks: expected a divisor of the 4 heads (1, 2, 4), got 8",
                       ConfigError);
  GPTConfig config = shared_gpt();
  config.heads = 16;
  config.block_size = 12;
  CHECK_THROWS_WITH_AS(GPT(store, config, {.mesh = &mesh, .sequence_parallel = true}),
                       "gpt: sequence parallel: expected a block size that 8 tensor ranks divide, "
                       "got 12",
                       ConfigError);
}

TEST_CASE("the pipeline stage with the head has fewer blocks, by the cost of the head") {
  const GPTConfig config{.layers = 9, .heads = 2, .width = 16, .vocabulary = 600, .block_size = 8};
  CHECK(head_flops(config) == 3.0 * layer_flops(config));
  const std::pair<int64_t, int64_t> layers[] = {{0, 4}, {4, 8}, {8, -1}};
  for (int stage = 0; stage < 3; ++stage) {
    const auto world = counting_communicator(stage, 3);
    const Mesh mesh(*world, {.pipeline = 3});
    const GPTPart part = part_of(mesh, config, DType::f32);
    CHECK(std::pair(part.first_layer, part.end_layer) == layers[stage]);
  }
  const auto world = counting_communicator(0, 10);
  const Mesh ten(*world, {.pipeline = 10});
  CHECK_ERROR(ConfigError, "gpt: pipeline: expected at most the model's 9 layers, got 10 stages",
              part_of(ten, config, DType::f32));
}

TEST_CASE("transformer_parameters counts the whole model's parameters on a tensor parallel rank") {
  const auto world = counting_communicator(1, 2);
  const Mesh mesh(*world, {.tensor = 2});
  ParameterStore store, whole;
  CHECK(GPT(store, shared_bloom(), {.mesh = &mesh}).transformer_parameters() ==
        GPT(whole, shared_bloom()).transformer_parameters());
  CHECK(store.numel() < whole.numel());
}
