// One function, planned and run: a model of this program at ZeRO stage 3 on three ranks, with
// optimizer states on a disk. The plan has the bytes of the run, on every rank.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/engine.h"

namespace {

using namespace zg;

// Layers of tanh(W x + b), each a unit: ZeRO gathers a layer's weights when it is used.
struct Net {
  struct Layer {
    const Unit& unit;
    const Parameter &weight, &bias;
  };
  std::vector<Layer> layers;

  Net(ParameterStore& store, int64_t depth, int64_t width) {
    for (int64_t i = 0; i < depth; ++i) {
      const std::string name = "layer." + std::to_string(i);
      const Unit& unit = store.unit(name);
      layers.push_back({unit,
                        store.add(unit, name + ".weight", {width, width}, Init::normal(0.05f)),
                        store.add(unit, name + ".bias", {width}, Init::zeros())});
    }
  }

  Var loss(Tape& tape, Var x) const {
    for (const Layer& layer : layers) {
      const Tape::Use use(tape, layer.unit);
      x = zg::tanh(linear(x, tape.parameter(layer.weight), tape.parameter(layer.bias)));
    }
    return mean(x * x);
  }
};

// The program of one rank. Its allocations and collectives do not depend on values that the device
// computes, so a plan equals the run.
void train(Communicator& ranks, const Device& device) {
  ParameterStore store;
  const Net net(store, /*depth=*/6, /*width=*/256);
  zero::Engine engine(
      store, ranks, device,
      {.stage = 3, .offload = {.optimizer = Space::file}, .param_persistence_threshold = 0});
  for (int step = 0; step < 3; ++step) {
    const Tensor x = Tensor::full({32, 256}, 0.1 * (step + 1), DType::f32, device);
    Tape tape = engine.tape();
    Var loss;
    {
      const PhaseScope phase(device,
                             "forward");  // a row of the table; the engine names the other phases
      loss = net.loss(tape, x);
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
