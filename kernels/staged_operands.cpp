#include "zerograd/kernels/staged_operands.h"

#include <algorithm>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

bool is_pinned(const Operand& operand) {
  return operand.tensor && operand.tensor.numel() > 0 &&
         operand.tensor.buffer()->space() == Space::pinned;
}

}  // namespace

int64_t StagedOperands::bytes_for(const std::vector<Operand>& operands) {
  int64_t bytes = 0;
  for (const Operand& operand : operands)
    if (is_pinned(operand)) bytes += arena_bytes(operand.tensor.bytes());
  return bytes;
}

StagedOperands::StagedOperands(const std::vector<Operand>& operands, const Workspace& scratch,
                               Stream& stream)
    : stream_(stream) {
  int64_t begin = scratch.bytes - bytes_for(operands);
  // An operand refers to a member of the caller's copy of the arguments, which is not const.
  for (const auto& [name, tensor, is_written] : operands) {
    if (!is_pinned({name, tensor})) continue;
    if (!scratch.tensor)
      raise<DeviceError>(
          "{}: pinned memory, in a call without scratch; expected memory of the device", name);
    const auto same = std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) {
      return copy.pinned.raw() == tensor.raw() && copy.pinned.bytes() == tensor.bytes();
    });
    const Tensor near = scratch.tensor->alias(begin, tensor.shape(), tensor.dtype());
    begin += arena_bytes(tensor.bytes());
    if (same != copies_.end()) {
      same->is_written |= is_written;
      const_cast<Tensor&>(tensor) =
          scratch.tensor->alias(same->near.raw() - scratch.data, tensor.shape(), tensor.dtype());
      continue;
    }
    stream_.copy(near.raw(), tensor.raw(), static_cast<size_t>(tensor.bytes()));
    copies_.push_back({tensor, near, is_written});
    const_cast<Tensor&>(tensor) = near;
  }
}

void StagedOperands::store() const {
  for (const Copy& copy : copies_)
    if (copy.is_written)
      stream_.copy(copy.pinned.raw(), copy.near.raw(), static_cast<size_t>(copy.near.bytes()));
}

}  // namespace zg
