#include "zerograd/kernels/elementwise/gelu.h"

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/gelu_scalar.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(GeluTable, gelu_table)

namespace {

template <class T, Activation form>
void forward(const void* x, void* y, int64_t n) {
  using A = accumulator_t<T>;
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  for (int64_t i = 0; i < n; ++i) out[i] = T(gelu(static_cast<A>(in[i]), form));
}

template <class T, Activation form>
void backward(const void* dy, const void* x, void* dx, int64_t n) {
  using A = accumulator_t<T>;
  const T* gradient = static_cast<const T*>(dy);
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(dx);
  for (int64_t i = 0; i < n; ++i)
    out[i] = T(static_cast<A>(gradient[i]) * gelu_derivative(static_cast<A>(in[i]), form));
}

template <class T, Activation form>
constexpr GeluFunctions functions = {forward<T, form>, backward<T, form>};

constexpr auto gelu_tanh = Activation::gelu_tanh, gelu_erf = Activation::gelu_erf;
constexpr GeluTable portable = {{functions<double, gelu_tanh>, functions<float, gelu_tanh>,
                                 functions<bf16, gelu_tanh>, functions<f16, gelu_tanh>},
                                {functions<double, gelu_erf>, functions<float, gelu_erf>,
                                 functions<bf16, gelu_erf>, functions<f16, gelu_erf>}};

static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);

GeluFunctions functions_for(Activation activation, DType dtype, Isa isa) {
  const auto form = activation == Activation::gelu_tanh ? &GeluTable::tanh : &GeluTable::erf;
  const auto index = static_cast<size_t>(dtype);
  const GeluTable* table = ZG_AT_LEVEL(isa, gelu_table);
  return table && (table->*form)[index].forward ? (table->*form)[index] : (portable.*form)[index];
}

constexpr int64_t chunk_elements = 1 << 13;

}  // namespace

void gelu_forward(const GeluForward& a, Workspace, Stream& stream) {
  const GeluFunctions f = functions_for(a.activation, a.x.dtype(), stream.traits().isa);
  const int64_t size = size_of(a.x.dtype());
  parallel_for(stream.traits().threads, a.x.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) {
                 f.forward(a.x.raw() + begin * size, a.y.raw() + begin * size, end - begin);
               });
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  const GeluFunctions f = functions_for(a.activation, a.x.dtype(), stream.traits().isa);
  const int64_t size = size_of(a.x.dtype());
  parallel_for(stream.traits().threads, a.x.numel(), chunk_elements,
               [&](int64_t begin, int64_t end) {
                 f.backward(a.dy.raw() + begin * size, a.x.raw() + begin * size,
                            a.dx.raw() + begin * size, end - begin);
                 if (a.y)
                   f.forward(a.x.raw() + begin * size, a.y.raw() + begin * size, end - begin);
               });
}

}  // namespace zg::cpu
