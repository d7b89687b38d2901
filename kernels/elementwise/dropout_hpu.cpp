#include "zerograd/kernels/elementwise/dropout_hpu.h"

#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {

void dropout(const Dropout& a, Workspace, Stream& stream) {
  constexpr int64_t words = 4;  // in one Philox block
  const int64_t samples = a.x.extent(0);
  if (a.x.numel() == 0) return;
  const int64_t elements = a.x.numel() / samples;
  launch(stream, module("dropout", a.x.dtype()), "dropout",
         {.x = groups_for(groups_for(elements, words)), .y = samples}, a.x.raw(), a.residual.raw(),
         a.y.raw(), elements, a.key.seed, a.key.sample, a.key.step, a.key.site,
         dropout_threshold(a.probability), dropout_scale(a.probability));
}

}  // namespace zg::hpu
