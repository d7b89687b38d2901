#include "zerograd/kernels/elementwise/elementwise_cpu.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/loop_nest.h"
#include "zerograd/kernels/elementwise/visit_elementwise.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(UnaryTable, unary_table)

namespace {

static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);
size_t index_of(const Tensor& x) { return static_cast<size_t>(x.dtype()); }

}  // namespace

void unary(const Unary& args, Workspace, Stream& stream) {
  const UnaryTable& table = ZG_AT_LEVEL(stream.traits().isa, unary_table);
  const auto function = table.forward[static_cast<size_t>(args.op)][index_of(args.x)];
  for_vectors(stream, 1, std::array{args.x, args.y},
              [&](const auto& at, int64_t n) { function(at[0], at[1], n, args.p, args.q); });
}

void unary_backward(const UnaryBackward& args, Workspace, Stream& stream) {
  const UnaryTable& table = ZG_AT_LEVEL(stream.traits().isa, unary_table);
  const auto function = table.backward[static_cast<size_t>(args.op)][index_of(args.dy)];
  for_vectors(stream, 1, std::array{reads_result(args.op) ? args.y : args.x, args.dy, args.dx},
              [&](const auto& at, int64_t n) { function(at[0], at[1], at[2], n, args.p, args.q); });
}

namespace {

using portable::exp, portable::log, portable::log1p, portable::pow;

template <class A>
A quotient(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    if (b == -1) return static_cast<A>(A{0} - static_cast<std::make_unsigned_t<A>>(a));
  return a / b;
}
/// a - floor(a / b) b of integers: the remainder with the sign of b.
template <class A>
A modulo(A a, A b) {
  const A rest = b == -1 ? A{0} : static_cast<A>(a % b);
  return rest != 0 && (rest < 0) != (b < 0) ? static_cast<A>(rest + b) : rest;
}

/// floor(a / b) of the exact quotient; a / b if b is 0.
template <class A>
A whole_quotient(A a, A b) {
  if (b == 0) return a / b;
  const A rest = std::fmod(a, b), whole = std::rint((a - rest) / b);
  return rest != 0 && (rest < 0) != (b < 0) ? whole - 1 : whole;
}

template <BinaryOp op, class A>
auto value(A a, A b) {
  // Integers are computed as unsigned ones, because signed overflow is undefined behaviour.
  using U = std::conditional_t<std::is_integral_v<A>, std::make_unsigned<A>, std::type_identity<A>>;
  [[maybe_unused]] const auto wa = static_cast<typename U::type>(a),
                              wb = static_cast<typename U::type>(b);
#define ZG_BINARY(name, y, ...) \
  if constexpr (op == BinaryOp::name) return static_cast<A>(y);
#define ZG_COMPARISON(name, y) \
  if constexpr (op == BinaryOp::name) return y;
#include "zerograd/kernels/elementwise/formulas.inc"
}

template <class A>
struct Gradients {
  A a, b;
};

/// dy times both partial derivatives.
template <BinaryOp op, class A>
Gradients<A> gradients([[maybe_unused]] A a, [[maybe_unused]] A b, A dy) {
  [[maybe_unused]] const A tied = a == b ? dy / A{2} : dy;
#define ZG_BINARY(name, y, da, db) \
  if constexpr (op == BinaryOp::name) return {da, db};
#include "zerograd/kernels/elementwise/formulas.inc"
}

/// Operands: a, b, result. The result is contiguous, so its inner stride is 1.
template <class Args>
LoopNest<3> nest_of(const Args& args, const Shape& shape) {
  return {shape,
          {strides_of(args.a, args.a_strides, shape), strides_of(args.b, args.b_strides, shape),
           broadcast_strides(shape, shape)}};
}

void refuse_zero_divisors(const char* op, const Tensor& b) {
  visit_index(b.dtype(), [&]<class T>() {
    const T* divisor = b.data<T>();
    for (int64_t i = 0; i < b.numel(); ++i)
      if (divisor[i] == 0)
        raise<ConfigError>(
            "{}: integer division: expected divisors other than 0, got 0 at element {}; try a cast "
            "to a floating type",
            op, i);
  });
}

// The steps of the usual loops as constants, with which they become vector code.
constexpr std::integral_constant<int64_t, 0> same_element;
constexpr std::integral_constant<int64_t, 1> next_element;

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
    const auto compute = [&](auto step_a, auto step_b) {
      for (int64_t i = 0; i < count; ++i)
        to[i] = static_cast<Y>(
            value<op, A>(static_cast<A>(from_a[i * step_a]), static_cast<A>(from_b[i * step_b])));
    };
    if (stride_a != 1)
      compute(stride_a, stride_b);
    else if (stride_b == 1)
      compute(next_element, next_element);
    else
      compute(next_element, same_element);
  });
}

/// Arithmetic of floating types.
void run_vectors(const Binary& args, const LoopNest<3>& nest, Stream& stream) {
  const ElementwiseTable& table = ZG_AT_LEVEL(stream.traits().isa, elementwise_table);
  const auto function = table.binary[static_cast<size_t>(args.op)][index_of(args.a)];
  const int64_t size = size_of(args.a.dtype());
  const std::byte *a = args.a.raw(), *b = args.b.raw();
  std::byte* y = args.y.raw();
  const int64_t stride_a = nest.inner_stride(0), stride_b = nest.inner_stride(1);
  for_each_run(stream.traits().threads, nest,
               [&](const std::array<int64_t, 3>& offsets, int64_t count) {
                 const bool is_one = stride_a == 0 && stride_b == 0;  // the result of all
                 std::byte* to = y + offsets[2] * size;
                 function(a + offsets[0] * size, stride_a, b + offsets[1] * size,
                          is_one ? 1 : stride_b, to, is_one ? 1 : count);
                 for (int64_t i = 1; is_one && i < count; ++i)
                   std::memcpy(to + i * size, to, static_cast<size_t>(size));
               });
}

}  // namespace

void binary(const Binary& args, Workspace, Stream& stream) {
  const bool is_integer = !is_floating(args.b.dtype());
  if (divides(args.op) && is_integer)
    refuse_zero_divisors(args.op == BinaryOp::divide ? "div" : "remainder", args.b);
  const LoopNest<3> nest = nest_of(args, args.y.shape());
  const int threads = stream.traits().threads;
  if (is_comparison(args.op))
    return visit_number(args.a.dtype(), [&]<class T>() {
      visit_comparison(args.op, [&]<BinaryOp op>() { run<op, T>(args, nest, threads); });
    });
  if (!is_integer) return run_vectors(args, nest, stream);
  visit_index(args.a.dtype(), [&]<class T>() {
    visit_arithmetic(args.op, [&]<BinaryOp op>() {
      if constexpr (!is_floating_only(op)) run<op, T>(args, nest, threads);
    });
  });
}

void binary_backward(const BinaryBackward& args, Workspace, Stream& stream) {
  const LoopNest<3> nest = nest_of(args, args.dy.shape());
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
      {broadcast_strides(args.condition.shape(), shape), strides_of(args.a, args.a_strides, shape),
       strides_of(args.b, args.b_strides, shape), broadcast_strides(shape, shape)});
  const int64_t stride_c = nest.inner_stride(0), stride_a = nest.inner_stride(1),
                stride_b = nest.inner_stride(2);
  visit_bits(args.y.dtype(), [&]<class T>() {
    const bool* condition = args.condition.data<bool>();
    const T* a = reinterpret_cast<const T*>(args.a.raw());
    const T* b = reinterpret_cast<const T*>(args.b.raw());
    T* y = reinterpret_cast<T*>(args.y.raw());
    for_each_run(stream.traits().threads, nest,
                 [&](const std::array<int64_t, 4>& offsets, int64_t count) {
                   // By masks: a branch that depends on a random condition costs more.
                   const auto choose = [&](auto step_c, auto step_a, auto step_b) {
                     for (int64_t i = 0; i < count; ++i) {
                       const T mask = static_cast<T>(T{0} - T{condition[offsets[0] + i * step_c]});
                       y[offsets[3] + i] = static_cast<T>((a[offsets[1] + i * step_a] & mask) |
                                                          (b[offsets[2] + i * step_b] & ~mask));
                     }
                   };
                   if (stride_c != 1 || stride_a + stride_b == 0)
                     choose(stride_c, stride_a, stride_b);
                   else if (stride_a == 1 && stride_b == 1)
                     choose(next_element, next_element, next_element);
                   else if (stride_a == 1)
                     choose(next_element, next_element, same_element);
                   else
                     choose(next_element, same_element, next_element);
                 });
  });
}

namespace {

// Elements of a task of axpby and cast, which are memory bound: enough to make the time to start a
// task insignificant.
constexpr int64_t cast_grain = 1 << 16;

/// Calls f(begin of x, begin of y, n) for ranges of elements.
template <class F>
void for_ranges(const Stream& stream, const Tensor& x, const Tensor& y, const F& f) {
  const int64_t x_size = size_of(x.dtype()), y_size = size_of(y.dtype());
  parallel_for(stream.traits().threads, x.numel(), cast_grain, [&](int64_t begin, int64_t end) {
    f(x.raw() + begin * x_size, y.raw() + begin * y_size, end - begin);
  });
}

bool is_bf16(const Tensor& x) { return x.dtype() == DType::bf16; }
bool has_vectors(const Tensor& x) { return x.dtype() == DType::f32 || is_bf16(x); }

// A static_cast of a float outside the range of To is undefined behaviour. Such values become the
// nearest limit, and NaN becomes 0.
template <class To, class From>
To saturated(From value) {
  if (std::isnan(value)) return To{0};
  if (value <= static_cast<From>(std::numeric_limits<To>::min()))
    return std::numeric_limits<To>::min();
  if (value >= static_cast<From>(std::numeric_limits<To>::max()))
    return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

template <class To, class From>
To converted(From value) {
  const auto wide = static_cast<arithmetic_t<From>>(value);
  if constexpr (std::is_same_v<To, bool>)
    return wide != 0;
  else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>)
    return saturated<To>(wide);
  else if constexpr (std::is_integral_v<To>)
    return static_cast<To>(wide);
  else
    return static_cast<To>(static_cast<accumulator_t<To>>(wide));
}

}  // namespace

void axpby(const Axpby& args, Workspace, Stream& stream) {
  if (has_vectors(args.x) && has_vectors(args.y)) {
    const ElementwiseTable& table = ZG_AT_LEVEL(stream.traits().isa, elementwise_table);
    const auto function = table.axpby[is_bf16(args.x)][is_bf16(args.y)];
    return for_ranges(stream, args.x, args.y,
                      [&](auto* x, auto* y, int64_t n) { function(x, y, args.a, args.b, n); });
  }
  const int threads = stream.traits().threads;
  visit_floating(args.x.dtype(), [&]<class X>() {
    visit_floating(args.y.dtype(), [&]<class Y>() {
      using A = decltype(accumulator_t<X>{} + accumulator_t<Y>{});
      const X* from = args.x.data<X>();
      Y* to = args.y.data<Y>();
      const A a = static_cast<A>(args.a), b = static_cast<A>(args.b);
      parallel_for(threads, args.x.numel(), cast_grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const A product = a * static_cast<A>(from[i]);
          to[i] = static_cast<Y>(static_cast<accumulator_t<Y>>(
              b == 0 ? product : product + b * static_cast<A>(to[i])));
        }
      });
    });
  });
}

void cast(const Cast& args, Workspace, Stream& stream) {
  if (args.x.dtype() == args.y.dtype())
    return for_ranges(stream, args.x, args.y, [&](auto* x, auto* y, int64_t n) {
      std::memmove(y, x, static_cast<size_t>(n * size_of(args.x.dtype())));
    });
  if (has_vectors(args.x) && has_vectors(args.y)) {
    const ElementwiseTable& table = ZG_AT_LEVEL(stream.traits().isa, elementwise_table);
    return for_ranges(stream, args.x, args.y, table.cast[is_bf16(args.x)]);
  }
  const int threads = stream.traits().threads;
  visit_type(args.x.dtype(), [&]<class X>() {
    visit_type(args.y.dtype(), [&]<class Y>() {
      const X* from = args.x.data<X>();
      Y* to = args.y.data<Y>();
      parallel_for(threads, args.x.numel(), cast_grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = converted<Y>(from[i]);
      });
    });
  });
}

}  // namespace zg::cpu
