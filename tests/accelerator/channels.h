#pragma once

#include <string>
#include <vector>

#include "tests/runtime/comm/ranks.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::testing {

/// The fold of a gradient into its accumulator, as zero's engine has it.
inline void fold(const Tensor& piece, const Tensor& shard, bool first, Stream& stream) {
  const FoldGradient args{.parts = {{.leaf = piece, .sum = shard, .first = first}},
                          .rounding = piece.dtype()};
  kernels::fold_gradient[stream.type()].function(args, {}, stream);
}

/// x * 2, queued without a wait.
inline Tensor doubled(const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor two = Tensor::full({}, 2.0, x.dtype(), x.device());
  kernels::binary({BinaryOp::multiply, x, two, y}, x.device().compute());
  return y;
}

/// Checks groups of four ranks on accelerators, as threads or processes: data arrives, and no group
/// waits for another.
inline void check_channels(Communicator& comm, const Device& device) {
  const int pair[] = {comm.rank() % 2, comm.rank() % 2 + 2}, all[] = {3, 2, 1, 0};
  const auto down = comm.group(pair, "down"), up = comm.group(pair, "up");
  const auto others = comm.group(all, "others");
  const Tensor x = doubled(Tensor::full({70}, comm.rank() + 1.0, DType::bf16, device));
  const Tensor y = doubled(Tensor::full({70}, comm.rank() + 11.0, DType::bf16, device));
  const Tensor sum = Tensor::full({4}, comm.rank(), DType::i64, device);
  const auto lower = static_cast<double>(pair[0]), upper = static_cast<double>(pair[1]);
  // The receive of the answer is queued before the question is sent. The sum over all ranks runs at
  // the same time.
  const auto answer = up->broadcast(y, 1, "answer");
  const auto whole = others->all_reduce(sum, "sum");
  down->wait(down->broadcast(x, 0, "question"));
  expect(doubled(x).to_doubles() == std::vector<double>(70, 4 * (lower + 1)), "question");
  up->wait(answer);
  expect(doubled(y).to_doubles() == std::vector<double>(70, 4 * (upper + 11)), "answer");
  others->wait(whole);
  expect(sum.to_host<int64_t>() == std::vector<int64_t>(4, 6), "sum");
  for (const Space space : {Space::device, Space::pinned}) {
    const Tensor host = Tensor::full({2, 9}, comm.rank() + 1.0, DType::f32, device);
    const Tensor z = Tensor::empty({2, 9}, DType::f32, device, space);
    copy(host, z, device.compute());
    comm.wait(comm.broadcast(z, 2, "z"));
    expect(z.to_doubles() == std::vector<double>(18, 3.0), "z");
  }
}

}  // namespace zg::testing
