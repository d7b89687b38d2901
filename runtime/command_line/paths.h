#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg {

/// The use that a command makes of a path that a flag names.
enum class PathUse : uint8_t {
  none,     ///< the value is not a path
  reads,    ///< a file, or a folder with all that is in it
  resumes,  ///< a checkpoint, which may be in a folder that the command `adds` to
  watches,  ///< only whether it exists matters, or it gets files without names
  writes,   ///< a file or a folder, whose old contents may be replaced
  adds,     ///< a folder that gets checkpoints or event files under new names
};
const char* name_of(PathUse use);

struct NamedPath {
  std::string flag;  ///< as errors name it: "--metrics"
  PathUse use;
  std::string path;  ///< empty: not given
};
/// The same use of each path, for no flag yet.
std::vector<NamedPath> used(PathUse use, const std::vector<std::string>& paths);

/// Throws ConfigError, which names both flags, if an output is, contains or lies in an input, or if
/// two outputs are one. Files and folders are compared by inode, so that links, "..", and the case
/// of letters do not hide them; what does not exist yet, by its name in the nearest existing
/// parent. Devices and pipes are never refused.
void check_paths(const std::vector<NamedPath>& paths);

}  // namespace zg
