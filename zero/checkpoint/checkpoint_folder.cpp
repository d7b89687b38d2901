#include "zerograd/zero/checkpoint/checkpoint_folder.h"

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

namespace fs = std::filesystem;

std::string step_name(int64_t step) { return step_prefix + std::to_string(step); }

/// Writes the file `latest` for users and scripts. Loading ignores it and uses the newest
/// checkpoint that verifies.
void write_latest(const std::string& directory, const std::string& name) {
  const std::string unfinished = fmt::format("{}/{}{}", directory, unfinished_prefix, latest_name);
  try {
    write_text(unfinished, name);
    rename_over(unfinished, directory + "/" + latest_name);
    sync_directory(directory);
  } catch (const FileError&) {  // ignored: the checkpoint is complete without this file
  }
}

}  // namespace

std::string shard_name(int rank) { return fmt::format("{}{:05}.safetensors", shard_prefix, rank); }

std::vector<Engine::State> states_of(const Parameter& parameter, const Engine& engine) {
  return parameter.saved ? engine.states(parameter) : std::vector<Engine::State>();
}

void check(const std::error_code& error, const char* operation, const std::string& path) {
  if (error) raise<FileError>("{}: {}: {}", operation, path, error.message());
}

std::vector<fs::path> entries_of(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  check(error, "list", directory);
  return entries;
}

void remove_unfinished(const std::string& directory) noexcept try {
  for (const fs::path& entry : entries_of(directory)) {
    std::error_code ignored;
    if (!entry.filename().string().starts_with(unfinished_prefix)) continue;
    std::optional<Folder> folder;
    if (fs::symlink_status(entry, ignored).type() == fs::file_type::directory)
      folder = Folder::open(entry.string());
    if (!folder || folder->lock()) fs::remove_all(entry, ignored);  // no process writes it
  }
} catch (const std::exception&) {  // ignored: a remaining folder only uses disk space
}

UnfinishedFolder::UnfinishedFolder(const std::string& directory, int64_t step)
    : directory_(directory), name_(step_name(step)), path_(path_of(directory, step)) {
  make_directories(directory_);
  remove_unfinished(directory_);
  std::error_code error;
  // Files of a killed process must not become part of this checkpoint.
  if (!fs::create_directory(path_, error) && !error)
    error = std::make_error_code(std::errc::file_exists);
  check(error, "create", path_);
  lock_ = Folder::open(path_);
  if (!lock_ || !lock_->lock() || !lock_->is_at(path_)) {
    lock_.reset();
    raise<FileError>("create: {}: another process has removed it", path_);
  }
}

UnfinishedFolder::~UnfinishedFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string UnfinishedFolder::path_of(const std::string& directory, int64_t step) {
  return fmt::format("{}/{}{}", directory, unfinished_prefix, step_name(step));
}

std::string UnfinishedFolder::finish(Manifest manifest) {
  const std::string finished = directory_ + "/" + name_;
  for (const auto& [name, contents] : manifest.info.files) {
    write_text(path_ + "/" + name, contents);
    manifest.file_checksums[name] = checksum(std::as_bytes(std::span(contents)));
  }
  write_text(path_ + "/" + manifest_name, manifest_text(manifest));
  sync_directory(path_);
  rename_over(path_, finished);
  sync_directory(directory_);
  write_latest(directory_, name_);
  return finished;
}

}  // namespace zg::zero
