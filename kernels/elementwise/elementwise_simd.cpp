#include "zerograd/kernels/cpu/functions_simd.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <class V>
inline V fabs(V x) {
  return abs(x);
}
template <class V>
inline V quotient(V a, V b) {
  return a / b;
}

#define ZG_NUMBER(x) x
#define ZG_SELECT select
#define ZG_FUNCTION template <class number>
#include "zerograd/kernels/elementwise/formulas.inc"

template <UnaryOp op, class V>
inline V value(V x, [[maybe_unused]] V p, [[maybe_unused]] V q) {
#define ZG_UNARY(name, y, ...) \
  if constexpr (op == UnaryOp::name) return y;
#include "zerograd/kernels/elementwise/formulas.inc"
}

/// dy times the derivative. `v` is y if reads_result(op), else x.
template <UnaryOp op, class V>
inline V gradient([[maybe_unused]] V v, [[maybe_unused]] V dy, [[maybe_unused]] V p,
                  [[maybe_unused]] V q) {
#define ZG_UNARY(name, y, dx) \
  if constexpr (op == UnaryOp::name) return dx;
#include "zerograd/kernels/elementwise/formulas.inc"
}

template <BinaryOp op, class V>
inline V value(V a, V b) {
  [[maybe_unused]] const V wa = a, wb = b;
#define ZG_BINARY(name, y, ...) \
  if constexpr (op == BinaryOp::name) return y;
#include "zerograd/kernels/elementwise/formulas.inc"
}

template <class T, UnaryOp op>
void forward(const void* from, void* to, int64_t n, double p, double q) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  for_whole_vectors<T>(n, [&, p = VecOf<T>(p), q = VecOf<T>(q)](int64_t i, All count) {
    store(y + i, value<op>(load(x + i, count), p, q), count);
  });
}

template <class T, UnaryOp op>
void backward(const void* saved, const void* dy, void* to, int64_t n, double p, double q) {
  const T *v = static_cast<const T*>(saved), *gradients = static_cast<const T*>(dy);
  T* dx = static_cast<T*>(to);
  for_whole_vectors<T>(n, [&, p = VecOf<T>(p), q = VecOf<T>(q)](int64_t i, All count) {
    store(dx + i, gradient<op>(load(v + i, count), load(gradients + i, count), p, q), count);
  });
}

template <class T>
inline VecOf<T> in_all_lanes(const T* x) {
  if constexpr (std::is_same_v<T, double>)
    return *x;
  else
    return first_lane(load(x, int64_t{1}));
}

template <class T, BinaryOp op>
void binary(const void* left, int64_t stride_a, const void* right, int64_t stride_b, void* to,
            int64_t n) {
  using V = VecOf<T>;
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  T* y = static_cast<T*>(to);
  const auto run = [&](auto a_at, auto b_at) {
    for_vectors<T>(n, [&](int64_t i, auto count) {
      store(y + i, value<op, V>(a_at(i, count), b_at(i, count)), count);
    });
  };
  const auto every = [](const T* x) {
    return [x](int64_t i, auto count) { return load(x + i, count); };
  };
  const auto same = [](const T* x) {
    return [value = in_all_lanes(x)](int64_t, auto) { return value; };
  };
  if (stride_a != 1)
    run(same(a), every(b));
  else if (stride_b != 1)
    run(every(a), same(b));
  else
    run(every(a), every(b));
}

template <class X, class Y>
void axpby(const void* from, void* to, double factor, double factor_of_y, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  const Vec a = factor, b = factor_of_y;
  const bool reads_y = factor_of_y != 0.0;  // y may be uninitialised
  for_vectors(n, [&](int64_t i, auto count) {
    const Vec product = a * load(x + i, count);
    store(y + i, reads_y ? product + b * load(y + i, count) : product, count);
  });
}

template <class X, class Y>
void cast(const void* from, void* to, int64_t n) {
  const X* x = static_cast<const X*>(from);
  Y* y = static_cast<Y*>(to);
  for_vectors(n, [&](int64_t i, auto count) { store(y + i, load(x + i, count), count); });
}

}  // namespace

#define ZG_TYPES(function, name) \
  {function<double, name>, function<float, name>, function<bf16, name>, function<f16, name>},

extern const UnaryTable unary_table;
const UnaryTable unary_table = {.forward =
                                    {
#define ZG_UNARY(name, ...) ZG_TYPES(forward, UnaryOp::name)
#include "zerograd/kernels/elementwise/formulas.inc"
                                    },
                                .backward = {
#define ZG_UNARY(name, ...) ZG_TYPES(backward, UnaryOp::name)
#include "zerograd/kernels/elementwise/formulas.inc"
                                }};

extern const ElementwiseTable elementwise_table;
const ElementwiseTable elementwise_table = {
    .binary =
        {
#define ZG_BINARY(name, ...) ZG_TYPES(binary, BinaryOp::name)
#include "zerograd/kernels/elementwise/formulas.inc"
        },
    .axpby = {{axpby<float, float>, axpby<float, bf16>}, {axpby<bf16, float>, axpby<bf16, bf16>}},
    .cast = {cast<float, bf16>, cast<bf16, float>},
};

}  // namespace zg::cpu::ZG_ISA
