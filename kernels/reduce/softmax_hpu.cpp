#include <algorithm>
#include <bit>

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/reduce/reduce.h"

namespace zg::hpu {
namespace {

/// How N rows of C are shared out: a work-item has a few elements of a row.
struct Rows {
  int64_t N, C;
  uint32_t team;  ///< work-items per row; a power of two that divides a group
  Groups groups;

  explicit Rows(const Tensor& x) : N(0), C(x.extent(-1)) {
    constexpr int64_t group = 256, elements_each = 4;
    if (C > 0) N = x.numel() / C;
    const int64_t wanted = std::clamp<int64_t>(C / elements_each, 1, group);
    team = static_cast<uint32_t>(std::bit_floor(static_cast<uint64_t>(wanted)));
    groups.x = groups_for(N, group / team);
  }
};

}  // namespace

void softmax_forward(const SoftmaxForward& a, Workspace, Stream& stream) {
  const Rows rows(a.x);
  launch(stream, module("softmax", a.x.dtype()), "softmax_forward", rows.groups, a.x.raw(),
         a.y.raw(), rows.N, rows.C, rows.team, int32_t{a.log});
}

void softmax_backward(const SoftmaxBackward& a, Workspace, Stream& stream) {
  const Rows rows(a.y);
  launch(stream, module("softmax", a.y.dtype()), "softmax_backward", rows.groups, a.y.raw(),
         a.dy.raw(), a.dx.raw(), rows.N, rows.C, rows.team, int32_t{a.log});
}

}  // namespace zg::hpu
