#include "tests/fakes/level_zero/settings.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/fakes/level_zero/report.h"

namespace zg::test_driver {
namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv((std::string("ZE_TEST_DRIVER_") + name).c_str());
  return value && *value ? value : nullptr;
}

void number(const char* name, auto& to) {
  const char* const value = variable(name);
  if (!value) return;
  std::istringstream text(value);
  uint64_t read = 0;
  if (text >> read && text.eof()) {
    to = static_cast<std::remove_reference_t<decltype(to)>>(read);
  } else {
    report("ZE_TEST_DRIVER_%s=%s: expected a number", name, value);
  }
}

Settings from_environment() {
  Settings read;
#ifdef __SANITIZE_ADDRESS__
  read.at_once = true;  // the runtime poisons what it frees, though queued work may still use it
#endif
  number("DEVICES", read.devices);
  number("MEMORY", read.memory);
  number("DPAS", read.products);
  if (const char* kind = variable("KIND")) read.kind = kind;
  number("VERSION", read.version);
  number("GROUPS", read.groups);
  number("IN_ORDER", read.in_order);
  number("BUILD_MS", read.build_ms);
  number("BUILDS_MEET", read.builds_meet);
  number("ROUNDED", read.rounded_divide);
  number("IMPORT", read.imports);
  number("PEERS", read.peers);
  number("STRICT", read.strict);
  number("CHAOS", read.chaos);
  number("AT_ONCE", read.at_once);
  number("TRACE", read.trace);
  number("PATIENCE_MS", read.patience_ms);
  number("THREADS", read.threads);
  read.threads = std::clamp(read.threads, 1u, 2u);  // as many as there are copies of a module
  if (const char* sizes = variable("SUB_GROUPS")) {
    read.sub_groups.clear();
    std::istringstream text(sizes);
    for (std::string size; std::getline(text, size, ',');) {
      if (size == "8" || size == "16" || size == "32") {
        read.sub_groups.push_back(static_cast<unsigned>(std::stoi(size)));
      } else if (size != "none") {
        report("ZE_TEST_DRIVER_SUB_GROUPS=%s: expected some of 8,16,32, or none", sizes);
      }
    }
  }
  const char* const cache = variable("CACHE");
  read.cache = cache ? cache : ZG_TEST_DRIVER_CACHE;
  return read;
}

}  // namespace

const Settings& settings() {
  static const Settings* const read = new Settings(from_environment());  // outlives other statics
  return *read;
}

}  // namespace zg::test_driver
