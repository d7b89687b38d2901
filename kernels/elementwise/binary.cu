#include "zerograd/kernels/cuda/nest.cuh"
#include "zerograd/kernels/elementwise/visit_elementwise.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

template <class T, class A>
__device__ inline T narrowed(A x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(x);
  else
    return from_float<T>(static_cast<float>(x));
}

/// Integer arithmetic in the unsigned type wraps where the signed one would be undefined.
template <BinaryOp op, class A>
__device__ inline auto value(A a, A b) {
  using U = std::conditional_t<std::is_integral_v<A>, std::make_unsigned<A>, std::type_identity<A>>;
  using W = typename U::type;
  if constexpr (op == BinaryOp::add) return static_cast<A>(W(a) + W(b));
  if constexpr (op == BinaryOp::subtract) return static_cast<A>(W(a) - W(b));
  if constexpr (op == BinaryOp::multiply) return static_cast<A>(W(a) * W(b));
  if constexpr (op == BinaryOp::divide) {
    if constexpr (std::is_integral_v<A>)
      return b == A(-1) ? static_cast<A>(W(0) - W(a)) : b == A(0) ? A(0) : static_cast<A>(a / b);
    else
      return a / b;
  }
  if constexpr (op == BinaryOp::power) return static_cast<A>(powf(a, b));
  // A comparison with NaN is false, and a + b is NaN when either is.
  if constexpr (op == BinaryOp::maximum) return a > b ? a : b >= a ? b : static_cast<A>(a + b);
  if constexpr (op == BinaryOp::minimum) return a < b ? a : b <= a ? b : static_cast<A>(a + b);
  if constexpr (op == BinaryOp::equal) return a == b;
  if constexpr (op == BinaryOp::not_equal) return a != b;
  if constexpr (op == BinaryOp::less) return a < b;
  if constexpr (op == BinaryOp::less_equal) return a <= b;
  if constexpr (op == BinaryOp::greater) return a > b;
  if constexpr (op == BinaryOp::greater_equal) return a >= b;
}

struct Gradients {
  float a, b;
};

/// dy times both partial derivatives, as PyTorch defines them at ties and at 0.
template <BinaryOp op>
__device__ inline Gradients gradients(float a, float b, float dy) {
  if constexpr (op == BinaryOp::add) return {dy, dy};
  if constexpr (op == BinaryOp::subtract) return {dy, -dy};
  if constexpr (op == BinaryOp::multiply) return {dy * b, dy * a};
  if constexpr (op == BinaryOp::divide) return {dy / b, -dy * (a / b) / b};
  if constexpr (op == BinaryOp::power)
    return {b == 0.0f ? 0.0f : dy * b * powf(a, b - 1.0f),
            a == 0.0f && b >= 0.0f ? 0.0f : dy * powf(a, b) * logf(a)};
  const float half = a == b ? dy / 2.0f : dy;
  if constexpr (op == BinaryOp::maximum) return {a < b ? 0.0f : half, a > b ? 0.0f : half};
  return {a > b ? 0.0f : half, a < b ? 0.0f : half};
}

/// y = a op b with broadcasting, one thread for each element. An integer division by 0 is reported.
template <BinaryOp op, class T, class Y>
__global__ void __launch_bounds__(threads)
    combine(const T* a, const T* b, Y* y, Nest<2> nest, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= nest.numel) return;
  int64_t at[2];
  nest.locate(i, at);
  const T divisor = b[at[1]];
  if constexpr (op == BinaryOp::divide && std::is_integral_v<T>)
    if (divisor == T(0)) report(fault, FaultSite::binary_divisor, i, 0, 0);
  const auto result = value<op>(widened(a[at[0]]), widened(divisor));
  if constexpr (std::is_same_v<Y, bool>)
    y[i] = result;
  else
    y[i] = narrowed<Y>(result);
}

/// The gradients da and db of y = a op b before the sums over broadcast axes; null ones are
/// skipped.
template <BinaryOp op, class T>
__global__ void __launch_bounds__(threads)
    slopes(const T* a, const T* b, const T* dy, T* da, T* db, Nest<2> nest) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= nest.numel) return;
  int64_t at[2];
  nest.locate(i, at);
  const Gradients d = gradients<op>(to_float(a[at[0]]), to_float(b[at[1]]), to_float(dy[i]));
  if (da) da[i] = from_float<T>(d.a);
  if (db) db[i] = from_float<T>(d.b);
}

/// where: y = condition ? a : b. T is the unsigned type of the dtype's size: no arithmetic is
/// needed.
template <class T>
__global__ void __launch_bounds__(threads)
    choose(const bool* condition, const T* a, const T* b, T* y, Nest<3> nest) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= nest.numel) return;
  int64_t at[3];
  nest.locate(i, at);
  y[i] = condition[at[0]] ? a[at[1]] : b[at[2]];
}

template <class F>
void visit_number(DType dtype, const F& f) {
  if (dtype == DType::i32) return f(int32_t());
  if (dtype == DType::i64) return f(int64_t());
  visit_floating(dtype, f);
}

Nest<2> nest_of(const Tensor& a, const Tensor& b, const Shape& shape) {
  return {shape, {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape)}};
}

template <BinaryOp op, class T>
void run(const Binary& args, Stream& stream) {
  using Y = std::conditional_t<is_comparison(op), bool, T>;
  launch("binary", combine<op, T, Y>, {blocks_for(args.y.numel(), threads), dim3(threads)}, stream,
         static_cast<const T*>(args.a.data<T>()), static_cast<const T*>(args.b.data<T>()),
         args.y.data<Y>(), nest_of(args.a, args.b, args.y.shape()), fault_place(stream));
}

}  // namespace

void binary(const Binary& args, Workspace, Stream& stream) {
  visit_number(args.a.dtype(), [&]<class T>(T) {
    if (is_comparison(args.op))
      visit_comparison(args.op, [&]<BinaryOp op>() { run<op, T>(args, stream); });
    else
      visit_arithmetic(args.op, [&]<BinaryOp op>() {
        if constexpr (op != BinaryOp::power || !std::is_integral_v<T>) run<op, T>(args, stream);
      });
  });
}

void binary_backward(const BinaryBackward& args, Workspace, Stream& stream) {
  visit_floating(args.a.dtype(), [&]<class T>(T) {
    visit_arithmetic(args.op, [&]<BinaryOp op>() {
      launch("binary_backward", slopes<op, T>,
             {blocks_for(args.dy.numel(), threads), dim3(threads)}, stream,
             static_cast<const T*>(args.a.data<T>()), static_cast<const T*>(args.b.data<T>()),
             static_cast<const T*>(args.dy.data<T>()), args.da ? args.da.data<T>() : nullptr,
             args.db ? args.db.data<T>() : nullptr, nest_of(args.a, args.b, args.dy.shape()));
    });
  });
}

void where(const Where& args, Workspace, Stream& stream) {
  const Shape& shape = args.y.shape();
  const Nest<3> nest(
      shape, {broadcast_strides(args.condition.shape(), shape),
              broadcast_strides(args.a.shape(), shape), broadcast_strides(args.b.shape(), shape)});
  const auto run = [&]<class Bits>(Bits) {
    launch("where", choose<Bits>, {blocks_for(shape.numel(), threads), dim3(threads)}, stream,
           static_cast<const bool*>(args.condition.data<bool>()),
           reinterpret_cast<const Bits*>(args.a.raw()), reinterpret_cast<const Bits*>(args.b.raw()),
           reinterpret_cast<Bits*>(args.y.raw()), nest);
  };
  switch (size_of(args.y.dtype())) {
    case 1:
      return run(uint8_t());
    case 2:
      return run(uint16_t());
    case 4:
      return run(uint32_t());
    default:
      return run(uint64_t());
  }
}

}  // namespace zg::cuda
