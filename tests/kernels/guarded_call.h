#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/kernels/kernel.h"

// Kernel calls whose outputs lie between guards: bytes that the kernel must not touch.
namespace zg::testing {

/// Whether this test's kernel calls on an accelerator lie between guards
/// (tests/accelerator/main.cpp).
inline bool guards_installed = false;

/// Memory of a device, of exactly so many bytes.
using ExactMemory = std::shared_ptr<void> (*)(const Device& device, size_t bytes);

/// If set, each operand of such a call, also one that is only read, lies in exact memory instead of
/// between guards: a checker of the device's memory (compute-sanitizer) then sees each access
/// beyond an operand, while it sees an arena as one allocation.
inline ExactMemory exact_memory = nullptr;
/// An allocation of the CUDA runtime, for tests on a GPU.
std::shared_ptr<void> cuda_memory(const Device& device, size_t bytes);

/// Moves what a call writes, and what shares bytes with that, into memory with guards on both
/// sides; moves it back after the call and looks at the guards.
class GuardedMemory {
 public:
  static constexpr int64_t guard = 4096;  // bytes on each side
  static constexpr uint8_t pattern = 0xa5;

  GuardedMemory(std::string op, Stream& stream) : op_(std::move(op)), stream_(stream) {}

  /// The tensors are those of a copy of the call's arguments, which now lie between guards.
  void take(const std::vector<Operand>& operands) {
    for (const Operand& operand : operands)
      if (operand.tensor) join(operand);
    std::erase_if(regions_, [](const Region& region) {
      return !is_exact(region) && std::ranges::none_of(region.operands, [](const Operand* operand) {
        return operand->is_written;
      });
    });
    for (Region& region : regions_) {
      place(region);
      for (const Operand* operand : region.operands) {
        Tensor& tensor = const_cast<Tensor&>(operand->tensor);
        region.names.push_back({operand->name, tensor.dtype(), tensor.shape(),
                                tensor.byte_offset() - region.begin, operand->is_written});
        tensor = region.guarded.alias(region.data + tensor.byte_offset() - region.begin,
                                      tensor.shape(), tensor.dtype());
      }
      region.operands.clear();
    }
  }

  /// Waits for the call. A line for each end of an output that was written beyond.
  std::vector<std::string> give_back() {
    std::vector<std::string> damages;
    for (const Region& region : regions_) {
      const Tensor whole = Tensor::of(region.buffer, region.begin, {region.bytes()}, DType::u8);
      copy(region.guarded.flat(region.data, region.bytes()), whole, stream_);
      std::vector<uint8_t> bytes(static_cast<size_t>(region.guarded.numel()));
      stream_.copy(bytes.data(), region.guarded.raw(), bytes.size());
      stream_.synchronize();
      const auto is_damaged = [](uint8_t byte) { return byte != pattern; };
      const auto data = bytes.begin() + region.data, end = data + region.bytes();
      // The damage that is nearest to the output on either side.
      const auto before = std::find_if(std::reverse_iterator(data), bytes.rend(), is_damaged);
      if (before != bytes.rend())
        damages.push_back(damage(region, -1 - (before - std::reverse_iterator(data))));
      const auto behind = std::find_if(end, bytes.end(), is_damaged);
      if (behind != bytes.end()) damages.push_back(damage(region, behind - data));
    }
    regions_.clear();
    return damages;
  }

 private:
  struct Name {
    const char* name;
    DType dtype;
    Shape shape;
    int64_t offset;  ///< bytes from the region's begin
    bool is_written;
    int64_t end() const { return offset + shape.numel() * size_of(dtype); }
  };
  /// A range of bytes of one buffer.
  struct Region {
    std::shared_ptr<Buffer> buffer;
    int64_t begin = 0, end = 0;
    std::vector<const Operand*> operands = {};
    std::vector<Name> names = {};
    Tensor guarded = {};
    int64_t data = 0;  ///< where the range begins in `guarded`

    int64_t bytes() const { return end - begin; }
    bool meets(int64_t from, int64_t to) const {
      return (from < end && begin < to) || (from == begin && to == end);
    }
  };

  static bool is_exact(const Region& region) {
    return exact_memory && region.buffer->space() == Space::device;
  }

  /// Into a region of its own, or one with all that it shares bytes with.
  void join(const Operand& operand) {
    const Tensor& tensor = operand.tensor;
    Region joined{.buffer = tensor.buffer(),
                  .begin = tensor.byte_offset(),
                  .end = tensor.byte_offset() + tensor.bytes(),
                  .operands = {&operand}};
    for (size_t i = regions_.size(); i-- > 0;) {
      Region& other = regions_[i];
      if (other.buffer != joined.buffer || !other.meets(joined.begin, joined.end)) continue;
      joined.begin = std::min(joined.begin, other.begin);
      joined.end = std::max(joined.end, other.end);
      joined.operands.insert(joined.operands.begin(), other.operands.begin(), other.operands.end());
      regions_.erase(regions_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    regions_.push_back(std::move(joined));
  }

  // At the same place of a granule, for kernels choose by alignment.
  void place(Region& region) {
    const bool exact = is_exact(region);
    region.data = (exact ? 0 : guard) + region.begin % arena_granule;
    const int64_t bytes = region.data + region.bytes() + (exact ? 0 : guard);
    region.guarded =
        exact ? exact_tensor(bytes)
              : Tensor::empty({bytes}, DType::u8, stream_.device(), region.buffer->space());
    const std::vector<uint8_t> filled(static_cast<size_t>(bytes), pattern);
    stream_.copy(region.guarded.raw(), filled.data(), filled.size());
    copy(Tensor::of(region.buffer, region.begin, {region.bytes()}, DType::u8),
         region.guarded.flat(region.data, region.bytes()), stream_);
  }

  Tensor exact_tensor(int64_t bytes) const {
    const Device device = stream_.device();
    const std::shared_ptr<void> memory = exact_memory(device, static_cast<size_t>(bytes));
    auto* const data = static_cast<std::byte*>(memory.get());
    return Tensor::of(Buffer::share(device, data, bytes, Space::device, memory), 0, {bytes},
                      DType::u8);
  }

  /// `at`: bytes from the region's begin.
  std::string damage(const Region& region, int64_t at) const {
    const Name* nearest = nullptr;
    const auto distance = [&](const Name& name) {
      return at < 0 ? name.offset - at : at - name.end();
    };
    for (const Name& name : region.names)
      if (name.is_written && (!nearest || distance(name) < distance(*nearest))) nearest = &name;
    const int64_t size = size_of(nearest->dtype), from = at - nearest->offset;
    const int64_t element = from < 0 ? -((-from + size - 1) / size) : from / size;
    return op_ + ": wrote element " + std::to_string(element) + " of " + nearest->name + " (" +
           name_of(nearest->dtype) + " " + nearest->shape.str() + "); expected 0 to " +
           std::to_string(nearest->shape.numel() - 1);
  }

  const std::string op_;
  Stream& stream_;
  std::vector<Region> regions_;
};

/// Runs one backend's function of a kernel with guards around its outputs and its scratch. What was
/// written beyond them, a line each.
template <class Args>
std::vector<std::string> guarded_call(typename Kernel<Args>::Function function, const char* op,
                                      const Args& given, Workspace workspace, Stream& stream) {
  GuardedMemory memory(op, stream);
  Args args = given;
  Tensor scratch = workspace.tensor ? *workspace.tensor : Tensor();
  std::vector<Operand> written = operands(args);
  written.push_back({"the workspace", scratch, Operand::out});
  memory.take(written);
  if (scratch) workspace = {.data = scratch.raw(), .bytes = workspace.bytes, .tensor = &scratch};
  function(args, workspace, stream);
  return memory.give_back();
}

}  // namespace zg::testing
