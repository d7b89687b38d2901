#include "zerograd/runtime/comm/process_id.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

struct Status {
  char state = 'X';  // dead, or no such process
  uint64_t start = 0;
};

// Reads /proc/PID/stat, such as "4711 (NAME) S ...". NAME may contain any character, also ')'. The
// 22nd field is the start time.
Status status_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return {};
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  Status status;
  fields >> status.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> status.start;
  return status;
}

}  // namespace

ProcessId ProcessId::own() {
  ProcessId id;
  gethostname(id.host, sizeof id.host - 1);
  id.pid = getpid();
  id.start = status_of(id.pid).start;
  return id;
}

bool ProcessId::same_host(const ProcessId& other) const {
  return std::strcmp(host, other.host) == 0;
}

bool ProcessId::alive() const {
  const Status status = status_of(pid);
  return status.start == start && status.state != 'Z' && status.state != 'X';
}

}  // namespace zg::cpu
