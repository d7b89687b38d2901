#include "zerograd/runtime/comm/transport.h"

#include <algorithm>

namespace zg {
namespace {

// Larger windows are not faster. Smaller ones need more rounds, and a GPU is idle between rounds.
constexpr int64_t max_window_bytes = int64_t{32} << 20, min_slot_bytes = int64_t{1} << 20;

}  // namespace

int64_t CommWindow::bytes_for(Collective op, const Tensor& full, int64_t count, int size) {
  const Device::Type backend = full.device().traits().backend;
  if (size == 1 || count == 0 || backend == Device::Type::cpu) return 0;
  // Libraries such as NCCL can access device memory only: tensors in host memory are copied to the
  // window and back.
  const bool on_device = full.buffer()->space() == Space::device;
  const bool copies = op == Collective::all_gather || op == Collective::broadcast;
  if (copies && (on_device || backend == Device::Type::hpu)) return 0;
  const int64_t longest =
      std::max(min_slot_bytes, max_window_bytes / size / arena_granule * arena_granule);
  const int64_t slot = std::min(longest, arena_bytes(count * size_of(full.dtype())));
  if (op == Collective::broadcast) return slot;
  return slot * size * (op == Collective::reduce_scatter && !on_device ? 2 : 1);
}

void CommWindow::grow(const Device& device, int64_t bytes) {
  const PurposeScope purpose(device, Purpose::comm);
  const NameScope name(device, "pieces of peers");
  tensor_ = {};
  tensor_ = Tensor::empty({bytes}, DType::u8, device);
}

}  // namespace zg
