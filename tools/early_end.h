#pragma once

#include <string>

namespace zg::tools {

/// Why a run ends before its last step, where that is no signal: the file of --kill-switch-path.
inline constexpr int kill_switch = 1 << 8;

bool has_come(const std::string& kill_switch_path);  ///< "": never
/// ConfigError when it is there already: it would end every run that begins, and Megatron starts
/// none.
void refuse_kill_switch(const std::string& kill_switch_path);

std::string name_of_signal(int signal);  ///< of those that an zero::InterruptScope notes

}  // namespace zg::tools
