#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

// Finds the step_N folders of a directory and chooses the one that a run uses.
namespace zg::zero {
namespace {

namespace fs = std::filesystem;

/// Returns N of a name step_N.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [rest, error] =
      std::from_chars(name.data() + std::string(step_prefix).size(), end, step);
  if (error != std::errc() || rest != end || step < 0) return std::nullopt;
  return step;
}

}  // namespace

std::vector<StepFolder> step_folders(const std::string& directory) {
  std::vector<StepFolder> folders;
  if (!path_exists(directory)) return folders;
  if (!is_directory(directory))
    raise<FileError>("checkpoint: {}: is not a folder; expected a step_N folder or one with some",
                     directory);
  for (const fs::path& entry : entries_of(directory))
    if (const std::optional<int64_t> step = step_of(entry.filename().string()))
      folders.push_back({*step, entry.string()});
  std::ranges::sort(folders,
                    [](const StepFolder& a, const StepFolder& b) { return a.steps > b.steps; });
  return folders;
}

void remove_checkpoint(const std::string& step_folder) {
  const fs::path folder = fs::path(step_folder).lexically_normal();
  const fs::path directory = folder.has_parent_path() ? folder.parent_path() : ".";
  const fs::path removed =
      directory / (fmt::format("{}{}.removed", unfinished_prefix, folder.filename().string()));
  rename_over(folder.string(), removed.string());
  // Without this sync a power failure could leave the old name with some of its files removed.
  sync_directory(directory.string());
  std::error_code error;
  fs::remove_all(removed, error);
  check(error, "remove", removed.string());
}

bool lies_in(const std::string& step_folder, const std::string& directory) {
  std::error_code missing;  // a path that cannot be compared is treated as missing
  fs::path folder = fs::canonical(step_folder, missing);
  if (missing) folder = fs::absolute(step_folder, missing).lexically_normal();
  return !missing && fs::equivalent(folder.parent_path(), directory, missing);
}

std::string find_checkpoint(const std::string& path) {
  if (path_exists(path + "/" + manifest_name)) return path;
  if (!path_exists(path))
    raise<FileError>(
        "checkpoint: {}: there is nothing of that name; expected a step_N folder or one with some",
        path);
  for (const StepFolder& folder : step_folders(path))
    if (path_exists(folder.path + "/" + manifest_name)) return folder.path;
  raise<FileError>("checkpoint: {}: expected a step_N folder or one inside it", path);
}

namespace {

using Reader = std::shared_ptr<CheckpointReader>;

// An attempt fails only if another process saves or removes a checkpoint meanwhile, so few attempts
// are needed.
constexpr int max_attempts = 100;

[[noreturn]] void refuse_changing(const std::string& path) {
  raise<FileError>(
      "checkpoint: {}: its checkpoints are replaced faster than they can be read; try again later",
      path);
}

/// The newest step_N of a directory that `accept` accepts; null if it accepts none. `accept`
/// returns a reader, null to skip the folder, or nullopt if the folder was removed meanwhile.
Reader newest_of(const std::string& directory,
                 const std::function<std::optional<Reader>(const StepFolder&)>& accept) {
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    std::optional<Reader> seen = Reader();
    for (const StepFolder& folder : step_folders(directory)) {
      seen = accept(folder);
      if (!seen) break;
      if (*seen) return *seen;
    }
    if (seen) return nullptr;
  }
  refuse_changing(directory);
}

/// The first damage and the number of the others, in one line.
std::string summary(const std::vector<std::string>& damages) {
  const size_t more = damages.size() - 1;
  return damages.front() + (more ? fmt::format("; and {} more", more) : "");
}

}  // namespace

std::shared_ptr<CheckpointReader> open_checkpoint(const std::string& path) {
  for (int attempt = 0; path_exists(path + "/" + manifest_name); ++attempt) {
    if (Reader reader = CheckpointReader::open(path)) return reader;
    if (attempt == max_attempts) refuse_changing(path);
  }
  Reader newest;
  if (path_exists(path))
    newest = newest_of(path, [](const StepFolder& folder) -> std::optional<Reader> {
      if (path_exists(folder.path + "/" + manifest_name)) {
        const Reader reader = CheckpointReader::open(folder.path);
        return reader ? std::optional(reader) : std::nullopt;
      }
      return path_exists(folder.path) ? std::optional(Reader()) : std::nullopt;
    });
  return newest ? newest : open_checkpoint(find_checkpoint(path));
}

std::shared_ptr<CheckpointReader> choose_checkpoint(const std::string& path,
                                                    const PassedOver& passed_over) {
  if (step_folders(path).empty()) return open_checkpoint(path);
  std::set<std::string> damaged;
  const Reader newest = newest_of(path, [&](const StepFolder& folder) -> std::optional<Reader> {
    std::vector<std::string> damages;
    try {
      Reader reader = CheckpointReader::open(folder.path);
      if (!reader) return std::nullopt;
      damages = reader->damages();
      if (damages.empty()) return reader;
    } catch (const FileError& error) {
      damages = {error.what()};
    }
    if (damaged.insert(folder.path).second && passed_over) passed_over(folder, summary(damages));
    return nullptr;
  });
  if (newest) return newest;
  throw FileError(path + (damaged.size() == 1 ? ": its one checkpoint does not verify"
                                              : fmt::format(": none of its {} checkpoints verifies",
                                                            damaged.size())));
}

CheckpointInfo read_checkpoint_info(const std::string& path) {
  return open_checkpoint(path)->info();
}

std::vector<std::string> damages_of(const std::string& step_folder) {
  try {
    for (int attempt = 0; attempt < max_attempts; ++attempt) {
      if (const Reader reader = CheckpointReader::open(step_folder)) return reader->damages();
      if (!path_exists(step_folder))
        raise<FileError>("checkpoint: {}: there is nothing of that name", step_folder);
    }
    refuse_changing(step_folder);
  } catch (const FileError& error) {
    return {error.what()};
  }
}

void verify_checkpoint(const std::string& path) {
  const std::vector<std::string> damages = damages_of(find_checkpoint(path));
  if (!damages.empty()) throw FileError(summary(damages));
}

}  // namespace zg::zero
