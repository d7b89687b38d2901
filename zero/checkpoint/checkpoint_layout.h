#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "zerograd/zero/engine.h"

// Names of the files and tensors of a checkpoint; checkpoint_file.h documents their contents.
namespace zg::zero {

inline constexpr const char* step_prefix = "step_";
inline constexpr const char* shard_prefix = "shard_";
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* unfinished_prefix = ".unfinished_";
inline constexpr const char* latest_name = "latest";
std::string shard_name(int rank);  ///< "shard_00003.safetensors"
/// Whether CheckpointInfo::files accepts the name; its comment has the rule.
bool is_own_file_name(const std::string& name);
inline constexpr int64_t most_file_bytes = int64_t{1} << 30;  ///< all those files together

struct NamedState {
  Engine::State state;
  const char* name;
};
/// The states saved for a parameter. A frozen parameter has only its value.
std::span<const NamedState> states_of(const Parameter& parameter);

std::vector<std::filesystem::path> entries_of(const std::string& directory);  ///< FileError
/// FileError "operation: path: reason" when there is an error.
void check(const std::error_code& error, const char* operation, const std::string& path);

}  // namespace zg::zero
