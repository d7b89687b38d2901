// A model of this program with the library's trainer: it is planned without memory, trained by two
// ranks at ZeRO stage 3, saved, and resumed by one rank.
#include <cstdio>
#include <filesystem>

#include "zerograd/zerograd.h"

using namespace zg;

// Two layers: "hidden.weight" [64, 8], "hidden.bias", "out.weight" [1, 64].
struct Net : nn::Module {
  nn::Linear hidden{this, "hidden", {.in = 8, .out = 64, .stddev = 0.3f}};
  nn::Linear out{this, "out", {.in = 64, .out = 1, .bias = false, .stddev = 0.1f}};

  Var operator()(const Var& x) const { return out(gelu(hidden(x))); }
};

// Samples are numbered over the whole run. Each rank makes the samples of its micro-batches.
std::vector<Tensor> make_batch(const zero::MicroBatch& batch, const Device& device) {
  std::vector<float> x, y;
  for (int64_t i = batch.first_sample; i < batch.first_sample + batch.samples; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < 8; ++j) {
      x.push_back(static_cast<float>((i * 37 + j * 17) % 64) / 64 - 0.5f);
      sum += x.back();
    }
    y.push_back(sum * sum);
  }
  return {Tensor::from(x, {batch.samples, 8}, device), Tensor::from(y, {batch.samples, 1}, device)};
}

// The program of one rank. `plan_ranks` and `run_ranks` call it.
void train(Communicator& ranks, const Device& device, const std::string& folder, int64_t steps) {
  const Net net;
  zero::Engine engine(net.store(), ranks, device, {.stage = 3, .clip_norm = 1.0f});
  zero::Trainer trainer(
      engine,
      {.micro_batch = 16,
       .accumulation = 2 / ranks.size(),  // 32 samples a step, on one rank or on two
       .steps = steps,
       .schedule = {.kind = zero::ScheduleKind::cosine, .rate = 1e-2, .total_num_steps = 200},
       .checkpoints = {{.path = folder}}},
      {.batch = [&](const zero::MicroBatch& batch) { return make_batch(batch, device); },
       .forward =
           [&](Tape& tape, const zero::MicroBatch& batch) {
             return mse(net(tape.constant(batch.tensors[0])), batch.tensors[1]);
           }},
      {.after_step = [&](const zero::TrainedStep& step) {
        const bool planned = device.type() == Device::Type::meta;  // a plan has no values
        if (ranks.rank() == 0 && !planned && (step.step + 1) % 50 == 0)
          std::printf("step %3lld loss %.5f\n", static_cast<long long>(step.step + 1), step.loss);
      }});
  trainer.resume(folder);
  trainer.run();
}

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / "zerograd_example_trainer";
  std::filesystem::remove_all(folder);
  const auto program = [&](int64_t steps) {
    return [=](Communicator& ranks, const Device& device) { train(ranks, device, folder, steps); };
  };
  const Plan plan = plan_ranks(2, program(100));
  std::printf("%s\n", plan.table().c_str());
  run_ranks(2, program(100), {.expect = &plan});  // throws if it differs from the plan
  run_ranks(1, program(200));                     // continues from step 100, with the same bits
  std::filesystem::remove_all(folder);
}
