#include "tests/fuzz/bounded.h"
#include "tests/support/placed_message.h"
#include "tools/launch/launcher.h"
#include "zerograd/runtime/error.h"

// A hostfile and, after a byte 0, the text of --include or --exclude. Accepted names are passed to
// mpirun, so they must not look like options or shell syntax.
namespace zg::testing {
namespace {

const std::string file = "hosts";

void check_names(const std::vector<tools::Host>& hosts) {
  for (const tools::Host& host : hosts) {
    for (const char c : host.name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-')
        report("no host's name", host.name);
    if (host.name.empty() || host.name[0] == '-') report("an option", host.name);
    if (host.slots.empty()) report("a host without slots", host.name);
  }
}

void read(const std::string& text, const std::string& selection, bool include) {
  std::vector<tools::Host> hosts;
  try {
    hosts = tools::parse_hosts(text, file);
  } catch (const ConfigError& error) {
    if (const std::string flaw = flaw_of(error.what(), file, text, false); !flaw.empty())
      report(flaw, error.what());
    return;
  }
  check_names(hosts);
  try {
    check_names(tools::selected(hosts, include ? selection : "", include ? "" : selection));
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    const char* begin = include ? "--include: " : "--exclude: ";
    if (!message.starts_with(begin) || message.find("expected ") == std::string::npos ||
        !is_one_line(message) || message.size() > 2000)
      report("a selection's error", message);
  }
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  const size_t end = std::min(text.find('\0'), size);
  bounded(
      [&] { read(text.substr(0, end), end < size ? text.substr(end + 1) : "", size % 2 == 0); });
  return 0;
}
