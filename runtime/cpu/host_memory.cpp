#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/arena.h"
#include "runtime/backend.h"
#include "runtime/error.h"

namespace zg {
namespace {

// Address space costs nothing until it is touched; four times the machine's memory leaves room for
// whatever can run here and keeps the arena one contiguous range, so freed neighbours always merge.
int64_t address_space_bytes() {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return std::max<int64_t>(physical * 4, Arena::grow_bytes) / Arena::grow_bytes * Arena::grow_bytes;
}

class HostMemory final : public ArenaMemory {
 public:
  HostMemory() : capacity_(address_space_bytes()) {
    constexpr auto step = static_cast<uintptr_t>(Arena::grow_bytes);
    const auto asked = static_cast<size_t>(capacity_) + step;
    void* start =
        mmap(nullptr, asked, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
      throw DeviceError("arena: cannot reserve " + std::to_string(capacity_) +
                        " bytes of address space: " + std::strerror(errno) +
                        "; raise the limit shown by `ulimit -v`");
    // Huge pages need a 2 MiB boundary.
    const auto address = reinterpret_cast<uintptr_t>(start);
    const uintptr_t aligned = (address + step - 1) / step * step;
    base_ = reinterpret_cast<std::byte*>(aligned);
    if (aligned > address) munmap(start, aligned - address);
    if (const uintptr_t tail = address + step - aligned; tail > 0) munmap(base_ + capacity_, tail);
    madvise(base_, static_cast<size_t>(capacity_), MADV_HUGEPAGE);  // a refusal only costs speed
  }
  ~HostMemory() override { munmap(base_, static_cast<size_t>(capacity_)); }

  std::byte* base() const override { return base_; }
  int64_t capacity() const override { return capacity_; }
  bool grow(int64_t from, int64_t to) override {
    return mprotect(base_ + from, static_cast<size_t>(to - from), PROT_READ | PROT_WRITE) == 0;
  }

 private:
  const int64_t capacity_;
  std::byte* base_ = nullptr;
};

}  // namespace

std::unique_ptr<ArenaMemory> host_memory() { return std::make_unique<HostMemory>(); }

}  // namespace zg
