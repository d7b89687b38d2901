#include <cmath>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/cpu/loop_nest.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/visit_elementwise.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(ElementwiseTable, elementwise_table)

namespace {

/// Integer arithmetic in the unsigned type wraps where the signed one would be undefined.
template <class A, class F>
A wrapped(A a, A b, const F& f) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

template <class A>
A quotient(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    if (b == -1) return wrapped(A{0}, a, [](auto zero, auto v) { return zero - v; });
  }
  return a / b;
}

template <BinaryOp op, class A>
auto value(A a, A b) {
  if constexpr (op == BinaryOp::add) return wrapped(a, b, [](auto x, auto y) { return x + y; });
  if constexpr (op == BinaryOp::subtract)
    return wrapped(a, b, [](auto x, auto y) { return x - y; });
  if constexpr (op == BinaryOp::multiply)
    return wrapped(a, b, [](auto x, auto y) { return x * y; });
  if constexpr (op == BinaryOp::divide) return quotient(a, b);
  if constexpr (op == BinaryOp::power) return static_cast<A>(std::pow(a, b));
  // A comparison with NaN is false, and a + b is NaN when either is.
  if constexpr (op == BinaryOp::maximum) return a > b ? a : b >= a ? b : a + b;
  if constexpr (op == BinaryOp::minimum) return a < b ? a : b <= a ? b : a + b;
  if constexpr (op == BinaryOp::equal) return a == b;
  if constexpr (op == BinaryOp::not_equal) return a != b;
  if constexpr (op == BinaryOp::less) return a < b;
  if constexpr (op == BinaryOp::less_equal) return a <= b;
  if constexpr (op == BinaryOp::greater) return a > b;
  if constexpr (op == BinaryOp::greater_equal) return a >= b;
}

template <class A>
struct Gradients {
  A a, b;
};

/// dy times both partial derivatives, as PyTorch defines them at ties and at 0.
template <BinaryOp op, class A>
Gradients<A> gradients(A a, A b, A dy) {
  if constexpr (op == BinaryOp::add) return {dy, dy};
  if constexpr (op == BinaryOp::subtract) return {dy, -dy};
  if constexpr (op == BinaryOp::multiply) return {dy * b, dy * a};
  if constexpr (op == BinaryOp::divide) return {dy / b, -dy * (a / b) / b};
  if constexpr (op == BinaryOp::power)
    return {b == 0 ? A{0} : dy * b * std::pow(a, b - A{1}),
            a == 0 && b >= 0 ? A{0} : dy * std::pow(a, b) * std::log(a)};
  const A half = a == b ? dy / A{2} : dy;
  if constexpr (op == BinaryOp::maximum) return {a < b ? A{0} : half, a > b ? A{0} : half};
  return {a > b ? A{0} : half, a < b ? A{0} : half};
}

/// Operands: a, b, result. The result is contiguous, so its inner stride is 1.
LoopNest<3> nest_of(const Tensor& a, const Tensor& b, const Shape& shape) {
  return {shape,
          {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape),
           broadcast_strides(shape, shape)}};
}

void refuse_zero_divisors(const Tensor& b) {
  visit_index(b.dtype(), [&]<class T>() {
    const T* divisor = b.data<T>();
    for (int64_t i = 0; i < b.numel(); ++i)
      if (divisor[i] == 0)
        throw ConfigError("binary: an integer division; expected no divisor of 0, got one at " +
                          std::to_string(i) + "; cast to a floating type first");
  });
}

template <BinaryOp op, class T>
void run(const Binary& args, const LoopNest<3>& nest, int threads) {
  using Y = std::conditional_t<is_comparison(op), bool, T>;
  using A = arithmetic_t<T>;
  const T* a = args.a.data<T>();
  const T* b = args.b.data<T>();
  Y* y = args.y.data<Y>();
  const int64_t stride_a = nest.inner_stride(0), stride_b = nest.inner_stride(1);
  for_each_run(threads, nest, [&](const std::array<int64_t, 3>& offsets, int64_t count) {
    const T* from_a = a + offsets[0];
    const T* from_b = b + offsets[1];
    Y* to = y + offsets[2];
    for (int64_t i = 0; i < count; ++i)
      to[i] = static_cast<Y>(
          value<op, A>(static_cast<A>(from_a[i * stride_a]), static_cast<A>(from_b[i * stride_b])));
  });
}

bool run_vectorised(const Binary& args, const LoopNest<3>& nest, Stream& stream) {
  const DType dtype = args.a.dtype();
  if (args.op > BinaryOp::divide || (dtype != DType::f32 && dtype != DType::bf16)) return false;
  const ElementwiseTable* table = ZG_AT_LEVEL(stream.traits().isa, elementwise_table);
  if (!table) return false;
  const auto function = table->binary[static_cast<int>(args.op)][dtype == DType::bf16];
  const int64_t size = size_of(dtype);
  const std::byte *a = args.a.raw(), *b = args.b.raw();
  std::byte* y = args.y.raw();
  const int64_t stride_a = nest.inner_stride(0), stride_b = nest.inner_stride(1);
  for_each_run(stream.traits().threads, nest,
               [&](const std::array<int64_t, 3>& offsets, int64_t count) {
                 function(a + offsets[0] * size, stride_a, b + offsets[1] * size, stride_b,
                          y + offsets[2] * size, count);
               });
  return true;
}

}  // namespace

void binary(const Binary& args, Workspace, Stream& stream) {
  if (args.op == BinaryOp::divide && !is_floating(args.b.dtype())) refuse_zero_divisors(args.b);
  const LoopNest<3> nest = nest_of(args.a, args.b, args.y.shape());
  if (run_vectorised(args, nest, stream)) return;
  const int threads = stream.traits().threads;
  visit_number(args.a.dtype(), [&]<class T>() {
    if (is_comparison(args.op))
      visit_comparison(args.op, [&]<BinaryOp op>() { run<op, T>(args, nest, threads); });
    else
      visit_arithmetic(args.op, [&]<BinaryOp op>() {
        if constexpr (op != BinaryOp::power || !std::is_integral_v<T>)
          run<op, T>(args, nest, threads);
      });
  });
}

void binary_backward(const BinaryBackward& args, Workspace, Stream& stream) {
  const LoopNest<3> nest = nest_of(args.a, args.b, args.dy.shape());
  const int64_t stride_a = nest.inner_stride(0), stride_b = nest.inner_stride(1);
  visit_floating(args.a.dtype(), [&]<class T>() {
    visit_arithmetic(args.op, [&]<BinaryOp op>() {
      using A = accumulator_t<T>;
      const T *a = args.a.data<T>(), *b = args.b.data<T>(), *dy = args.dy.data<T>();
      T* da = args.da ? args.da.data<T>() : nullptr;
      T* db = args.db ? args.db.data<T>() : nullptr;
      for_each_run(
          stream.traits().threads, nest, [&](const std::array<int64_t, 3>& offsets, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
              const int64_t at = offsets[2] + i;
              const Gradients<A> d = gradients<op>(static_cast<A>(a[offsets[0] + i * stride_a]),
                                                   static_cast<A>(b[offsets[1] + i * stride_b]),
                                                   static_cast<A>(dy[at]));
              if (da) da[at] = static_cast<T>(d.a);
              if (db) db[at] = static_cast<T>(d.b);
            }
          });
    });
  });
}

void where(const Where& args, Workspace, Stream& stream) {
  const Shape& shape = args.y.shape();
  const LoopNest<4> nest(
      shape,
      {broadcast_strides(args.condition.shape(), shape), broadcast_strides(args.a.shape(), shape),
       broadcast_strides(args.b.shape(), shape), broadcast_strides(shape, shape)});
  const int64_t stride_c = nest.inner_stride(0), stride_a = nest.inner_stride(1),
                stride_b = nest.inner_stride(2);
  visit_bits(args.y.dtype(), [&]<class T>() {
    const bool* condition = args.condition.data<bool>();
    const T* a = reinterpret_cast<const T*>(args.a.raw());
    const T* b = reinterpret_cast<const T*>(args.b.raw());
    T* y = reinterpret_cast<T*>(args.y.raw());
    for_each_run(
        stream.traits().threads, nest, [&](const std::array<int64_t, 4>& offsets, int64_t count) {
          for (int64_t i = 0; i < count; ++i)
            y[offsets[3] + i] = condition[offsets[0] + i * stride_c] ? a[offsets[1] + i * stride_a]
                                                                     : b[offsets[2] + i * stride_b];
        });
  });
}

}  // namespace zg::cpu
