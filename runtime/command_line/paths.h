#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg {

/// How a command uses a path that a flag names.
enum class PathUse : uint8_t {
  none,     ///< the value is not a path
  reads,    ///< a file, or a folder with all that is in it
  resumes,  ///< a checkpoint, which may be in a folder that the command `adds` to
  watches,  ///< a file whose existence is tested, or a folder for files without names
  writes,   ///< a file or a folder, whose old contents may be replaced
  adds,     ///< a folder that gets checkpoints or event files under new names
};
const char* name_of(PathUse use);

struct NamedPath {
  std::string flag;  ///< as errors name it: "--metrics"
  PathUse use;
  std::string path;  ///< empty: not given
};
/// Returns the paths, each with this use and without a flag.
std::vector<NamedPath> used(PathUse use, const std::vector<std::string>& paths);

/// Throws ConfigError, which names both flags, if an output is, contains or lies in an input, or if
/// two outputs are the same path. Files and folders are compared by inode, so that links, "..", and
/// the case of letters do not hide them. A path that does not exist yet is compared by its name
/// below the nearest existing parent. Devices and pipes are never refused.
void check_paths(const std::vector<NamedPath>& paths);

}  // namespace zg
