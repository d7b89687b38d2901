#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {

void cast(const Cast& a, Workspace, Stream& stream) {
  if (a.x.dtype() == a.y.dtype()) {
    if (a.x.raw() != a.y.raw() && a.x.numel() > 0)
      stream.copy(a.y.raw(), a.x.raw(), static_cast<size_t>(a.x.bytes()));
    return;
  }
  const auto known = {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};
  const std::string kernel = std::string("cast_") + word("cast", a.x.dtype(), known) + "_" +
                             word("cast", a.y.dtype(), known);
  const int64_t n = a.x.numel();
  launch(stream, module("cast"), kernel.c_str(), {groups_for(n)}, a.x.raw(), a.y.raw(), n);
}

void axpby(const Axpby& args, Workspace, Stream& stream) {
  const auto known = {DType::f32, DType::bf16};
  const std::string kernel = std::string("axpby_") + word("axpby", args.x.dtype(), known) + "_" +
                             word("axpby", args.y.dtype(), known);
  const int64_t n = args.x.numel();
  launch(stream, module("cast"), kernel.c_str(), {groups_for(n)}, args.x.raw(), args.y.raw(), n,
         static_cast<float>(args.a), static_cast<float>(args.b));
}

}  // namespace zg::hpu
