#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/zero/checkpoint/manifest.h"
#include "zerograd/zero/engine.h"

// The folder of a checkpoint: the names of its files and tensors, and the class that writes it.
// checkpoint_info.h documents the contents.
namespace zg::zero {

inline constexpr const char* step_prefix = "step_";
inline constexpr const char* unfinished_prefix = ".unfinished_";
inline constexpr const char* latest_name = "latest";
std::string shard_name(int rank);                            ///< "shard_00003.safetensors"
inline constexpr int64_t max_file_bytes = int64_t{1} << 30;  ///< of all CheckpointInfo::files

/// The states saved for a parameter. None if checkpoints leave it out.
std::vector<Engine::State> states_of(const Parameter& parameter, const Engine& engine);

std::vector<std::filesystem::path> entries_of(const std::string& directory);  ///< throws FileError
/// Throws FileError "operation: path: reason" if `error` is an error.
void check(const std::error_code& error, const char* operation, const std::string& path);

ZG_API void remove_unfinished(const std::string& directory) noexcept;  // checkpoint_file.h

/// RAII: the temporary folder in which a step_N is written. It is in the same directory as the
/// final folder; finish() renames it. The destructor removes an unfinished folder. The folder is
/// locked. The constructor removes the folders that killed processes left, and throws FileError if
/// another process writes this step_N.
class UnfinishedFolder {
 public:
  UnfinishedFolder(const std::string& directory, int64_t step);
  ~UnfinishedFolder();
  UnfinishedFolder(const UnfinishedFolder&) = delete;

  /// The path of the temporary folder. Other ranks compute the same path.
  static std::string path_of(const std::string& directory, int64_t step);
  const std::string& path() const { return path_; }
  /// Writes the files of CheckpointInfo and the manifest, syncs everything to disk and renames the
  /// folder to step_N, replacing an older one. Returns the path of the step_N.
  std::string finish(Manifest manifest);

 private:
  const std::string directory_, name_, path_;
  std::optional<Folder> lock_;
};

}  // namespace zg::zero
