#include "zerograd/kernels/loss/cross_entropy.h"

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/indices.h"
#include "zerograd/kernels/cpu/rows.h"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/portable_math.h"

namespace zg::cpu {
namespace {

// Cross-entropy on the CPU, plain and fused with the projection. Both use the functions below on a
// row of logits or on a chunk of its columns.

/// Rows in one task: about 16 Ki logits.
constexpr int64_t rows_per_task(int64_t columns) {
  return std::max<int64_t>((1 << 14) / std::max<int64_t>(columns, 1), 1);
}

/// The log-sum-exp of a row whose logits arrive chunk by chunk. Milakov, Gimelshein 2018,
/// arXiv:1805.02867, algorithm 3.
struct OnlineLogSumExp {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;     ///< sum of exp(logit - max)
  double target = 0;  ///< the target's logit, after its chunk was added

  /// Adds a chunk of n logits. `target_column`: the target's index in this chunk; outside [0, n) if
  /// another chunk has it.
  template <class T>
  void add(const RowTable& table, const T* logits, int64_t n, int64_t target_column) {
    const accumulator_t<T> best = row_max(table, logits, n);
    if (static_cast<double>(best) > max) {
      sum *= portable::exp(max - static_cast<double>(best));
      max = static_cast<double>(best);
    }
    // All elements are -infinity or NaN: subtracting the maximum would turn -infinity into NaN.
    const bool all_infinite = max == -std::numeric_limits<double>::infinity();
    sum += row_exp_sum(table, logits, static_cast<accumulator_t<T>>(all_infinite ? 0.0 : max), n);
    if (target_column >= 0 && target_column < n)
      target = static_cast<double>(logits[target_column]);
  }
  double log_sum() const {
    return max == -std::numeric_limits<double>::infinity() ? portable::log(sum)
                                                           : max + portable::log(sum);
  }
};

/// out = (exp(logits - log_sum) - one_hot(target_column)) * dloss. `out` may be the same memory as
/// `logits`.
template <class X, class Y>
void cross_entropy_gradient(const RowTable& table, const X* logits, int64_t n,
                            int64_t target_column, accumulator_t<X> log_sum, accumulator_t<X> dloss,
                            Y* out) {
  const bool inside = target_column >= 0 && target_column < n;
  const accumulator_t<X> own = inside ? static_cast<accumulator_t<X>>(logits[target_column]) : 0;
  row_scaled_exp(table, logits, log_sum, dloss, out, n);
  if (inside) out[target_column] = static_cast<Y>(portable::expm1(own - log_sum) * dloss);
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForward& args, Workspace, Stream& stream) {
  const int64_t N = args.logits.extent(0), V = args.logits.extent(1);
  check_indices("cross_entropy_forward", "targets", args.targets, V, args.ignore_index);
  const Indices targets(args.targets);
  const RowTable& table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  visit_floating(args.logits.dtype(), [&]<class T>() {
    using A = accumulator_t<T>;
    const T* logits = args.logits.data<T>();
    A *loss = args.loss.data<A>(), *log_sum = args.log_sum.data<A>();
    parallel_for(stream.traits().threads, N, rows_per_task(V), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        OnlineLogSumExp row;
        row.add(table, logits + n * V, V, targets[n]);
        log_sum[n] = static_cast<A>(row.log_sum());
        loss[n] =
            targets[n] == args.ignore_index ? A{0} : static_cast<A>(row.log_sum() - row.target);
      }
    });
  });
}

void cross_entropy_backward(const CrossEntropyBackward& args, Workspace, Stream& stream) {
  const int64_t N = args.logits.extent(0), V = args.logits.extent(1);
  check_indices("cross_entropy_backward", "targets", args.targets, V, args.ignore_index);
  const Indices targets(args.targets);
  const RowTable& table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  visit_floating(args.logits.dtype(), [&]<class T>() {
    using A = accumulator_t<T>;
    const T* logits = args.logits.data<T>();
    T* dlogits = args.dlogits.data<T>();
    const A *log_sum = args.log_sum.data<A>(), *dloss = args.dloss.data<A>();
    parallel_for(stream.traits().threads, N, rows_per_task(V), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* out = dlogits + n * V;
        if (targets[n] == args.ignore_index)
          std::fill(out, out + V, T{});
        else
          cross_entropy_gradient(table, logits + n * V, V, targets[n], log_sum[n], dloss[n], out);
      }
    });
  });
}

namespace {

ProjectionPlan plan_of(const ProjectionCrossEntropy& args, const Device::Traits& traits) {
  return {args, traits, LogitLimits::for_caches(), int64_t{sizeof(OnlineLogSumExp)},
          kernels::matmul[Device::Type::cpu].workspace_bytes};
}

/// One call of projection_cross_entropy(). T is x's dtype.
template <class T>
class ProjectionRun {
  using A = accumulator_t<T>;

 public:
  ProjectionRun(const ProjectionCrossEntropy& args, Workspace workspace, Stream& stream)
      : plan_(plan_of(args, stream.traits())),
        args_(args),
        workspace_(workspace),
        stream_(stream),
        table_(ZG_AT_LEVEL(stream.traits().isa, row_table)),
        targets_(args.targets),
        sums_(reinterpret_cast<OnlineLogSumExp*>(workspace.data + plan_.sums)) {}

  void run() {
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
  /// Calls f(row within the block, offset of the row in the chunk) once for each row.
  template <class F>
  void for_rows(const LogitChunk& chunk, const F& f) const {
    parallel_for(stream_.traits().threads, chunk.rows, rows_per_task(chunk.columns),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t n = begin; n < end; ++n) f(n, n * chunk.columns);
                 });
  }

  void add_logits(const LogitChunk& chunk) const {
    const Tensor logits = plan_.logits_of(workspace_, chunk);
    plan_.make_logits(workspace_, chunk, stream_,
                      [&](const Matmul& product) { multiply(product); });
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
  const RowTable& table_;
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
  visit_floating(args.x.dtype(),
                 [&]<class T>() { ProjectionRun<T>(args, workspace, stream).run(); });
}

}  // namespace zg::cpu
