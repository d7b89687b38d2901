#include "zerograd/runtime/storage/file_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <vector>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

namespace fs = std::filesystem;

// Names in the hidden folder. current: the folder into which links lead. fresh: the folder that
// replaces it. spare: a link before it is moved to its place. listing: the list of the files with
// their checksums, which is written before the first link is made.
constexpr const char *current = "current", *fresh = "new", *spare = "spare", *listing = "files";

[[noreturn]] void fail(const char* operation, const fs::path& path, int reason = errno) {
  raise<FileError>("{}: {}: {}", operation, path.string(), std::strerror(reason));
}

void make_link(const fs::path& target, const fs::path& path) {
  if (::symlink(target.c_str(), path.c_str()) != 0) fail("link", path);
}

/// False if the file system cannot exchange names.
bool exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail("exchange", fmt::format("{} and {}", a.string(), b.string()));
}

enum class Kind { none, file, link, other };
Kind kind_of(const fs::path& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Kind::none;
    fail("stat", path);
  }
  return S_ISREG(status.st_mode) ? Kind::file : S_ISLNK(status.st_mode) ? Kind::link : Kind::other;
}

void remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0) fail("remove", path);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) raise<FileError>("remove: {}: {}", path.string(), error.message());
}

/// Throws FileError if a folder on the way from `base` to `file` is a link, which could lead to
/// files of somebody else.
void refuse_links(const fs::path& base, const fs::path& file) {
  fs::path place = base;
  for (const fs::path& part : file.parent_path())
    if (kind_of(place /= part) == Kind::link)
      raise<FileError>("write: {} is a link; expected a folder or nothing; try again without it",
                       place.string());
}

/// The checksum of a regular file; "-" if the path is absent, a link or another kind of file.
std::string sum_of(const fs::path& path) {
  if (kind_of(path) != Kind::file) return "-";
  return file_checksum(File::open(path.string()));
}

/// Adds the paths of all files below `folder`, if it exists and is not a link.
void add_files(const fs::path& folder, std::set<fs::path>& files) {
  if (kind_of(folder) != Kind::other) return;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    if (!it->is_directory(error) || it->is_symlink(error))
      files.insert(it->path().lexically_relative(folder));
  if (error && error != std::errc::no_such_file_or_directory)
    raise<FileError>("list: {}: {}", folder.string(), error.message());
}

/// Makes the names in a folder and in those inside it durable.
void sync_tree(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    if (it->is_directory(error) && !it->is_symlink(error)) sync_directory(it->path().string());
  if (error) raise<FileError>("list: {}: {}", folder.string(), error.message());
  sync_directory(folder.string());
}

}  // namespace

struct FileSetState {
  FileSetState(const std::string& folder, const std::string& name)
      : folder(folder),
        hidden(fs::path(folder) / (".replacing" + (name.empty() ? "" : "_" + name))) {
    for (;;) {
      const bool made = ::mkdir(hidden.c_str(), 0777) == 0;
      if (!made && errno != EEXIST) fail("create", hidden);
      refuse_links(folder, fs::path(hidden.filename()) / listing);
      lock = Folder::open(hidden.string());
      if (lock && !lock->lock())
        raise<FileError>(
            "write: {} is in use: another process writes the same files; expected one at a time; "
            "try again when it has ended, or another folder",
            hidden.string());
      if (!lock || !lock->is_at(hidden.string()))
        continue;  // another process has just removed the folder
      if (made) break;
      complete_or_revert();  // completes or reverts the work of a killed process
    }
    if (::mkdir((hidden / fresh).c_str(), 0777) != 0) {
      const int reason = errno;
      ::rmdir(hidden.c_str());
      errno = reason;
      fail("create", hidden / fresh);
    }
  }

  /// The target of the symbolic link that finish() installs for `file`.
  fs::path link_of(const fs::path& file) const {
    fs::path target;
    for (auto part = file.begin(); std::next(part) != file.end(); ++part) target /= "..";
    return target / hidden.filename() / current / file;
  }
  bool is_our_link(const fs::path& file) const {
    std::error_code error;
    return fs::read_symlink(folder / file, error) == link_of(file) && !error;
  }

  /// The folders that contain files of the set.
  template <class Files>
  void sync_names(const Files& files) const {
    std::set<fs::path> folders;
    for (const fs::path& file : files) folders.insert((folder / file).parent_path());
    for (const fs::path& each : folders)
      if (std::error_code missing; fs::is_directory(each, missing)) sync_directory(each.string());
  }

  [[noreturn]] void refuse_work(const std::string& why) const {
    raise<FileError>(
        "write: {} has unfinished work, but {}; expected work that a killed process left there; "
        "try again without this folder",
        hidden.string(), why);
  }

  /// The files of unfinished work. Changes nothing. Throws FileError if a FileSet of this name
  /// cannot have left the work: a folder is a link, the list is missing or names a file outside the
  /// folder, or a file has neither its old nor its new checksum.
  std::set<fs::path> checked_files() const {
    std::set<fs::path> stored, names;
    add_files(hidden / current, stored);
    const fs::path path = hidden / listing;
    if (kind_of(hidden / current) == Kind::link) refuse_work("its current is a link");
    if (kind_of(path) != Kind::file) {
      if (!stored.empty()) refuse_work("no list of its files");
      return names;
    }
    constexpr int64_t max_bytes = 1 << 20;
    std::istringstream lines(read_text(path.string(), max_bytes));
    for (std::string name, before, after;
         lines >> before >> after && lines.get() == ' ' && std::getline(lines, name);) {
      const fs::path file = fs::path(name).lexically_normal();
      if (file != name || file.is_absolute() || file.empty() || *file.begin() == "..")
        refuse_work(fmt::format("'{}' in its list is not a name in a folder", printable(name)));
      refuse_links(hidden / current, file);
      refuse_links(folder, file);
      names.insert(file);
      if (kind_of(hidden / current / file) != Kind::file) continue;
      const std::string sum = sum_of(hidden / current / file);
      if (is_our_link(file) && sum != before && sum != after)
        refuse_work(fmt::format("{} is neither its old nor its new file", name));
    }
    return names;
  }

  void write_list() const {
    std::string text;
    for (const fs::path& file : files)
      text += fmt::format("{} {} {}\n", sum_of(folder / file), sum_of(hidden / fresh / file),
                          file.string());
    write_text((hidden / listing).string(), text);
    sync_directory(hidden.string());
  }

  /// Replaces each link by the file to which it leads, and removes the hidden folder. The links
  /// lead to the old files until `fresh` and `current` are exchanged, then to the new ones.
  void complete_or_revert() const {
    std::set<fs::path> names = checked_files();
    for (const fs::path& file : names) {
      const fs::path path = folder / file, stored = hidden / current / file;
      if (!is_our_link(file)) continue;
      if (kind_of(stored) == Kind::none)
        remove_file(path);
      else
        rename_over(stored.string(), path.string());
    }
    // Remove folders that were made for files that were not written.
    add_files(hidden / fresh, names);
    for (const fs::path& file : names)
      if (file.has_parent_path() && kind_of(folder / file) == Kind::none)
        ::rmdir((folder / file).parent_path().c_str());
    sync_names(names);
    // Without this sync the removal of the hidden folder could reach the disk before the moves of
    // files out of it.
    sync_tree(hidden);
    // The list is removed after `current`, because checked_files() refuses a `current` that has
    // files and no list.
    remove_tree(hidden / current);
    sync_directory(hidden.string());
    remove_tree(hidden);
    sync_directory(folder.string());
  }

  /// Whether this file system can exchange names and has symbolic links.
  bool can_exchange() const {
    const fs::path a = hidden / current, b = hidden / spare;
    for (const fs::path& path : {a, b})
      if (::mkdir(path.c_str(), 0777) != 0) fail("create", path);
    bool can = exchange(a, b);
    if (::rmdir(b.c_str()) != 0) fail("remove", b);
    if (::symlink(current, b.c_str()) == 0)
      remove_file(b);
    else if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS)
      can = false;
    else
      fail("link", b);
    return can;
  }

  void rename_each() const {
    for (const fs::path& file : files) {
      make_directories((folder / file).parent_path().string());
      rename_over((hidden / fresh / file).string(), (folder / file).string());
    }
    sync_names(files);
  }

  /// Puts the link of `file` in its place. An old file is moved into the hidden folder, to where
  /// the link leads. The folders must exist.
  void install_link(const fs::path& file) const {
    const fs::path path = folder / file, stored = hidden / current / file;
    switch (kind_of(path)) {
      case Kind::none:
        return make_link(link_of(file), path);
      case Kind::link: {  // the user's: replace_all() has put a link to its target into `current`
        make_link(link_of(file), hidden / spare);
        return rename_over((hidden / spare).string(), path.string());
      }
      case Kind::file:
        make_link(link_of(file), stored);
        if (!exchange(stored, path)) fail("exchange", path, EINVAL);
        return;
      case Kind::other:
        break;
    }
    raise<FileError>("replace: {}: expected a file", path.string());
  }

  void replace_all() const {
    write_list();
    for (const fs::path& file : files) {
      make_directories((folder / file).parent_path().string());
      make_directories((hidden / current / file).parent_path().string());
      std::error_code dangling;
      // A relative link of the user would lead elsewhere from the hidden folder: resolve it.
      if (const fs::path target = fs::canonical(folder / file, dangling);
          kind_of(folder / file) == Kind::link && !dangling)
        make_link(target, hidden / current / file);
    }
    sync_tree(hidden);
    sync_names(files);
    sync_directory(folder.string());
    for (const fs::path& file : files) install_link(file);
    sync_names(files);
    sync_tree(hidden);
    if (!exchange(hidden / fresh, hidden / current)) fail("exchange", hidden, EINVAL);
    sync_directory(hidden.string());
  }

  void finish() {
    for (const fs::path& file : files) {
      File written = File::open((hidden / fresh / file).string());
      written.sync();
    }
    const auto there = std::ranges::find_if(
        files, [&](const fs::path& file) { return kind_of(folder / file) != Kind::none; });
    if (files.size() > 1 && can_exchange())
      replace_all();
    else if (files.size() <= 1 || there == files.end())
      rename_each();
    else
      raise<FileError>(
          "replace: {}, one of {} files that belong together: this file system cannot exchange two "
          "names, so they cannot be replaced atomically; try to remove the old files first, or "
          "another folder",
          (folder / *there).string(), files.size());
    complete_or_revert();
  }

  const fs::path folder, hidden;
  std::vector<fs::path> files;
  std::optional<Folder> lock;
  bool settled = false;
};

FileSet::FileSet(const std::string& folder, const std::string& name)
    : state_(std::make_unique<FileSetState>(folder, name)) {}

FileSet::~FileSet() {
  if (state_->settled) return;
  try {
    state_->complete_or_revert();
  } catch (const std::exception&) {  // ignored: the next FileSet of this name completes the work
  }
}

std::string FileSet::add(const std::string& file) {
  const fs::path path = file;
  const fs::path place = state_->hidden / fresh / path;
  if (kind_of(state_->folder / path) == Kind::other)
    raise<FileError>("replace: {}: expected a file", (state_->folder / path).string());
  if (path.has_parent_path() && kind_of(state_->folder / path.parent_path()) == Kind::file)
    raise<FileError>("replace: {}: expected a folder",
                     (state_->folder / path.parent_path()).string());
  refuse_links(state_->folder, path);
  make_directories(place.parent_path().string());
  state_->files.push_back(path);
  return place.string();
}

std::string FileSet::path_of(const std::string& file) const {
  return (state_->folder / file).string();
}

void FileSet::finish() {
  state_->finish();
  state_->settled = true;
}

}  // namespace zg
