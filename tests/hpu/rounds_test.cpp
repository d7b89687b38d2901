#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

using namespace zg;

TEST_CASE("a reduce_scatter larger than the rank's window takes several rounds on hpu" *
          doctest::test_suite("every device")) {
  const int ranks = 2;
  constexpr int64_t window = int64_t{8} << 20, numel = window + 37;
  const auto fold = [](const Tensor& piece, const Tensor& shard, bool first, Stream& stream) {
    kernels::fold_gradient(
        {.parts = {{.leaf = piece, .sum = shard, .first = first}}, .rounding = piece.dtype()},
        stream);
  };
  const auto expect = [](const std::vector<float>& values, float begin) {
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != begin + 3.0f * static_cast<float>(i)) throw ShapeError("a piece is wrong");
  };
  run_local(ranks,
            [&](Communicator& comm, const Device& device) {
              const float scale = static_cast<float>(comm.rank() + 1);  // 1 + 2
              const Tensor full = Tensor::full({ranks * numel}, scale, DType::f32, device);
              for (int shard = 0; shard < ranks; ++shard) {
                const auto own = static_cast<float>(100 * shard);
                const Tensor marked = Tensor::from<float>(
                    {scale * own, scale * (own + 1), scale * (own + 2), scale * (own + 3)}, {4},
                    device);
                copy(marked, full.flat(shard * numel + window - 2, 4), device.compute());
                copy(marked, full.flat(shard * numel + numel - 4, 4), device.compute());
              }
              const Tensor sums = Tensor::full({numel}, NAN, DType::f32, device);
              comm.wait(comm.reduce_scatter(full, sums, true, fold, "long"));
              const float begin = 300.0f * static_cast<float>(comm.rank());
              expect(sums.flat(window - 2, 4).to_host<float>(), begin);
              expect(sums.flat(numel - 4, 4).to_host<float>(), begin);
              if (sums.flat(0, 1).to_host<float>()[0] != 3.0f)
                throw ShapeError("the beginning is wrong");
            },
            {.type = Device::Type::hpu});
}
