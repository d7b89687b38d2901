// One function, planned and run: a model of this program at ZeRO stage 3 on three ranks, with
// optimizer states on a disk. The plan has the bytes of the run, on every rank.
#include <cstdio>
#include <filesystem>
#include <string>

#include "zerograd/models/nn.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/engine.h"

namespace {

using namespace zg;

// Layers of tanh(W x + b). Each is a unit: ZeRO gathers its weights when it is called.
struct Net : nn::Module {
  nn::List<nn::Linear> layers{this, "layer", /*count=*/6,
                              nn::LinearConfig{.in = 256, .out = 256, .stddev = 0.05f}};

  Var loss(Var x) const {
    for (const auto& layer : layers) x = zg::tanh(layer(x));
    return mean(x * x);
  }
};

// The program of one rank. Its allocations and collectives do not depend on values that the device
// computes, so a plan equals the run.
void train(Communicator& ranks, const Device& device) {
  const Net net;
  zero::Engine engine(
      net.store(), ranks, device,
      {.stage = 3, .offload = {.optimizer = Space::file}, .param_persistence_threshold = 0});
  for (int step = 0; step < 3; ++step) {
    const Tensor x = Tensor::full({32, 256}, 0.1 * (step + 1), DType::f32, device);
    Tape tape = engine.tape();
    Var loss;
    {
      // A row of the table; the engine names the other phases.
      const PhaseScope phase(device, "forward");
      loss = net.loss(tape.constant(x));
    }
    engine.backward(tape, loss);
    engine.step(1e-3f);
  }
}

}  // namespace

int main() {
  const std::string disk = std::filesystem::temp_directory_path();
  const DeviceOptions device = {.threads = 1, .swap = {.directory = disk}};
  const Plan plan = plan_ranks(3, train, {.device = device});
  std::printf("%s\n", plan.table().c_str());

  const MemoryReport run = run_ranks(3, train, {.local = {.device = device}, .expect = &plan});
  const bool equal = run == plan;
  std::printf("the run took %s\n", equal ? "what was planned, to the byte" : run.table().c_str());

  // The same plan with a memory limit: it shows which rank ends, and at which allocation.
  DeviceOptions small = device;
  small.memory_limit = 2 << 20;
  const Plan capped = plan_ranks(3, train, {.device = small});
  if (const auto& refused = capped.ranks[0].refused)
    std::printf("with 2 MiB rank 0 ends in phase %s at %lld bytes of %s for %s\n",
                refused->phase.c_str(), static_cast<long long>(refused->bytes),
                name_of(refused->purpose), refused->name.c_str());
  return equal && capped.ranks[0].refused ? 0 : 1;
}
