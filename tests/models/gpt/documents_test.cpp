#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/models/gpt/gpt_case.h"
#include "tests/support/error_message.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/trainer.h"

// Documents that share a sequence, and losses that are means over targets.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;

namespace {

/// Decoders with each kind of position, with 12 of them.
std::vector<GPTConfig> document_decoders() {
  GPTConfig llama = GPTConfig::of(Family::llama), window = GPTConfig::of(Family::mistral);
  for (GPTConfig* config : {&llama, &window}) {
    config->layers = 2;
    config->heads = 4;
    config->kv_heads = 2;
    config->width = 16;
    config->hidden = 20;
    config->vocabulary = 7;
  }
  window.window = 3;
  std::vector<GPTConfig> all = tiny_decoders();
  all.push_back(llama);
  all.push_back(window);
  for (GPTConfig& config : all) {
    config.block_size = 12;
    config.dropout = 0.0f;
  }
  return all;
}

/// Two sequences with documents of 5, 4, 2 and 1 and of 3 and 9 tokens.
struct Packed {
  static constexpr int64_t T = 12;
  std::vector<int32_t> ids, starts, positions;

  Packed() {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{5, 4, 2, 1}, {3, 9}}) {
      int32_t first = 0;
      for (const int32_t length : lengths) {
        for (int32_t i = 0; i < length; ++i) {
          starts.push_back(first);
          positions.push_back(i);
          ids.push_back(static_cast<int32_t>((3 * ids.size() * ids.size() + 5) % 7));
        }
        first += length;
      }
    }
  }
  models::Documents documents(const Device& device) const {
    return {.starts = Tensor::from(starts, {2, T}, device),
            .positions = Tensor::from(positions, {2, T}, device)};
  }
};

double packed_loss(GPTCase& model, const Packed& packed, const std::vector<int32_t>& targets) {
  Tape tape = model.tape(TapeMode::inference);
  const Tensor ids = Tensor::from(packed.ids, {2, Packed::T}, model.device);
  const Tensor wanted = Tensor::from(targets, {2, Packed::T}, model.device);
  return model.gpt
      .loss(tape, ids, wanted, {}, /*checkpointing=*/false, packed.documents(model.device))
      .value()
      .item();
}

}  // namespace

TEST_CASE("each token of a packed document has the loss that it has alone, to the bit") {
  const Packed packed;
  for (const GPTConfig& config : document_decoders()) {
    CAPTURE(text_of(config));
    GPTCase model(config, Device::cpu(), DType::f32, 10.0);
    int checked = 0;
    for (size_t at = 0; at < packed.ids.size(); ++at) {
      CAPTURE(at);
      const auto offset = static_cast<int64_t>(at) / Packed::T * Packed::T;
      const int64_t first = offset + packed.starts[at], own = packed.positions[at];
      int64_t length = own + 1;
      while ((first + length) % Packed::T != 0 &&
             packed.positions[static_cast<size_t>(first + length)] > 0)
        ++length;
      // The document begins a batch of the same shape, and padding is a document of its own, as in
      // a dataset of this document alone. For other shapes kernels may add in another order.
      Packed alone;
      for (size_t i = 0; i < alone.ids.size(); ++i) {
        const auto t = static_cast<int64_t>(i);
        const bool is_own = t < length;
        alone.ids[i] = is_own ? packed.ids[static_cast<size_t>(first + t)] : 0;
        alone.starts[i] = static_cast<int32_t>(is_own || t >= Packed::T ? 0 : length);
        alone.positions[i] = static_cast<int32_t>(t % Packed::T) - alone.starts[i];
      }
      std::vector<int32_t> targets(packed.ids.size(), -1), wanted = targets;
      targets[at] = wanted[static_cast<size_t>(own)] = static_cast<int32_t>(at % 7);
      const double expected = packed_loss(model, alone, wanted);
      CHECK(packed_loss(model, packed, targets) == expected);
      checked += 1;
    }
    CHECK(checked == 24);
  }
}

TEST_CASE("packed documents have the gradients of the documents alone") {
  const Packed packed;
  for (const GPTConfig& config : document_decoders()) {
    CAPTURE(text_of(config));
    for (const bool checkpointing : {false, true}) {
      CAPTURE(checkpointing);
      GPTCase together(config, Device::cpu(), DType::f64, 10.0),
          apart(config, Device::cpu(), DType::f64, 10.0);
      std::vector<int32_t> targets = packed.ids;
      for (size_t i = 0; i + 1 < targets.size(); ++i) targets[i] = packed.ids[i + 1];
      const Shape shape{2, Packed::T};
      Tape tape = together.tape();
      const Var loss = together.gpt.loss(tape, Tensor::from(packed.ids, shape, together.device),
                                         Tensor::from(targets, shape, together.device), {},
                                         checkpointing, packed.documents(together.device));
      tape.backward(loss);
      double sum = 0.0;
      std::map<std::string, std::vector<double>> gradients;  // the sums over the documents
      for (size_t at = 0; at < packed.ids.size();) {
        size_t length = 1;
        while (at + length < packed.ids.size() && packed.positions[at + length] > 0) ++length;
        const auto part = [&](const std::vector<int32_t>& all) {
          const auto begin = all.begin() + static_cast<int64_t>(at);
          return Tensor::from(std::vector<int32_t>(begin, begin + static_cast<int64_t>(length)),
                              {1, static_cast<int64_t>(length)}, apart.device);
        };
        Tape own = apart.tape();
        const Tensor ids = part(packed.ids), wanted = part(targets);
        const Var mean = apart.gpt.loss(own, ids, wanted, {});
        own.backward(mul(mean, static_cast<double>(length) / 24.0));
        for (const auto& [parameter, values] : apart.source.gradients) {
          std::vector<double>& all = gradients[parameter->name];
          all.resize(values.size());
          for (size_t i = 0; i < values.size(); ++i) all[i] += values[i];
        }
        sum += mean.value().item() * static_cast<double>(length) / 24.0;
        at += length;
      }
      CHECK(loss.value().item() == doctest::Approx(sum).epsilon(1e-13));
      for (const auto& parameter : together.store.parameters()) {
        CAPTURE(parameter->name);
        const std::vector<double>& got = together.source.gradients[parameter.get()];
        const std::vector<double>& expected = gradients[parameter->name];
        REQUIRE(got.size() == expected.size());
        double worst = 0.0;
        for (size_t i = 0; i < got.size(); ++i)
          worst = std::max(worst, std::fabs(got[i] - expected[i]));
        CHECK(worst < 1e-12);
      }
    }
  }
}

TEST_CASE("documents of another shape or with one tensor alone are refused") {
  GPTCase model(tiny_config());
  const Tensor ids = random_ids(1, 6, 7, model.device, 1);
  const Tensor starts = Tensor::zeros({1, 6}, DType::i32, model.device);
  const auto loss = [&](const models::Documents& documents) {
    Tape tape = model.tape(TapeMode::inference);
    model.gpt.loss(tape, ids, ids, {}, false, documents);
  };
  CHECK(message_of<ConfigError>([&] { loss({.starts = starts}); }) ==
        "gpt: documents: expected both starts and positions, or neither; got starts alone");
  const Tensor other = Tensor::zeros({1, 5}, DType::i32, model.device);
  CHECK(message_of<ShapeError>([&] { loss({.starts = starts, .positions = other}); }) ==
        "gpt: documents: positions [1, 5] do not fit; expected the shape of ids, [1, 6]");
}

TEST_CASE("a micro-batch without targets has a loss of 0 and zero gradients") {
  for (const GPTConfig& config : document_decoders()) {
    CAPTURE(text_of(config));
    GPTCase model(config);
    Tape tape = model.tape();
    const Tensor ids = random_ids(2, 6, 7, model.device, 3);
    const Var loss =
        model.gpt.loss(tape, ids, Tensor::full({2, 6}, -1.0, DType::i32, model.device), {});
    CHECK(loss.value().item() == 0.0);
    tape.backward(loss);
    for (const auto& parameter : model.store.parameters()) {
      CAPTURE(parameter->name);
      for (const double value : model.source.gradients[parameter.get()]) CHECK(value == 0.0);
    }
  }
}

namespace {

/// 24 conversations whose responses have from 1 to 6 tokens, two or three in a sequence of 16.
ConversationDataset uneven_conversations() {
  std::vector<Conversation> all;
  for (int32_t i = 0; i < 24; ++i) {
    Conversation conversation;
    for (int32_t t = 0; t < 3 + i % 6; ++t) {
      conversation.tokens.push_back((i * i + 3 * t) % 7);
      conversation.is_target.push_back(t > 1);
    }
    all.push_back(std::move(conversation));
  }
  return {std::move(all), {}, {.block_size = 12}};
}

struct MeanRun {
  int world = 1, stage = 0;
  int64_t micro_batch = 1, accumulation = 8, steps = 3;
  bool by_token = true;
  int64_t empty_sample = -1;  ///< all its targets are ignored
  double rate = 1e-2;
};
struct MeanOutcome {
  std::string hash;
  std::vector<double> losses, gradient;
};

MeanOutcome run_means(const MeanRun& job) {
  const ConversationDataset data = uneven_conversations();
  MeanOutcome outcome;
  run_local(job.world, [&](Communicator& ranks, const Device& device) {
    GPTConfig config = tiny_config();
    config.block_size = 12;
    config.dropout = 0.0f;
    ParameterStore store;
    const GPT gpt(store, config);
    zero::Engine engine(store, ranks, device, {.stage = job.stage, .clip_norm = 0.0f});
    const auto is_empty = [&](int64_t sample) { return sample == job.empty_sample; };
    zero::TrainerTask task{
        .batch =
            [&](const zero::MicroBatch& batch) {
              const Batch made =
                  data.batch(Split::train, batch.first_sample, batch.samples, device);
              std::vector<int32_t> targets = made.targets.to_host<int32_t>();
              for (int64_t i = 0; i < batch.samples; ++i)
                if (is_empty(batch.first_sample + i)) std::fill_n(targets.begin() + i * 12, 12, -1);
              return std::vector<Tensor>{made.ids,
                                         Tensor::from(targets, {batch.samples, 12}, device),
                                         made.starts, made.positions};
            },
        .forward =
            [&](Tape& tape, const zero::MicroBatch& batch) {
              const std::vector<Tensor>& t = batch.tensors;
              return gpt.loss(tape, t[0], t[1], {}, false, {.starts = t[2], .positions = t[3]});
            }};
    if (job.by_token)
      task.targets = [&](int64_t first, int64_t count) {
        int64_t sum = 0;
        for (int64_t i = first; i < first + count; ++i)
          sum += is_empty(i) ? 0 : data.targets(Split::train, i);
        return sum;
      };
    std::vector<double> losses, gradient;
    zero::TrainerHooks hooks{
        .after_step = [&](const zero::TrainedStep& step) { losses.push_back(step.loss); },
        .observe =
            [&](zero::TrainerMoment moment, const zero::MicroBatch&) {
              if (moment != zero::TrainerMoment::gradients_ready || engine.steps() > 0) return;
              for (const auto& parameter : store.parameters())
                for (const float value : engine.read(*parameter, zero::Engine::State::gradient))
                  gradient.push_back(static_cast<double>(value) /
                                     static_cast<double>(job.accumulation * job.world));
            }};
    zero::Trainer trainer(engine,
                          {.micro_batch = job.micro_batch,
                           .accumulation = job.accumulation,
                           .steps = job.steps,
                           .schedule = {.rate = job.rate}},
                          task, hooks);
    trainer.run();
    const std::string hash = engine.parameter_hash();
    if (ranks.rank() == 0) outcome = {hash, losses, gradient};
  });
  return outcome;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(a[i]));
  }
  return worst / largest;
}

}  // namespace

TEST_CASE("the mean over targets has the gradient of one big batch, however a step is cut") {
  for (const int64_t empty : {int64_t{-1}, int64_t{3}}) {
    CAPTURE(empty);
    const MeanOutcome whole =
        run_means({.micro_batch = 8, .accumulation = 1, .by_token = false, .empty_sample = empty});
    for (const auto& [micro_batch, accumulation] :
         {std::pair(8, 1), std::pair(4, 2), std::pair(2, 4), std::pair(1, 8)}) {
      CAPTURE(micro_batch);
      const MeanOutcome cut = run_means(
          {.micro_batch = micro_batch, .accumulation = accumulation, .empty_sample = empty});
      CHECK(largest_difference(whole.gradient, cut.gradient) < 1e-5);
      CHECK(cut.losses[0] == doctest::Approx(whole.losses[0]).epsilon(1e-6));
    }
    // The mean over micro-batches is another one: targets count unequally.
    const MeanOutcome uneven = run_means({.by_token = false, .empty_sample = empty});
    CHECK(largest_difference(whole.gradient, uneven.gradient) > 1e-2);
    CHECK(std::isfinite(uneven.losses[2]));
  }
}

TEST_CASE("the mean over targets has the loss of one big batch in later steps too") {
  // With this rate the parameters of both runs stay nearly equal.
  const MeanOutcome whole =
      run_means({.micro_batch = 8, .accumulation = 1, .by_token = false, .rate = 1e-7});
  const MeanOutcome cut = run_means({.rate = 1e-7});
  REQUIRE(cut.losses.size() == 3);
  for (size_t step = 0; step < 3; ++step)
    CHECK(cut.losses[step] == doctest::Approx(whole.losses[step]).epsilon(1e-6));
}

TEST_CASE("the mean over targets has the same bits for every number of ranks and stage") {
  const MeanOutcome alone = run_means({.empty_sample = 3});
  CHECK(alone.losses.size() == 3);
  for (const int world : {2, 4})
    for (const int stage : {0, 1, 3}) {
      INFO("world ", world, ", stage ", stage);
      const MeanOutcome shared =
          run_means({.world = world, .stage = stage, .accumulation = 8 / world, .empty_sample = 3});
      CHECK(shared.hash == alone.hash);
      CHECK(shared.losses == alone.losses);
    }
}

TEST_CASE("target_weight is the share of the targets times the micro-batches") {
  CHECK(zero::target_weight({.micro_batch = 3, .step = 12, .micro_batches = 8}) == 2.0);
  CHECK(zero::target_weight({.micro_batch = 0, .step = 12, .micro_batches = 8}) == 0.0);
  CHECK(zero::target_weight({.micro_batch = 0, .step = 0, .micro_batches = 1}) == 0.0);
  for (const zero::StepTargets& bad :
       {zero::StepTargets{13, 12, 1}, zero::StepTargets{-1, 12, 1}, zero::StepTargets{1, 12, 0}})
    CHECK_ERROR(ConfigError, "target_weight: ", zero::target_weight(bad));
}
