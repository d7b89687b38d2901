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

__device__ inline float exp(float x) { return expf(x); }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float log1p(float x) { return log1pf(x); }
__device__ inline float pow(float a, float b) { return powf(a, b); }

/// a - floor(a / b) b, exactly: the remainder with the sign of b.
__device__ inline float modulo(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0.0f && (b < 0.0f) != (rest < 0.0f) ? rest + b : rest;
}
/// floor(a / b) of the exact quotient; a / b if b is 0.
__device__ inline float whole_quotient(float a, float b) {
  if (b == 0.0f) return a / b;
  const float rest = fmodf(a, b), whole = rintf((a - rest) / b);
  return rest != 0.0f && (b < 0.0f) != (rest < 0.0f) ? whole - 1.0f : whole;
}

/// a / b. Integers divided by 0 give 0; `combine` reports them.
template <class A>
__device__ inline A quotient(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    if (b == A(-1)) return static_cast<A>(A(0) - static_cast<std::make_unsigned_t<A>>(a));
    if (b == A(0)) return A(0);
  }
  return static_cast<A>(a / b);
}
/// The same of integers; 0 for a divisor of 0.
template <class A>
__device__ inline A modulo(A a, A b) {
  const A rest = b == A(-1) || b == A(0) ? A(0) : static_cast<A>(a % b);
  return rest != A(0) && (rest < A(0)) != (b < A(0)) ? static_cast<A>(rest + b) : rest;
}

template <BinaryOp op, class A>
__device__ inline auto value(A a, A b) {
  // Signed arithmetic that overflows would be undefined.
  using U = std::conditional_t<std::is_integral_v<A>, std::make_unsigned<A>, std::type_identity<A>>;
  using W = typename U::type;
  [[maybe_unused]] const W wa = static_cast<W>(a), wb = static_cast<W>(b);
#define ZG_BINARY(name, y, ...) \
  if constexpr (op == BinaryOp::name) return static_cast<A>(y);
#define ZG_COMPARISON(name, y) \
  if constexpr (op == BinaryOp::name) return y;
#include "zerograd/kernels/elementwise/formulas.inc"
}

struct Gradients {
  float a, b;
};

/// dy times both partial derivatives.
template <BinaryOp op>
__device__ inline Gradients gradients(float a, float b, float dy) {
  [[maybe_unused]] const float tied = a == b ? dy / 2.0f : dy;
#define ZG_BINARY(name, y, da, db) \
  if constexpr (op == BinaryOp::name) return {da, db};
#include "zerograd/kernels/elementwise/formulas.inc"
}

/// y = a op b with broadcasting, V elements for each thread. An integer division by 0 is reported.
template <BinaryOp op, class T, class Y, int V>
__global__ void __launch_bounds__(threads)
    combine(const T* a, const T* b, Y* y, Nest<2> nest, Fault* fault) {
  nest.template each<V>([&](auto width, int64_t first, const int64_t(&at)[2]) {
    constexpr int W = decltype(width)::value;
    const auto left = nest.template load<W>(0, a, at[0]),
               right = nest.template load<W>(1, b, at[1]);
    Vec<Y, W> result;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const T divisor = right.v[k];
      if constexpr (divides(op) && std::is_integral_v<T>)
        if (divisor == T(0)) report(fault, FaultSite::binary_divisor, first + k, 0, 0);
      const auto combined = value<op>(widened(left.v[k]), widened(divisor));
      if constexpr (std::is_same_v<Y, bool>)
        result.v[k] = combined;
      else
        result.v[k] = narrowed<Y>(combined);
    }
    store(y + first, result);
  });
}

/// The gradients da and db of y = a op b before the sums over broadcast axes, V elements for each
/// thread; null ones are skipped.
template <BinaryOp op, class T, int V>
__global__ void __launch_bounds__(threads)
    slopes(const T* a, const T* b, const T* dy, T* da, T* db, Nest<2> nest) {
  nest.template each<V>([&](auto width, int64_t first, const int64_t(&at)[2]) {
    constexpr int W = decltype(width)::value;
    const auto left = nest.template load<W>(0, a, at[0]),
               right = nest.template load<W>(1, b, at[1]);
    const auto slope = load<W>(dy + first);
    Vec<T, W> left_gradient, right_gradient;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const Gradients d =
          gradients<op>(to_float(left.v[k]), to_float(right.v[k]), to_float(slope.v[k]));
      left_gradient.v[k] = from_float<T>(d.a);
      right_gradient.v[k] = from_float<T>(d.b);
    }
    if (da) store(da + first, left_gradient);
    if (db) store(db + first, right_gradient);
  });
}

/// where: y = condition ? a : b, V elements for each thread. T is the unsigned type of the dtype's
/// size: no arithmetic is needed.
template <class T, int V>
__global__ void __launch_bounds__(threads)
    choose(const bool* condition, const T* a, const T* b, T* y, Nest<3> nest) {
  nest.template each<V>([&](auto width, int64_t first, const int64_t(&at)[3]) {
    constexpr int W = decltype(width)::value;
    const auto chosen = nest.template load<W>(0, condition, at[0]);
    const auto left = nest.template load<W>(1, a, at[1]),
               right = nest.template load<W>(2, b, at[2]);
    Vec<T, W> result;
#pragma unroll
    for (int k = 0; k < W; ++k) result.v[k] = chosen.v[k] ? left.v[k] : right.v[k];
    store(y + first, result);
  });
}

/// Calls f(V), an integral constant: the elements of T in 16 bytes if `vectors`, else 1.
template <class T, class F>
void with_width(bool vectors, const F& f) {
  if (vectors)
    f(std::integral_constant<int, vector_width<T>>());
  else
    f(std::integral_constant<int, 1>());
}

template <class F>
void visit_number(DType dtype, const F& f) {
  if (dtype == DType::i32) return f(int32_t());
  if (dtype == DType::i64) return f(int64_t());
  visit_floating(dtype, f);
}

template <class Args>
Nest<2> nest_of(const Args& args, const Shape& shape) {
  return {shape,
          {strides_of(args.a, args.a_strides, shape), strides_of(args.b, args.b_strides, shape)}};
}

template <BinaryOp op, class T>
void run(const Binary& args, Stream& stream) {
  using Y = std::conditional_t<is_comparison(op), bool, T>;
  constexpr int width = vector_width<T>;
  const T *a = args.a.data<T>(), *b = args.b.data<T>();
  Y* y = args.y.data<Y>();
  const Nest<2> nest = nest_of(args, args.y.shape());
  const bool vectors = nest.has_vectors(width) && starts_vector<width>(a) &&
                       starts_vector<width>(b) && starts_vector<width>(y);
  with_width<T>(vectors, [&](auto V) {
    launch({"binary", "combine", operand_bytes(args), nest.numel},
           combine<op, T, Y, decltype(V)::value>,
           {blocks_for(nest.numel, threads * V), dim3(threads)}, stream, a, b, y, nest,
           fault_place(stream));
  });
}

template <BinaryOp op, class T>
void run(const BinaryBackward& args, Stream& stream) {
  constexpr int width = vector_width<T>;
  const T *a = args.a.data<T>(), *b = args.b.data<T>(), *dy = args.dy.data<T>();
  T* da = args.da ? args.da.data<T>() : nullptr;
  T* db = args.db ? args.db.data<T>() : nullptr;
  const Nest<2> nest = nest_of(args, args.dy.shape());
  bool vectors = nest.has_vectors(width);
  for (const T* start : {a, b, dy, static_cast<const T*>(da), static_cast<const T*>(db)})
    vectors = vectors && starts_vector<width>(start);
  with_width<T>(vectors, [&](auto V) {
    launch({"binary_backward", "slopes", operand_bytes(args), nest.numel},
           slopes<op, T, decltype(V)::value>, {blocks_for(nest.numel, threads * V), dim3(threads)},
           stream, a, b, dy, da, db, nest);
  });
}

}  // namespace

void binary(const Binary& args, Workspace, Stream& stream) {
  visit_number(args.a.dtype(), [&]<class T>(T) {
    if (is_comparison(args.op))
      visit_comparison(args.op, [&]<BinaryOp op>() { run<op, T>(args, stream); });
    else
      visit_arithmetic(args.op, [&]<BinaryOp op>() {
        if constexpr (!is_floating_only(op) || !std::is_integral_v<T>) run<op, T>(args, stream);
      });
  });
}

void binary_backward(const BinaryBackward& args, Workspace, Stream& stream) {
  visit_floating(args.a.dtype(), [&]<class T>(T) {
    visit_arithmetic(args.op, [&]<BinaryOp op>() { run<op, T>(args, stream); });
  });
}

void where(const Where& args, Workspace, Stream& stream) {
  const Shape& shape = args.y.shape();
  const Nest<3> nest(shape, {broadcast_strides(args.condition.shape(), shape),
                             strides_of(args.a, args.a_strides, shape),
                             strides_of(args.b, args.b_strides, shape)});
  const auto run = [&]<class Bits>(Bits) {
    constexpr int width = vector_width<Bits>;
    const bool* condition = args.condition.data<bool>();
    const auto *a = reinterpret_cast<const Bits*>(args.a.raw()),
               *b = reinterpret_cast<const Bits*>(args.b.raw());
    auto* y = reinterpret_cast<Bits*>(args.y.raw());
    const bool vectors = nest.has_vectors(width) && starts_vector<width>(condition) &&
                         starts_vector<width>(a) && starts_vector<width>(b) &&
                         starts_vector<width>(y);
    with_width<Bits>(vectors, [&](auto V) {
      launch({"where", "choose", operand_bytes(args), nest.numel}, choose<Bits, decltype(V)::value>,
             {blocks_for(nest.numel, threads * V), dim3(threads)}, stream, condition, a, b, y,
             nest);
    });
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
