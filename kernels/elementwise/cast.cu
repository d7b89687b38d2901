#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/elementwise/elementwise.h"

namespace zg::cuda {
namespace {

/// Converts to an integer type: values out of range saturate, NaN becomes 0.
template <class To>
__device__ inline To saturated(float value) {
  constexpr bool is_signed = std::is_signed_v<To>;
  constexpr int bits = static_cast<int>(sizeof(To)) * 8 - (is_signed ? 1 : 0);
  constexpr To highest =
      static_cast<To>((uint64_t{1} << (bits - 1)) - 1 + (uint64_t{1} << (bits - 1)));
  constexpr To lowest = is_signed ? static_cast<To>(-highest - 1) : To(0);
  constexpr auto limit = static_cast<float>(uint64_t{1} << (bits - 1)) * 2.0f;
  if (value != value) return To(0);
  if (value >= limit) return highest;
  if (value <= (is_signed ? -limit : 0.0f)) return lowest;
  return static_cast<To>(value);
}

template <class From, class To>
struct Convert {
  __device__ To operator()(From x) const {
    const auto wide = widened(x);
    if constexpr (std::is_same_v<To, bool>)
      return wide != 0;
    else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>)
      return saturated<To>(wide);
    else if constexpr (std::is_integral_v<To>)
      return static_cast<To>(wide);
    else
      return from_float<To>(static_cast<float>(wide));
  }
};

template <class X, class Y>
struct Scale {
  float a;
  __device__ Y operator()(X x) const { return from_float<Y>(a * to_float(x)); }
};
template <class X, class Y>
struct ScaleAndAdd {
  float a, b;
  __device__ Y operator()(X x, Y y) const {
    return from_float<Y>(a * to_float(x) + b * to_float(y));
  }
};

template <class X, class Y>
void add_scaled(const Axpby& args, float a, float b, Stream& stream) {
  const X* x = args.x.data<X>();
  Y* y = args.y.data<Y>();
  if (b == 0.0f) {
    const Scale<X, Y> scale{a};
    map("axpby", scale, args.x.numel(), stream, y, x);
  } else {
    const ScaleAndAdd<X, Y> both{a, b};
    map("axpby", both, args.x.numel(), stream, y, x, static_cast<const Y*>(y));
  }
}

template <class F>
void visit_any(DType dtype, const F& f) {
  switch (dtype) {
    case DType::i32:
      return f(int32_t());
    case DType::i64:
      return f(int64_t());
    case DType::u8:
      return f(uint8_t());
    case DType::boolean:
      return f(bool());
    default:
      return visit_floating(dtype, f);
  }
}

}  // namespace

void cast(const Cast& a, Workspace, Stream& stream) {
  if (a.x.dtype() == a.y.dtype()) {
    if (a.x.raw() != a.y.raw() && a.x.numel() > 0)
      stream.copy(a.y.raw(), a.x.raw(), static_cast<size_t>(a.x.bytes()));
    return;
  }
  visit_any(a.x.dtype(), [&]<class X>(X) {
    visit_any(a.y.dtype(), [&]<class Y>(Y) {
      if constexpr (!std::is_same_v<X, Y>)
        map("cast", Convert<X, Y>(), a.x.numel(), stream, a.y.data<Y>(),
            static_cast<const X*>(a.x.data<X>()));
    });
  });
}

void axpby(const Axpby& args, Workspace, Stream& stream) {
  const auto a = static_cast<float>(args.a), b = static_cast<float>(args.b);
  visit_floating(args.x.dtype(), [&]<class X>(X) {
    visit_floating(args.y.dtype(), [&]<class Y>(Y) { add_scaled<X, Y>(args, a, b, stream); });
  });
}

}  // namespace zg::cuda
