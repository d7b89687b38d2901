#pragma once

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace zg::testing {

[[noreturn]] inline void report(const std::string& finding, const std::string& message) {
  std::fprintf(stderr, "FINDING: %s: %s\n", finding.c_str(), message.c_str());
  std::abort();
}

/// A file without a name in any folder, for readers that take a path.
struct MemoryFile {
  explicit MemoryFile(const char* name) : descriptor(memfd_create(name, MFD_CLOEXEC)) {}
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor); }
  void set(const std::string& bytes) const {
    if (ftruncate(descriptor, 0) != 0 ||
        pwrite(descriptor, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      std::abort();
  }
  const int descriptor;
};

inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Calls f. More than a second of processor time is a finding, and so is an exception, which is not
/// caught. Wall time is not used, because other processes of the machine would change it.
template <class F>
void bounded(const F& f) {
  const double begin = processor_seconds();
  f();
  if (processor_seconds() - begin > 1.0) report("slow", "more than a second for one input");
}

}  // namespace zg::testing
