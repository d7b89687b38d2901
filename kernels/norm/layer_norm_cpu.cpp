#include "zerograd/kernels/norm/layer_norm.h"

#include <algorithm>
#include <cstring>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/norm/layer_norm_cpu.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(NormTable, norm_table)

namespace {

static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);

using Norm = NormTable::ByType NormTable::*;

const NormFunctions& functions_for(Norm norm, const Tensor& x, const Stream& stream) {
  const NormTable& table = ZG_AT_LEVEL(stream.traits().isa, norm_table);
  return (table.*norm).type[static_cast<size_t>(x.dtype())];
}

// Rows of one task: about 16 Ki elements. They take much longer than the start of a task.
int64_t rows_per_chunk(int64_t C) {
  return std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, C));
}

void run_forward(Norm norm, const LayerNormForward& a, const Stream& stream) {
  const auto rows = functions_for(norm, a.x, stream).forward;
  const NormForward pointers{.x = a.x.raw(),
                             .residual = a.residual.raw(),
                             .gamma = a.gamma.raw(),
                             .beta = a.beta.raw(),
                             .y = a.y.raw(),
                             .sum = a.sum.raw(),
                             .mean = a.mean.raw(),
                             .rstd = a.rstd.raw(),
                             .C = a.x.extent(1),
                             .epsilon = a.epsilon};
  parallel_for(stream.traits().threads, a.x.extent(0), rows_per_chunk(pointers.C),
               [&](int64_t begin, int64_t end) { rows(pointers, begin, end); });
}

// dgamma and dbeta: each block of rows writes its sums to scratch [block, gamma | beta, C], then
// the blocks are added in order. The blocks depend only on N, so the bits do not depend on the
// number of threads. There are at most 64, which keeps the scratch small.
struct RowBlocks {
  int64_t rows, count;
  explicit RowBlocks(int64_t N)
      : rows(std::max<int64_t>(16, (N + 63) / 64)), count((N + rows - 1) / rows) {}
};

int64_t scratch_bytes(const Tensor& x, const Tensor& dgamma, const Tensor& dbeta) {
  const int64_t sums = (dgamma ? 1 : 0) + (dbeta ? 1 : 0);
  return RowBlocks(x.extent(0)).count * sums * x.extent(1) * size_of(accumulator(x.dtype()));
}

template <class A>
void add_blocks(const std::byte* scratch, int64_t block_bytes, int64_t blocks, const Tensor& out,
                int threads) {
  A* sum = out.data<A>();
  parallel_for(threads, out.numel(), 256, [&](int64_t begin, int64_t end) {
    std::fill(sum + begin, sum + end, A(0));
    for (int64_t block = 0; block < blocks; ++block) {
      const A* part = reinterpret_cast<const A*>(scratch + block * block_bytes);
      for (int64_t i = begin; i < end; ++i) sum[i] += part[i];
    }
  });
}

void run_backward(Norm norm, const LayerNormBackward& a, Workspace workspace,
                  const Stream& stream) {
  const auto rows = functions_for(norm, a.x, stream).backward;
  const NormBackward pointers{.dy = a.dy.raw(),
                              .x = a.x.raw(),
                              .gamma = a.gamma.raw(),
                              .mean = a.mean.raw(),
                              .rstd = a.rstd.raw(),
                              .dsum = a.dsum.raw(),
                              .dx = a.dx.raw(),
                              .C = a.x.extent(1),
                              .rounds_twice = a.rounds_twice};
  const int threads = stream.traits().threads;
  const int64_t N = a.x.extent(0);
  const RowBlocks blocks(N);
  const int64_t dgamma_bytes = a.dgamma ? a.dgamma.bytes() : 0;
  const int64_t block_bytes = dgamma_bytes + (a.dbeta ? a.dbeta.bytes() : 0);
  team(threads, blocks.count, [&](int64_t block, int) {
    std::byte* sums = workspace.data + block * block_bytes;
    if (block_bytes > 0) std::memset(sums, 0, static_cast<size_t>(block_bytes));
    rows(pointers, block * blocks.rows, std::min(N, (block + 1) * blocks.rows),
         a.dgamma ? sums : nullptr, a.dbeta ? sums + dgamma_bytes : nullptr);
  });
  const std::byte* sums = workspace.data;
  for (const Tensor* out : {&a.dgamma, &a.dbeta}) {
    if (!*out) continue;
    const auto add = out->dtype() == DType::f64 ? add_blocks<double> : add_blocks<float>;
    add(sums, block_bytes, blocks.count, *out, threads);
    sums += dgamma_bytes;
  }
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a, Workspace, Stream& stream) {
  run_forward(&NormTable::layer_norm, a, stream);
}

void rms_norm_forward(const RmsNormForward& a, Workspace, Stream& stream) {
  run_forward(&NormTable::rms_norm, as_layer_norm(a), stream);
}

int64_t workspace_bytes(const LayerNormBackward& a, const Device::Traits&) {
  return scratch_bytes(a.x, a.dgamma, a.dbeta);
}

void layer_norm_backward(const LayerNormBackward& a, Workspace workspace, Stream& stream) {
  run_backward(&NormTable::layer_norm, a, workspace, stream);
}

int64_t workspace_bytes(const RmsNormBackward& a, const Device::Traits&) {
  return scratch_bytes(a.x, a.dgamma, {});
}

void rms_norm_backward(const RmsNormBackward& a, Workspace workspace, Stream& stream) {
  run_backward(&NormTable::rms_norm, as_layer_norm(a), workspace, stream);
}

}  // namespace zg::cpu
