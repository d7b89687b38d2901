#include "zerograd/kernels/movement/embedding.h"

#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {
namespace {

Groups rows_and_columns(int64_t rows, int64_t C) {
  constexpr int64_t columns = 128;  // COLUMNS of embedding.cl
  return {.x = rows, .y = groups_for(C, columns)};
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, Workspace, Stream& stream) {
  const int64_t N = a.y.extent(0), C = a.y.extent(1);
  const std::string kernel = std::string("forward_") + name_of(a.ids.dtype());
  launch(stream, module("embedding", a.y.dtype()), kernel.c_str(), rows_and_columns(N, C),
         a.ids.raw(), a.weight.raw(), a.position.raw(), a.y.raw(), a.weight.extent(0), C,
         a.position ? a.T : int64_t{1}, a.first_position, fault_place(stream),
         literal("embedding_forward"), literal("ids"));
}

void embedding_backward(const EmbeddingBackward& a, Workspace workspace, Stream& stream) {
  const int64_t N = a.dy.extent(0), C = a.dy.extent(1);
  const Code code = module("embedding", a.dy.dtype());
  if (a.dweight) {
    fill_zero(a.dweight, stream);  // ids without tokens get zero
    const std::string ids = name_of(a.ids.dtype());
    launch(stream, code, ("link_" + ids).c_str(), {groups_for(N)}, a.ids.raw(), workspace.data, N,
           a.dweight.extent(0), fault_place(stream), literal("embedding_backward"), literal("ids"));
    launch(stream, code, ("sum_by_id_" + ids).c_str(), rows_and_columns(N, C), a.ids.raw(),
           workspace.data, a.dy.raw(), a.dweight.raw(), N, C);
  }
  if (a.dposition)
    launch(stream, code, "sum_by_position", rows_and_columns(a.dposition.extent(0), C), a.dy.raw(),
           a.dposition.raw(), N, C, a.T, a.first_position);
}

}  // namespace zg::hpu
