#include "zerograd/runtime/machine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

// No limit: the file has "max" or a number larger than any memory, or it does not exist.
int64_t limit_in(const std::string& path) {
  int64_t limit = 0;
  return std::ifstream(path) >> limit ? limit : unlimited;
}

// The quota is processor time in each period. -1: no limit, as in version 1.
int64_t quota_in(const std::string& control_groups) {
  int64_t quota = 0, period = 0;
  if (!(std::ifstream(control_groups + "/cpu.max") >> quota >> period)) {
    quota = limit_in(control_groups + "/cpu/cpu.cfs_quota_us");
    period = limit_in(control_groups + "/cpu/cpu.cfs_period_us");
  }
  if (quota <= 0 || period <= 0 || std::max(quota, period) == unlimited) return unlimited;
  return quota / period + (quota % period > 0);
}

}  // namespace

int64_t physical_memory_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(13)) * 1024;
  return physical_memory_bytes();
}

int64_t memory_limit_bytes() {
  struct sysinfo system {};
  const int64_t swap = sysinfo(&system) == 0 ? static_cast<int64_t>(system.totalswap) *
                                                   static_cast<int64_t>(system.mem_unit)
                                             : 0;
  // The limit files of control groups, version 2 and version 1, at the paths where a container sees
  // its own.
  return std::min({physical_memory_bytes() + swap, limit_in("/sys/fs/cgroup/memory.max"),
                   limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

int64_t addresses_left_bytes() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  int64_t mapped_pages = 0;
  std::ifstream("/proc/self/statm") >> mapped_pages;
  const int64_t mapped = mapped_pages * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - mapped);
}

int64_t thread_stack_bytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_attr_init(&attributes) != 0) return 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return static_cast<int64_t>(bytes);
}

int cores_of(int process, const std::string& control_groups) {
  cpu_set_t set;
  if (sched_getaffinity(process, sizeof set, &set) != 0) return 0;
  return static_cast<int>(std::min<int64_t>(CPU_COUNT(&set), quota_in(control_groups)));
}

int64_t thread_limit() {
  int64_t limit =
      std::min({limit_in("/proc/sys/kernel/threads-max"), limit_in("/sys/fs/cgroup/pids.max"),
                limit_in("/sys/fs/cgroup/pids/pids.max")});
  struct rlimit user {};
  if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &user) == 0 && user.rlim_cur != RLIM_INFINITY)
    limit = std::min(limit, static_cast<int64_t>(user.rlim_cur));
  return limit;
}

std::optional<int> number_in_variable(const char* variable, const char* ends) {
  const char* value = std::getenv(variable);
  if (!value) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(value, value + std::strlen(value), number);
  if (error != std::errc() || number < 0 || (*end != '\0' && !std::strchr(ends, *end)))
    raise<ConfigError>(
        "{}: expected a number of 0 or more, got '{}'; it comes from what started this process",
        variable, value);
  return number;
}

}  // namespace zg
