#include "zerograd/kernels/loss/cross_entropy_cpu.h"

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/indices.h"
#include "zerograd/kernels/loss/cross_entropy_rows_cpu.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

void cross_entropy_forward(const CrossEntropyForward& args, Workspace, Stream& stream) {
  const int64_t N = args.logits.extent(0), V = args.logits.extent(1);
  check_indices("cross_entropy_forward", "targets", args.targets, V, args.ignore_index);
  const Indices targets(args.targets);
  const RowTable* table = ZG_AT_LEVEL(stream.traits().isa, row_table);
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
  const RowTable* table = ZG_AT_LEVEL(stream.traits().isa, row_table);
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

}  // namespace zg::cpu
