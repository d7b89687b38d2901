#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/launches.h"

namespace zg {

void adjust_count(OpCount& count, const ProjectionCrossEntropy& a) {
  count.operations =
      2 * a.x.numel() * a.weight.extent(0) * (1 + (a.dx ? 1 : 0) + (a.dweight ? 1 : 0));
  count.kind = KernelClass::product;
}

namespace cpu {
int64_t workspace_bytes(const ProjectionCrossEntropy&, const Device::Traits&);
}

ZG_KERNEL(
    ProjectionCrossEntropy, projection_cross_entropy, cpu::workspace_bytes,
    [](const auto& a, const auto& traits) { return cuda::projection_plan(a, traits).bytes; },
    [](const auto& a, const auto& traits) { return hpu::projection_plan(a, traits).bytes; })

}  // namespace zg
