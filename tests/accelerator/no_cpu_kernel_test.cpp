#include <doctest/doctest.h>

#include "kernels/adam.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fold_gradient.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/matmul.h"
#include "kernels/movement.h"
#include "kernels/reduce.h"
#include "models/gpt.h"
#include "runtime/comm.h"
#include "tests/accelerator/accelerator.h"
#include "tests/models/gpt_case.h"
#include "zero/engine.h"

using namespace zg;
using namespace zg::testing;

namespace {

int entered = 0;

/// Counts the calls of a kernel's CPU function, as long as it exists.
template <class Args>
class Watch {
 public:
  explicit Watch(Kernel<Args>& kernel) : kernel_(kernel) {
    own = kernel.cpu;
    kernel.cpu = [](const Args& args, Workspace workspace, Stream& stream) {
      ++entered;
      own(args, workspace, stream);
    };
  }
  ~Watch() { kernel_.cpu = own; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  static inline typename Kernel<Args>::Function own = nullptr;
  Kernel<Args>& kernel_;
};

template <class... Args>
struct Watches : Watch<Args>... {
  explicit Watches(Kernel<Args>&... kernels) : Watch<Args>(kernels)... {}
};

/// How often two steps of a GPT enter a kernel of the CPU.
int cpu_kernels_of_training(const Device& device) {
  namespace k = kernels;
  const Watches watches(
      k::adam, k::sum_of_squares, k::attention_forward, k::attention_backward,
      k::cross_entropy_forward, k::cross_entropy_backward, k::projection_cross_entropy, k::dropout,
      k::unary, k::unary_backward, k::binary, k::binary_backward, k::where, k::axpby, k::cast,
      k::embedding_forward, k::embedding_backward, k::fold_gradient, k::gelu_forward,
      k::gelu_backward, k::layer_norm_forward, k::layer_norm_backward, k::rms_norm_forward,
      k::rms_norm_backward, k::matmul, k::strided_copy, k::gather, k::scatter_add, k::reduce,
      k::argmax, k::softmax_forward, k::softmax_backward);
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
  CHECK(cpu_kernels_of_training(device_of_rank(accelerator, 0, {})) == 0);
}
