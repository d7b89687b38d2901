#include "zerograd/kernels/reduce/reduce.h"

#include <algorithm>
#include <bit>

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/hpu/nest.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
void reduce(const Reduce& a, Workspace workspace, Stream& stream) {
  const ReduceChunks cut(a.x.shape(), a.axes);
  const Code code = module("reduce", a.x.dtype());
  const std::string op = a.op == ReduceOp::max ? "max_" : "sum_";
  const std::string to = std::string("_") + word("reduce", a.y.dtype(),
                                                 {DType::f32, DType::bf16, DType::i32, DType::i64});
  const float count = a.op == ReduceOp::mean ? static_cast<float>(cut.elements) : 1.0f;
  const auto kept = nest_of_axes<Nest<1>>(a.x.shape(), ~a.axes);
  const auto reduced = nest_of_axes<Nest<1>>(a.x.shape(), a.axes);
  if (cut.group_each) {
    launch(stream, code, (fmt::format("{}group{}", op, to)).c_str(), {cut.results}, a.x.raw(),
           a.y.raw(), cut.elements, count, kept.rank, kept.extents, kept.strides[0], reduced.rank,
           reduced.extents, reduced.strides[0]);
    return;
  }
  const std::byte* parts = cut.chunks > 1 ? workspace.data : nullptr;
  const int64_t groups = groups_for(cut.results);
  launch(stream, code, (fmt::format("{}chunk{}", op, to)).c_str(), {.x = groups, .y = cut.chunks},
         a.x.raw(), a.y.raw(), parts, cut.results, cut.elements, cut.chunk, count, kept.rank,
         kept.extents, kept.strides[0], reduced.rank, reduced.extents, reduced.strides[0]);
  if (parts)
    launch(stream, code, (fmt::format("{}join{}", op, to)).c_str(), {groups}, parts, a.y.raw(),
           cut.results, cut.chunks, count);
}

void sort(const Sort& a, Workspace workspace, Stream& stream) {
  const SortedRows n(a.x.shape(), a.axis, a.y.extent(a.axis));
  if (a.y.numel() == 0) return;
  const Code code = module("sort", a.x.dtype());
  n.each_pass(
      [&](const SortPass& pass) {
        launch(stream, code, "sort_tiles", {groups_for(n.rows * pass.size, SortedRows::tile)},
               a.x.raw(), workspace.data, a.y.raw(), n.rows, n.extent, n.inner, n.count, pass.from,
               pass.to, pass.size, pass.segment, pass.first, pass.last, pass.kept,
               int32_t{a.descending});
      },
      [&](int64_t length, int64_t distance) {
        const int64_t pairs = n.rows * n.size / 2;
        launch(stream, code, "exchange", {groups_for(pairs)}, workspace.data, pairs, n.size, length,
               distance);
      });
}

void scan(const Scan& a, Workspace workspace, Stream& stream) {
  const ScanChunks n(a.x.shape(), a.axis, a.finds_places());
  if (a.y.numel() == 0) return;
  const Code code = module("scan", a.x.dtype());
  const std::string kernel = a.finds_places() ? "largest" : "sum";
  const std::byte *none = nullptr, *parts = n.chunks > 1 ? workspace.data : none;
  const int64_t groups = groups_for(n.rows);
  const auto chunks = [&](const std::byte* y) {
    launch(stream, code, (kernel + "_chunks").c_str(), {.x = groups, .y = n.chunks}, a.x.raw(), y,
           a.values.raw(), parts, n.rows, n.extent, n.inner, n.chunk, int32_t{a.reversed});
  };
  if (parts) {
    chunks(none);
    launch(stream, code, (kernel + "_before").c_str(), {groups}, parts, n.rows, n.chunks);
  }
  chunks(a.y.raw());
}

namespace {

/// How N rows of C elements, `inner` apart, are distributed: each work-item has a few elements of a
/// row, or a whole row if there are many, and neighbouring rows are neighbours in memory.
struct Rows {
  int64_t N, C, inner;
  uint32_t team;  ///< work-items per row; a power of two that divides a group
  Groups groups;

  Rows(const Tensor& x, int axis) {
    constexpr int64_t group = 256, elements_each = 4, neighbours = 16, enough_rows = 1 << 13;
    const Indexed at = Indexed::split(x.shape(), axis);
    C = at.extent;
    inner = at.inner;
    N = C > 0 ? at.outer * inner : 0;
    const bool whole = inner >= neighbours && N >= enough_rows;
    const int64_t wanted = whole ? 1 : std::clamp<int64_t>(C / elements_each, 1, group);
    team = static_cast<uint32_t>(std::bit_floor(static_cast<uint64_t>(wanted)));
    groups.x = groups_for(N, group / team);
  }
};

}  // namespace

void softmax_forward(const SoftmaxForward& a, Workspace, Stream& stream) {
  const Rows rows(a.x, a.axis);
  launch(stream, module("softmax", a.x.dtype()), "softmax_forward", rows.groups, a.x.raw(),
         a.y.raw(), rows.N, rows.C, rows.inner, rows.team, int32_t{a.log});
}

void softmax_backward(const SoftmaxBackward& a, Workspace, Stream& stream) {
  const Rows rows(a.y, a.axis);
  launch(stream, module("softmax", a.y.dtype()), "softmax_backward", rows.groups, a.y.raw(),
         a.dy.raw(), a.dx.raw(), rows.N, rows.C, rows.inner, rows.team, int32_t{a.log});
}

}  // namespace zg::hpu
