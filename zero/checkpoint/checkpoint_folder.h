#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "zerograd/zero/checkpoint/manifest.h"
#include "zerograd/zero/engine.h"

// The folder of a checkpoint: names of its files and tensors, and how it is made.
// checkpoint_file.h documents the contents.
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

/// Where a step_N grows: beside its place, under another name until finish(). Whatever is there
/// when it goes out of scope goes with it. One process at a time writes to a directory: what a
/// killed one left unfinished is removed first. FileError.
class UnfinishedFolder {
 public:
  UnfinishedFolder(const std::string& directory, int64_t step);
  ~UnfinishedFolder();
  UnfinishedFolder(const UnfinishedFolder&) = delete;

  /// Its path, which other processes know too.
  static std::string path_of(const std::string& directory, int64_t step);
  const std::string& path() const { return path_; }
  /// Writes the info's files and the manifest and gives the folder its name, in place of one that
  /// had it; all of it is on the disk when it returns. Returns the step_N.
  std::string finish(Manifest manifest);

 private:
  const std::string directory_, name_, path_;
};

}  // namespace zg::zero
