#include <cmath>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/kernels/elementwise/visit_elementwise.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(UnaryTable, unary_table)

namespace {

// The costliest of these maps takes some 20 ns an element.
constexpr int64_t grain = 1 << 13;

template <UnaryOp op, class A>
A value(A x) {
  if constexpr (op == UnaryOp::negate) return -x;
  if constexpr (op == UnaryOp::exp) return std::exp(x);
  if constexpr (op == UnaryOp::log) return std::log(x);
  if constexpr (op == UnaryOp::sqrt) return std::sqrt(x);
  if constexpr (op == UnaryOp::tanh) return std::tanh(x);
  if constexpr (op == UnaryOp::sigmoid) return A{1} / (A{1} + std::exp(-x));
  if constexpr (op == UnaryOp::relu) return x <= 0 ? A{0} : x;  // so that NaN stays
  if constexpr (op == UnaryOp::silu) return x / (A{1} + std::exp(-x));
  if constexpr (op == UnaryOp::abs) return std::abs(x);
  if constexpr (op == UnaryOp::reciprocal) return A{1} / x;
}

/// dy times the slope, made from y where reads_result(op), else from x.
template <UnaryOp op, class A>
A gradient(A v, A dy) {
  if constexpr (op == UnaryOp::negate) return -dy;
  if constexpr (op == UnaryOp::exp) return dy * v;
  if constexpr (op == UnaryOp::log) return dy / v;
  if constexpr (op == UnaryOp::sqrt) return dy / (A{2} * v);
  if constexpr (op == UnaryOp::tanh) return dy * (A{1} - v * v);
  if constexpr (op == UnaryOp::sigmoid) return dy * v * (A{1} - v);
  if constexpr (op == UnaryOp::relu) return v <= 0 ? A{0} : dy;
  if constexpr (op == UnaryOp::silu) {
    const A s = A{1} / (A{1} + std::exp(-v));
    return dy * s * (A{1} + v * (A{1} - s));
  }
  if constexpr (op == UnaryOp::abs) return v > 0 ? dy : v < 0 ? -dy : A{0};
  if constexpr (op == UnaryOp::reciprocal) return -dy / (v * v);
}

/// Null where there is plain code only.
UnaryTable::Function vectorised(const Unary& args, const Stream& stream) {
  const DType dtype = args.x.dtype();
  const UnaryTable* table = ZG_AT_LEVEL(stream.traits().isa, unary_table);
  if (!table || (dtype != DType::f32 && dtype != DType::bf16)) return nullptr;
  const int narrow = dtype == DType::bf16 ? 1 : 0;
  switch (args.op) {
    case UnaryOp::exp:
      return table->exp[narrow];
    case UnaryOp::tanh:
      return table->tanh[narrow];
    case UnaryOp::sigmoid:
      return table->sigmoid[narrow];
    case UnaryOp::silu:
      return table->silu[narrow];
    default:
      return nullptr;
  }
}

}  // namespace

void unary(const Unary& args, Workspace, Stream& stream) {
  if (const auto function = vectorised(args, stream)) {
    const int64_t size = size_of(args.x.dtype());
    const std::byte* x = args.x.raw();
    std::byte* y = args.y.raw();
    parallel_for(stream.traits().threads, args.x.numel(), grain, [&](int64_t begin, int64_t end) {
      function(x + begin * size, y + begin * size, end - begin);
    });
    return;
  }
  visit_floating(args.x.dtype(), [&]<class T>() {
    visit_unary(args.op, [&]<UnaryOp op>() {
      const T* x = args.x.data<T>();
      T* y = args.y.data<T>();
      parallel_for(stream.traits().threads, args.x.numel(), grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          y[i] = static_cast<T>(value<op>(static_cast<accumulator_t<T>>(x[i])));
      });
    });
  });
}

void unary_backward(const UnaryBackward& args, Workspace, Stream& stream) {
  visit_floating(args.dy.dtype(), [&]<class T>() {
    visit_unary(args.op, [&]<UnaryOp op>() {
      const T* v = (reads_result(op) ? args.y : args.x).template data<T>();
      const T* dy = args.dy.data<T>();
      T* dx = args.dx.data<T>();
      using A = accumulator_t<T>;
      const int threads = stream.traits().threads;
      parallel_for(threads, args.dy.numel(), grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          dx[i] = static_cast<T>(gradient<op>(static_cast<A>(v[i]), static_cast<A>(dy[i])));
      });
    });
  });
}

}  // namespace zg::cpu
