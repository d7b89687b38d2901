#include "tests/fakes/level_zero/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/fakes/level_zero/objects.h"
#include "tests/fakes/level_zero/settings.h"

namespace zg::test_driver {
namespace {

constexpr size_t page = 4096, poisoned_bytes = size_t{16} << 20;

size_t in_whole_pages(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

/// A file full of 0xFF. Memory that maps it privately holds NaN and uses no RAM until it is
/// written.
int poisoned_file() {
  static const int file = [] {
    const int made = memfd_create("poison", MFD_CLOEXEC);
    const std::vector<unsigned char> block(1 << 20, 0xff);
    for (size_t at = 0; at < poisoned_bytes; at += block.size()) {
      if (pwrite(made, block.data(), block.size(), static_cast<off_t>(at)) < 0) return -1;
    }
    return made;
  }();
  return file;
}

/// Maps [first, first + bytes) to memory that holds NaN.
bool fill_addresses(std::byte* first, size_t bytes) {
  for (size_t at = 0; at < bytes; at += poisoned_bytes) {
    const size_t part = std::min(poisoned_bytes, bytes - at);
    if (mmap(first + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             poisoned_file(), 0) == MAP_FAILED)
      return false;
  }
  return true;
}

bool empty_addresses(std::byte* first, size_t bytes) {
  return mmap(first, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
              0) != MAP_FAILED;
}

#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer explains faults itself
const Memory* explained = nullptr;
struct sigaction old_action;

void explain(int number, siginfo_t* info, void* context) {
  const char* const address = static_cast<const char*>(info->si_addr);
  const Allocation* const near = explained->find_near(address);
  char words[512];
  constexpr int longest = sizeof words - 1;  // snprintf returns the length before truncation
  int length =
      std::min(longest, std::snprintf(words, sizeof words, "zerograd test driver: %s accessed %p",
                                      device_does ? device_does : "the host", info->si_addr));
  if (near) {
    const long at = address - reinterpret_cast<const char*>(near->begin);
    const long after = at - static_cast<long>(near->bytes);
    length += std::snprintf(words + length, sizeof words - static_cast<size_t>(length),
                            ", %ld bytes %s an allocation of %zu bytes on %s",
                            at < 0       ? -at
                            : after >= 0 ? after
                                         : at,
                            at < 0       ? "before"
                            : after >= 0 ? "after"
                                         : "into",
                            near->bytes, near->device ? near->device->name : "the host");
    length = std::min(length, longest);
  }
  [[maybe_unused]] const bool shown =
      write(2, words, static_cast<size_t>(length)) > 0 && write(2, "\n", 1) > 0;
  // Restores the old handler: after the return the access is repeated and ends the process.
  sigaction(number, &old_action, nullptr);
  if (old_action.sa_flags & SA_SIGINFO) {
    old_action.sa_sigaction(number, info, context);
  } else if (old_action.sa_handler != SIG_DFL && old_action.sa_handler != SIG_IGN) {
    old_action.sa_handler(number);
  }
}
#endif

}  // namespace

std::byte* Memory::allocate(size_t bytes, size_t alignment, ze_memory_type_t type, Device* device) {
  alignment = std::max<size_t>(alignment, 64);
  const size_t body = in_whole_pages(bytes), mapped = body + 2 * page;
  void* const mapping =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  std::byte* const first = static_cast<std::byte*>(mapping) + page;
  if (!fill_addresses(first, body)) {
    munmap(mapping, mapped);
    return nullptr;
  }
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(first) + body - bytes) & ~(alignment - 1);
  all_[begin] = {reinterpret_cast<std::byte*>(begin), bytes, type, device, false,
                 static_cast<std::byte*>(mapping),    mapped};
  if (device && settings().strict && !is_open(device)) mprotect(first, body, PROT_NONE);
  return reinterpret_cast<std::byte*>(begin);
}

void Memory::free(const Allocation& allocation) {
  munmap(allocation.mapping, allocation.mapped);
  all_.erase(reinterpret_cast<uintptr_t>(allocation.begin));
}

std::byte* Memory::reserve(size_t bytes) {
  const size_t all = bytes + 2 * large_page;
  void* const mapping =
      mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  std::byte* const first = static_cast<std::byte*>(mapping);
  std::byte* const begin = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(first) + large_page) & ~(large_page - 1));
  // Keeps a guard page at each end and unmaps the bytes that the alignment does not need.
  if (begin - page > first) munmap(first, static_cast<size_t>(begin - page - first));
  munmap(begin + bytes + page, static_cast<size_t>(first + all - (begin + bytes + page)));
  return begin;
}

void Memory::free_reserved(std::byte* begin, size_t bytes) {
  munmap(begin - page, bytes + 2 * page);
}

bool Memory::map(std::byte* begin, size_t bytes, Device* device) {
  if (!fill_addresses(begin, bytes)) return false;
  if (settings().strict && !is_open(device)) mprotect(begin, bytes, PROT_NONE);
  add({begin, bytes, ZE_MEMORY_TYPE_DEVICE, device, false, begin - page, bytes + 2 * page});
  return true;
}

bool Memory::unmap(std::byte* begin, size_t bytes) {
  return remove(begin, bytes) && empty_addresses(begin, bytes);
}

void Memory::import_host(std::byte* begin, size_t bytes) {
  add({begin, bytes, ZE_MEMORY_TYPE_HOST, nullptr, true, begin - page, bytes + 2 * page});
}

bool Memory::release(std::byte* begin, size_t bytes) { return remove(begin, bytes); }

bool Memory::remove(std::byte* begin, size_t bytes) {
  const Allocation* const found = find(begin);
  if (!found || found->begin != begin || found->bytes != bytes) return false;
  all_.erase(reinterpret_cast<uintptr_t>(begin));
  return true;
}

size_t Memory::page_of(size_t bytes) {
  constexpr size_t huge = size_t{8} << 30;
  if (bytes >= huge && std::has_single_bit(bytes)) return bytes;
  return bytes >= large_page ? large_page : size_t{64} << 10;
}

const Allocation* Memory::find(const void* p) const {
  auto found = all_.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (found == all_.begin()) return nullptr;
  --found;
  return found->second.holds(p) ? &found->second : nullptr;
}

const Allocation* Memory::find_near(const void* p) const {
  if (const Allocation* const a = find(p)) return a;
  for (const auto& [begin, a] : all_) {
    if (p >= a.mapping && p < a.mapping + a.mapped) return &a;
  }
  return nullptr;
}

const Allocation* Memory::find_touched() const {
  static const std::vector<unsigned char> untouched(page, 0xff);
  const auto touched = [](const std::byte* begin, const std::byte* end) {
    return std::memcmp(begin, untouched.data(), static_cast<size_t>(end - begin)) != 0;
  };
  for (const auto& [begin, a] : all_) {
    if (a.device && !is_open(a.device)) continue;
    if (touched(a.mapping + page, a.begin)) return &a;
    if (touched(a.begin + a.bytes, a.mapping + a.mapped - page)) return &a;
  }
  return nullptr;
}

bool Memory::is_open(const Device* device) const {
  return open_ && (open_ == device || !settings().peers);
}

void Memory::open(const Device* device, const std::vector<const void*>& places) {
  if (!settings().strict) return;
  const auto make_accessible = [](const Allocation& a) {
    mprotect(a.mapping + page, a.mapped - 2 * page, PROT_READ | PROT_WRITE);
  };
  if (!is_open(device)) {
    close();
    open_ = device;
    for (const auto& [begin, a] : all_)
      if (a.device && is_open(a.device)) make_accessible(a);
  }
  for (const void* place : places)
    if (const Allocation* const a = find(place); a && a->device && !is_open(a->device)) {
      make_accessible(*a);
      opened_places_.push_back(place);
    }
}

void Memory::close() {
  if (!open_) return;
  const auto make_inaccessible = [](const Allocation& a) {
    mprotect(a.mapping + page, a.mapped - 2 * page, PROT_NONE);
  };
  for (const auto& [begin, a] : all_)
    if (a.device && is_open(a.device)) make_inaccessible(a);
  for (const void* place : opened_places_)
    if (const Allocation* const a = find(place)) make_inaccessible(*a);
  opened_places_.clear();
  open_ = nullptr;
}

void explain_faults(const Memory& memory) {
#ifndef __SANITIZE_ADDRESS__
  explained = &memory;
  struct sigaction action = {};
  action.sa_sigaction = &explain;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &old_action);
#else
  (void)memory;
#endif
}

}  // namespace zg::test_driver
