#include "tools/early_end.h"

#include <csignal>
#include <filesystem>

#include "zerograd/runtime/error.h"

namespace zg::tools {

bool has_come(const std::string& kill_switch_path) {
  std::error_code ignored;  // a folder that cannot be read has no file for us
  return !kill_switch_path.empty() && std::filesystem::exists(kill_switch_path, ignored);
}

void refuse_kill_switch(const std::string& kill_switch_path) {
  if (has_come(kill_switch_path))
    throw ConfigError("--kill-switch-path: expected no file of this name before the run, got " +
                      kill_switch_path + "; try removing it");
}

std::string name_of_signal(int signal) {
  if (signal == SIGPIPE) return "SIGPIPE (nobody reads the output)";
  return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
}

}  // namespace zg::tools
