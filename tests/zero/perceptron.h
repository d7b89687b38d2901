#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/trainer.h"

namespace zg::testing {

using zero::MicroBatch;
using zero::Trainer;
using zero::TrainerHooks;
using zero::TrainerOptions;
using zero::TrainerTask;
using zero::TrainingEnd;

inline constexpr int64_t width = 12;

/// Sample `i` of the data: the same numbers on every rank.
inline Tensor samples(int64_t first, int64_t count, const Device& device) {
  std::vector<float> values(static_cast<size_t>(count * width));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        std::sin(0.37 * static_cast<double>(first * width + static_cast<int64_t>(i))));
  return Tensor::from(values, {count, width}, device);
}

/// A perceptron of two layers; a stage of a pipeline has one of them.
struct Net {
  ParameterStore store;
  const Unit *low = nullptr, *high = nullptr;
  const Parameter *first = nullptr, *second = nullptr;

  explicit Net(int stage = 0, int stages = 1) {
    if (stage == 0) {
      low = &store.unit("low");
      first = &store.add(*low, "first", {width, width}, Init::normal(0.3f), {.decay = true});
    }
    if (stage + 1 == stages) {
      high = &store.unit("high");
      second = &store.add(*high, "second", {5, width}, Init::normal(0.3f), {.decay = true});
    }
  }
  Var forward(Tape& tape, const Tensor& x, const Var& input) const {
    Var hidden = input;
    if (low) {
      const Tape::Use use(tape, *low);
      const Var weight = tape.parameter(*first);
      hidden = tanh(linear(cast(x, weight.value().dtype()), weight));
    }
    if (!high) return hidden;
    const Tape::Use use(tape, *high);
    const Var out = linear(hidden, tape.parameter(*second));
    return mean(cast(out, DType::f32) * cast(out, DType::f32));
  }
};

inline TrainerTask task_of(const Net& net, const Device& device) {
  return {.batch =
              [device](const MicroBatch& batch) {
                return std::vector<Tensor>{samples(batch.first_sample, batch.samples, device)};
              },
          .forward =
              [&net](Tape& tape, const MicroBatch& batch) {
                return net.forward(tape, batch.tensors[0], batch.input);
              },
          .stage_output =
              [](int64_t count) {
                return StageOutput{{count, width}, DType::f32};
              }};
}

struct Job {
  int world = 1;
  zero::Config engine = {};
  TrainerOptions options = {};
  std::string resume = {};
  TrainerHooks hooks = {};  // shared by the ranks
};

struct Outcome {
  std::string hash;
  TrainingEnd end;
  bool resumed = false;
  zero::TrainerPosition position;
  std::vector<double> losses;  // recorded by rank 0
};

inline Program program_of(const Job& job, Outcome& outcome) {
  return [&job, &outcome](Communicator& ranks, const Device& device) {
    const Net net;
    zero::Engine engine(net.store, ranks, device, job.engine);
    TrainerHooks hooks = job.hooks;
    std::vector<double> losses;
    hooks.after_step = [&](const zero::TrainedStep& step) {
      losses.push_back(step.loss);
      if (job.hooks.after_step) job.hooks.after_step(step);
    };
    Trainer trainer(engine, job.options, task_of(net, device), hooks);
    const bool resumed = !job.resume.empty() && trainer.resume(job.resume);
    const TrainingEnd end = trainer.run();
    const std::string hash = engine.parameter_hash();
    if (ranks.rank() == 0) outcome = {hash, end, resumed, trainer.position(), losses};
  };
}

inline Outcome run(const Job& job) {
  Outcome outcome;
  run_ranks(job.world, program_of(job, outcome));
  return outcome;
}

inline TrainerOptions ten_steps() {
  return {.micro_batch = 2,
          .accumulation = 2,
          .steps = 10,
          .schedule = {.kind = zero::ScheduleKind::cosine,
                       .rate = 1e-2,
                       .warmup_num_steps = 3,
                       .total_num_steps = 10}};
}

/// For TEST_CASE_FIXTURE: options to change, and a folder for checkpoints.
struct TenSteps {
  const TemporaryFolder folder = {};
  TrainerOptions options = ten_steps();
};

/// The same with an engine of one rank.
struct NetEngine : TenSteps {
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine{net.store, device};
};

}  // namespace zg::testing
