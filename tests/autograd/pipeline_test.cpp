#include "zerograd/autograd/pipeline.h"

#include <cmath>
#include <map>
#include <mutex>

#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/error.h"

using namespace zg;

namespace {

constexpr int64_t width = 8;
const Shape between{2, width};

Tensor filled(const Shape& shape, double seed, const Device& device) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(std::sin(seed + 0.7 * static_cast<double>(i)));
  return Tensor::from(values, shape, device);
}

/// A row of layers y = tanh(x W_l) and the mean of the last one's squares; a stage has some of
/// them.
class Layers final : public PipelineStage {
 public:
  Layers(const Mesh& mesh, int layers, const Device& device) : mesh_(mesh), device_(device) {
    const int stages = mesh.shape.pipeline;
    for (int layer = layers * mesh.stage / stages; layer < layers * (mesh.stage + 1) / stages;
         ++layer)
      weights_[layer] = filled({width, width}, layer, device);
  }

  Tape tape() override { return Tape(device_); }
  Var forward(Tape& tape, const Var& input, int64_t micro_batch) override {
    log_ += " F" + std::to_string(micro_batch);
    Var x = input ? input : Var(filled(between, 100.0 + static_cast<double>(micro_batch), device_));
    for (const auto& [layer, weight] : weights_) {
      const Var leaf = tape.variable(weight);
      leaves_[micro_batch].emplace(layer, leaf);
      x = tanh(matmul(x, leaf));
    }
    if (!mesh_.is_last_stage()) return x;
    const Var loss = mean(mul(x, x));
    losses_.push_back(loss.value().device().type() == Device::Type::meta ? 0.0
                                                                         : loss.value().item());
    return loss;
  }
  void backward(Tape& tape, const Var& output, const Tensor& gradient,
                int64_t micro_batch) override {
    log_ += " B" + std::to_string(micro_batch);
    if (gradient)
      tape.backward({&output, 1}, {&gradient, 1});
    else
      tape.backward(output);
    if (device_.type() != Device::Type::meta)
      for (const auto& [layer, leaf] : leaves_.at(micro_batch))
        gradients_[{micro_batch, layer}] = tape.gradient(leaf).to_host<float>();
    leaves_.erase(micro_batch);
  }

  std::map<std::pair<int64_t, int>, std::vector<float>> gradients_;
  std::vector<double> losses_;
  std::string log_;

 private:
  const Mesh& mesh_;
  const Device device_;
  std::map<int, Tensor> weights_;
  std::map<int64_t, std::map<int, Var>> leaves_;
};

struct Outcome {
  std::map<std::pair<int64_t, int>, std::vector<float>> gradients;
  std::vector<double> losses;
  bool operator==(const Outcome&) const = default;
};

Outcome run(int stages, int layers, PipelineSchedule schedule, int64_t micro_batches) {
  Outcome all;
  std::mutex mutex;
  run_local(stages, [&](Communicator& world, const Device& device) {
    Mesh mesh(world, {.pipeline = stages});
    Layers stage(mesh, layers, device);
    const PipelineTimes times =
        run_pipeline(&mesh, schedule, micro_batches, {between, DType::f32}, device, stage);
    std::lock_guard lock(mutex);
    CHECK(times.idle <= times.total);
    CHECK((times.idle > 0.0) == (stages > 1));  // each waits for another one
    std::string expected;
    for (const PipelineAction& action :
         pipeline_actions(schedule, stages, mesh.stage, micro_batches))
      expected += (action.kind == PipelineAction::Kind::forward ? " F" : " B") +
                  std::to_string(action.micro_batch);
    CHECK(stage.log_ == expected);
    all.gradients.merge(stage.gradients_);
    if (mesh.is_last_stage()) all.losses = stage.losses_;
  });
  return all;
}

}  // namespace

TEST_CASE("any number of pipeline stages and both schedules give the gradients of one stage") {
  const Outcome one = run(1, 8, PipelineSchedule::one_f_one_b, 5);
  CHECK(one.gradients.size() == 40);
  for (const int stages : {1, 2, 4})
    for (const PipelineSchedule schedule :
         {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe}) {
      CAPTURE(stages);
      CHECK(run(stages, 8, schedule, 5) == one);
    }
}

TEST_CASE("a pipeline with fewer micro-batches than stages gives the gradients of one stage") {
  CHECK(run(4, 4, PipelineSchedule::one_f_one_b, 1) == run(1, 4, PipelineSchedule::gpipe, 1));
  CHECK(run(4, 4, PipelineSchedule::one_f_one_b, 2) == run(1, 4, PipelineSchedule::gpipe, 2));
}

TEST_CASE(
    "a stage that throws ends the step on all stages with an error that names its rank and "
    "message") {
  for (const int bad : {0, 1, 3}) {
    CAPTURE(bad);
    std::mutex mutex;
    std::vector<std::string> said(4);
    const auto all = [&](Communicator& world, const Device& device) {
      Mesh mesh(world, {.pipeline = 4});
      struct Bad final : PipelineStage {
        Layers inner;
        bool throws;
        Bad(const Mesh& mesh, const Device& device, bool throws)
            : inner(mesh, 4, device), throws(throws) {}
        Tape tape() override { return inner.tape(); }
        Var forward(Tape& tape, const Var& x, int64_t micro_batch) override {
          if (throws && micro_batch == 2) throw ShapeError("a bad layer");
          return inner.forward(tape, x, micro_batch);
        }
        void backward(Tape& tape, const Var& y, const Tensor& dy, int64_t micro_batch) override {
          inner.backward(tape, y, dy, micro_batch);
        }
      } stage(mesh, device, mesh.stage == bad);
      try {
        run_pipeline(&mesh, PipelineSchedule::one_f_one_b, 6, {between, DType::f32}, device, stage);
      } catch (const CommError& error) {
        std::lock_guard lock(mutex);
        said[static_cast<size_t>(mesh.stage)] = error.what();
        throw;
      }
    };
    CHECK_THROWS_AS(run_local(4, all, {.timeout_s = 240}), ShapeError);
    for (int stage = 0; stage < 4; ++stage) {
      if (stage == bad) continue;
      CAPTURE(said[static_cast<size_t>(stage)]);
      CHECK(said[static_cast<size_t>(stage)].find("rank " + std::to_string(bad)) !=
            std::string::npos);
      CHECK(said[static_cast<size_t>(stage)].find("a bad layer") != std::string::npos);
    }
  }
}

TEST_CASE("run_pipeline on a meta device has the peak memory and received bytes of a real run") {
  constexpr int stages = 4;
  constexpr int64_t micro_batches = 6;
  struct Took {
    int64_t peak = 0;
    std::vector<int64_t> received;
    bool operator==(const Took&) const = default;
  };
  const auto walk = [&](Communicator& world, const Device& device) {
    Mesh mesh(world, {.pipeline = stages});
    Layers stage(mesh, 8, device);
    run_pipeline(&mesh, PipelineSchedule::one_f_one_b, micro_batches, {between, DType::f32}, device,
                 stage);
    Took took{.peak = device.memory().peak(), .received = {}};
    for (const Communicator* channel : {mesh.previous.forward.get(), mesh.next.backward.get()})
      took.received.push_back(
          channel ? channel->wire()[static_cast<size_t>(Collective::broadcast)].bytes : 0);
    return took;
  };
  std::vector<Took> real(stages);
  run_local(stages, [&](Communicator& world, const Device& device) {
    real[static_cast<size_t>(world.rank())] = walk(world, device);
  });
  const int64_t message = between.numel() * 4 * micro_batches;
  for (int rank = 0; rank < stages; ++rank) {
    CAPTURE(rank);
    const auto counting = counting_communicator(rank, stages);
    const Took planned = walk(*counting, Device::meta(rank, {.threads = 1}));
    CHECK(planned == real[static_cast<size_t>(rank)]);
    CHECK(planned.received ==
          std::vector<int64_t>{rank > 0 ? message : 0, rank + 1 < stages ? message : 0});
  }
}
