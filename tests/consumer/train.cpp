// The README's program: builds a GPT and teaches it to sort six digits.
#include <cstdio>

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/zero/engine.h"

int main() {
  using namespace zg;
  const Device device = Device::cpu();  // data, engine and tapes are on one device
  const auto data = models::sort_dataset(/*seed=*/3407);

  models::GPTConfig config = models::GPTConfig::preset("gpt-nano");
  config.vocabulary = data->vocabulary();
  config.block_size = data->block_size();
  ParameterStore store;
  models::GPT model(store, config);
  zero::Engine engine(store, device, {.clip_norm = 1.0f, .seed = 3407});
  std::printf("number of parameters: %lld\n", static_cast<long long>(store.numel()));

  const int64_t batch_size = 64;
  double last = 0;
  for (int64_t step = 0; step < 300; ++step) {
    const auto batch = data->batch(models::Split::train, step * batch_size, batch_size, device);
    Tape tape = engine.tape();
    const Var loss = model.loss(tape, batch.ids, batch.targets,
                                {.seed = 3407, .step = step, .first_sample = step * batch_size});
    last = loss.value().item();
    engine.backward(tape, loss);
    engine.step(/*rate=*/1e-3f);
    if (step % 50 == 0) std::printf("step %lld loss %.4f\n", static_cast<long long>(step), last);
  }
  std::printf("loss %.4f, %s\n", last, engine.parameter_hash().c_str());
  return last < 0.5 ? 0 : 1;
}
