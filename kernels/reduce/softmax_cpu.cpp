#include <cmath>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/rows.h"
#include "zerograd/kernels/reduce/reduce_cpu.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {
namespace {

constexpr int64_t task_elements = 1 << 13;

/// f(row) for each row of the last axis, several short ones to a task.
template <class F>
void for_each_row(const Tensor& x, Stream& stream, const F& f) {
  const int64_t C = x.extent(-1);
  if (C == 0) return;
  parallel_for(stream.traits().threads, x.numel() / C, std::max<int64_t>(task_elements / C, 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t n = begin; n < end; ++n) f(n * C);
               });
}

}  // namespace

void softmax_forward(const SoftmaxForward& args, Workspace, Stream& stream) {
  const int64_t C = args.x.extent(-1);
  const RowTable* table = ZG_AT_LEVEL(stream.traits().isa, row_table);
  visit_floating(args.x.dtype(), [&]<class T>() {
    using A = accumulator_t<T>;
    const T* x_rows = args.x.data<T>();
    T* y_rows = args.y.data<T>();
    for_each_row(args.x, stream, [&](int64_t row) {
      const T* x = x_rows + row;
      T* y = y_rows + row;
      const A best = row_max(table, x, C);
      const double sum = row_exp_sum(table, x, best, C);
      if (!args.log) return row_scaled_exp(table, x, best, static_cast<A>(1 / sum), y, C);
      const A log_sum = static_cast<A>(std::log(sum));
      for (int64_t i = 0; i < C; ++i)
        y[i] = static_cast<T>((static_cast<A>(x[i]) - best) - log_sum);
    });
  });
}

void softmax_backward(const SoftmaxBackward& args, Workspace, Stream& stream) {
  const int64_t C = args.y.extent(-1);
  visit_floating(args.y.dtype(), [&]<class T>() {
    using A = accumulator_t<T>;
    const T *y_rows = args.y.data<T>(), *dy_rows = args.dy.data<T>();
    T* dx_rows = args.dx.data<T>();
    for_each_row(args.y, stream, [&](int64_t row) {
      const T *y = y_rows + row, *dy = dy_rows + row;
      T* dx = dx_rows + row;
      double total = 0;
      for (int64_t i = 0; i < C; ++i) {
        const A slope = static_cast<A>(dy[i]);
        total += static_cast<double>(args.log ? slope : slope * static_cast<A>(y[i]));
      }
      const A sum = static_cast<A>(total);
      for (int64_t i = 0; i < C; ++i) {
        const A value = static_cast<A>(y[i]), slope = static_cast<A>(dy[i]);
        dx[i] = static_cast<T>(args.log ? slope - std::exp(value) * sum : value * (slope - sum));
      }
    });
  });
}

}  // namespace zg::cpu
