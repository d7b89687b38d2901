#include <doctest/doctest.h>

#include "tests/kernels/every_kernel.h"
#include "tests/models/gpt/gpt_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;

namespace {

int entered = 0;

/// Counts the calls of a kernel's CPU function between watch() and unwatch().
template <class Args>
class Watch {
 public:
  static void watch(Kernel<Args>& kernel) {
    own = kernel[Device::Type::cpu].function;
    kernel[Device::Type::cpu].function = [](const Args& args, Workspace workspace, Stream& stream) {
      ++entered;
      own(args, workspace, stream);
    };
  }
  static void unwatch(Kernel<Args>& kernel) { kernel[Device::Type::cpu].function = own; }

 private:
  static inline typename Kernel<Args>::Function own = nullptr;
};

struct Watches {
  Watches() {
    for_every_kernel([]<class Args>(Kernel<Args>& kernel) { Watch<Args>::watch(kernel); });
  }
  ~Watches() {
    for_every_kernel([]<class Args>(Kernel<Args>& kernel) { Watch<Args>::unwatch(kernel); });
  }
};

/// How often two steps of a GPT enter a kernel of the CPU.
int cpu_kernels_of_training(const Device& device) {
  const Watches watches;
  entered = 0;
  for (const DType compute : {DType::f32, DType::bf16}) {
    ParameterStore store;
    const models::GPTConfig config = tiny_config();
    const models::GPT gpt(store, config);
    zero::Engine engine(store, device, {.compute = compute});
    for (int64_t step = 0; step < 2; ++step) {
      const Tensor ids = random_ids(2, 6, config.vocabulary, device, 7);
      Tape tape = engine.tape();
      engine.backward(tape, gpt.loss(tape, ids, ids, {.step = step}));
      engine.step(1e-3f);
    }
    engine.parameter_hash();
  }
  return entered;
}

}  // namespace

TEST_CASE("training on an accelerator enters no kernel of the cpu" *
          doctest::test_suite("every device")) {
  CHECK(cpu_kernels_of_training(Device::cpu()) > 100);
  CHECK(cpu_kernels_of_training(device_of_rank(tested_type, 0, {})) == 0);
}
