#include <cmath>
#include <cstring>
#include <limits>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise_cpu.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(ElementwiseTable, elementwise_table)

namespace {

// Memory bound, so a task only has to be longer than its hand-out.
constexpr int64_t grain = 1 << 16;

bool vectorised(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }
int narrow(const Tensor& tensor) { return tensor.dtype() == DType::bf16 ? 1 : 0; }

const ElementwiseTable* table_for(const Tensor& x, const Tensor& y, const Stream& stream) {
  if (!vectorised(x.dtype()) || !vectorised(y.dtype())) return nullptr;
  return ZG_AT_LEVEL(stream.traits().isa, elementwise_table);
}

// A float outside the range of To would be undefined behaviour in a static_cast.
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
  const int threads = stream.traits().threads;
  const std::byte* x = args.x.raw();
  std::byte* y = args.y.raw();
  const int64_t x_size = size_of(args.x.dtype()), y_size = size_of(args.y.dtype());
  if (const ElementwiseTable* table = table_for(args.x, args.y, stream)) {
    const auto function = table->axpby[narrow(args.x)][narrow(args.y)];
    parallel_for(threads, args.x.numel(), grain, [&](int64_t begin, int64_t end) {
      function(x + begin * x_size, y + begin * y_size, static_cast<float>(args.a),
               static_cast<float>(args.b), end - begin);
    });
    return;
  }
  visit_floating(args.x.dtype(), [&]<class X>() {
    visit_floating(args.y.dtype(), [&]<class Y>() {
      using A = decltype(accumulator_t<X>{} + accumulator_t<Y>{});
      const X* from = args.x.data<X>();
      Y* to = args.y.data<Y>();
      const A a = static_cast<A>(args.a), b = static_cast<A>(args.b);
      parallel_for(threads, args.x.numel(), grain, [&](int64_t begin, int64_t end) {
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
  const int threads = stream.traits().threads;
  const std::byte* x = args.x.raw();
  std::byte* y = args.y.raw();
  const int64_t x_size = size_of(args.x.dtype()), y_size = size_of(args.y.dtype());
  if (args.x.dtype() == args.y.dtype()) {
    parallel_for(threads, args.x.bytes(), grain * 4, [&](int64_t begin, int64_t end) {
      std::memmove(y + begin, x + begin, static_cast<size_t>(end - begin));
    });
    return;
  }
  if (const ElementwiseTable* table = table_for(args.x, args.y, stream)) {
    const auto function = table->cast[narrow(args.x)][narrow(args.y)];
    parallel_for(threads, args.x.numel(), grain, [&](int64_t begin, int64_t end) {
      function(x + begin * x_size, y + begin * y_size, end - begin);
    });
    return;
  }
  visit_any(args.x.dtype(), [&]<class X>() {
    visit_any(args.y.dtype(), [&]<class Y>() {
      const X* from = args.x.data<X>();
      Y* to = args.y.data<Y>();
      parallel_for(threads, args.x.numel(), grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = converted<Y>(from[i]);
      });
    });
  });
}

}  // namespace zg::cpu
