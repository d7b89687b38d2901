#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/indices.h"
#include "zerograd/kernels/cpu/workspace.h"
#include "zerograd/kernels/loss/cross_entropy_cpu.h"
#include "zerograd/kernels/loss/cross_entropy_rows_cpu.h"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

ProjectionPlan plan_of(const ProjectionCrossEntropy& args, const Device::Traits& traits) {
  return {args, traits, int64_t{sizeof(OnlineLogSumExp)},
          kernels::matmul[Device::Type::cpu].workspace_bytes};
}

/// T is x's dtype.
template <class T>
class Run {
  using A = accumulator_t<T>;

 public:
  Run(const ProjectionCrossEntropy& args, Workspace workspace, Stream& stream)
      : plan_(plan_of(args, stream.traits())),
        args_(args),
        workspace_(workspace),
        stream_(stream),
        table_(ZG_AT_LEVEL(stream.traits().isa, row_table)),
        targets_(args.targets),
        sums_(reinterpret_cast<OnlineLogSumExp*>(workspace.data + plan_.sums)) {}

  void all() {
    const LogitTiling& tiling = plan_.tiling;
    if (tiling.V == 0 && args_.dx) fill_zero(args_.dx, stream_);
    if (tiling.N == 0 && args_.dweight) fill_zero(args_.dweight, stream_);
    for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
      const int64_t count = tiling.at(row, 0).rows;
      std::fill(sums_, sums_ + count, OnlineLogSumExp{});
      tiling.for_each_chunk(row, [&](const LogitChunk& chunk) { add_logits(chunk); });
      for (int64_t n = 0; n < count; ++n)
        args_.loss.template data<A>()[row + n] =
            is_ignored(row + n) ? A{0} : static_cast<A>(sums_[n].log_sum() - sums_[n].target);
      if (plan_.gradients)
        tiling.for_each_chunk(row, [&](const LogitChunk& chunk) { add_gradients(chunk); });
    }
  }

 private:
  bool is_ignored(int64_t n) const { return targets_[n] == args_.ignore_index; }
  void multiply(const Matmul& product) const {
    kernels::matmul[Device::Type::cpu].function(
        product, {workspace_.data + plan_.product, workspace_.bytes - plan_.product}, stream_);
  }
  /// f(row of the block, where its part of the chunk begins), every row once.
  template <class F>
  void for_rows(const LogitChunk& chunk, const F& f) const {
    parallel_for(stream_.traits().threads, chunk.rows, rows_per_task(chunk.columns),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t n = begin; n < end; ++n) f(n, n * chunk.columns);
                 });
  }

  void add_logits(const LogitChunk& chunk) const {
    const Tensor logits = plan_.logits_of(workspace_, chunk);
    multiply(plan_.logits_product(logits, chunk));
    const A* values = logits.data<A>();
    for_rows(chunk, [&](int64_t n, int64_t at) {
      sums_[n].add(table_, values + at, chunk.columns, targets_[chunk.row + n] - chunk.column);
    });
  }

  void add_gradients(const LogitChunk& chunk) const {
    const Tensor logits = plan_.logits_of(workspace_, chunk);
    const Tensor dlogits = plan_.dlogits_of(workspace_, chunk);
    const A* values = logits.data<A>();
    T* out = dlogits.data<T>();
    const A factor = static_cast<A>(args_.gradient_factor);
    for_rows(chunk, [&](int64_t n, int64_t at) {
      if (is_ignored(chunk.row + n)) {
        std::fill_n(out + at, chunk.columns, T{});
        return;
      }
      cross_entropy_gradient(table_, values + at, chunk.columns,
                             targets_[chunk.row + n] - chunk.column,
                             static_cast<A>(sums_[n].log_sum()), factor, out + at);
    });
    if (args_.dx) multiply(plan_.dx_product(dlogits, chunk));
    if (args_.dweight) multiply(plan_.dweight_product(dlogits, chunk));
  }

  const ProjectionPlan plan_;
  const ProjectionCrossEntropy& args_;
  const Workspace workspace_;
  Stream& stream_;
  const RowTable* table_;
  const Indices targets_;
  OnlineLogSumExp* const sums_;  ///< one per row of a block
};

}  // namespace

int64_t workspace_bytes(const ProjectionCrossEntropy& args, const Device::Traits& traits) {
  return plan_of(args, traits).bytes;
}

void projection_cross_entropy(const ProjectionCrossEntropy& args, Workspace workspace,
                              Stream& stream) {
  check_indices("projection_cross_entropy", "targets", args.targets, args.weight.extent(0),
                args.ignore_index);
  visit_floating(args.x.dtype(), [&]<class T>() { Run<T>(args, workspace, stream).all(); });
}

}  // namespace zg::cpu
