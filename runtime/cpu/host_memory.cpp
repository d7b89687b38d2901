#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr int64_t step = Arena::grow_bytes;
constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

// The limit of `ulimit -v`: it counts every mapped address, also of pages that were never touched.
int64_t address_limit_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return no_limit;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(no_limit)));
}

// Four times the machine's memory: enough for any run, fragmentation included.
int64_t capacity_bytes() {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return std::max(step, std::min(physical * 4, address_limit_bytes()) / step * step);
}

/// One contiguous range of addresses, so that adjacent free blocks always merge.
class HostMemory final : public ArenaMemory {
 public:
  HostMemory() : limit_(address_limit_bytes()), capacity_(capacity_bytes()) {
    if (limit_ == no_limit)
      reserve();
    else
      claim();
  }
  ~HostMemory() override { munmap(base_, static_cast<size_t>(mapped_)); }

  std::byte* base() const override { return base_; }
  int64_t capacity() const override { return capacity_; }
  bool grow(int64_t from, int64_t to) override {
    if (to > mapped_ && !map(mapped_, to)) return false;
    mapped_ = std::max(mapped_, to);
    return mprotect(base_ + from, static_cast<size_t>(to - from), PROT_READ | PROT_WRITE) == 0;
  }
  std::string cause() const override {
    return limit_ == no_limit
               ? ""
               : fmt::format("; `ulimit -v` allows this process {} bytes of addresses in all",
                             limit_);
  }

 private:
  // Mapped addresses take no memory until they are touched, so the whole range is mapped at once.
  void reserve() {
    void* start = mmap(nullptr, static_cast<size_t>(capacity_ + step), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
      raise<OutOfMemory>("arena: cannot reserve {} bytes of addresses: {}", capacity_,
                         std::strerror(errno));
    // Huge pages need a 2 MiB boundary.
    const auto address = reinterpret_cast<uintptr_t>(start);
    constexpr auto boundary = static_cast<uintptr_t>(step);
    const uintptr_t aligned = (address + boundary - 1) / boundary * boundary;
    base_ = static_cast<std::byte*>(start) + (aligned - address);
    mapped_ = capacity_;
    if (aligned > address) munmap(start, aligned - address);
    if (const uintptr_t tail = address + boundary - aligned; tail > 0)
      munmap(base_ + capacity_, tail);
    use_huge_pages(base_, capacity_);
  }

  // Under a memory limit only used bytes may be mapped. Each arena takes an address range far from
  // where the system puts other mappings, reserves it by mapping its first step, and maps the rest
  // as it grows. Existing mappings are never replaced.
  void claim() {
    constexpr int64_t first = int64_t{1} << 36, last = int64_t{1} << 46;
    for (int64_t address = first; address + capacity_ <= last; address += capacity_) {
      base_ = reinterpret_cast<std::byte*>(address);  // NOLINT: the address is chosen
      if (map(0, step)) {
        mapped_ = step;
        return;
      }
      if (errno != EEXIST) break;
    }
    raise<OutOfMemory>("arena: cannot map {} bytes of addresses: {}{}", step, std::strerror(errno),
                       cause());
  }

  bool map(int64_t from, int64_t to) {
    const auto bytes = static_cast<size_t>(to - from);
    void* const wanted = base_ + from;
    void* const there =
        mmap(wanted, bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == MAP_FAILED) return false;
    if (there != wanted) {  // before Linux 4.17 the address is only a hint
      munmap(there, bytes);
      errno = EEXIST;
      return false;
    }
    use_huge_pages(base_ + from, to - from);
    return true;
  }

  // The first step keeps small pages: a small arena would clear 2 MiB to use a few KiB. Errors are
  // ignored: without huge pages the memory is only slower.
  void use_huge_pages(std::byte* begin, int64_t bytes) const {
    const int64_t small = begin == base_ ? step : 0;
    if (bytes > small) madvise(begin + small, static_cast<size_t>(bytes - small), MADV_HUGEPAGE);
  }

  const int64_t limit_, capacity_;
  std::byte* base_ = nullptr;
  int64_t mapped_ = 0;
};

}  // namespace

std::unique_ptr<ArenaMemory> host_memory() { return std::make_unique<HostMemory>(); }

}  // namespace zg
