#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/command_line/command_line.h"

namespace zg::tools {

/// The given flags of groups, in the order of the table, with their words, so that a command line
/// can be written again with some of them replaced.
class GivenFlags {
 public:
  /// Parsing then also adds the group's flags to this object, which must outlive it.
  FlagGroup recorded(FlagGroup group);
  std::vector<std::string> without(const std::set<std::string>& names) const;
  /// By first name.
  const std::vector<std::pair<std::string, std::vector<std::string>>>& all() const {
    return flags_;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> flags_;
};

/// The words as a line for a shell, quoted where needed.
std::string shell_line(std::vector<std::string> words);

}  // namespace zg::tools
