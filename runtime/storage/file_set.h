#pragma once

#include <memory>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg {

/// Files that belong together. They take the place of older ones so that a reader finds all of the
/// old files or all of the new ones, at whatever moment the writer is killed or the power fails.
///
///   FileSet files("corpus", "english");
///   write(files.add("english.bin"));
///   write(files.add("english.idx"));
///   files.finish();
///
/// New files are written into a hidden folder beside the old ones, FOLDER/.replacing_NAME. finish()
/// makes each name a symbolic link into that folder, which still leads to the old file, then
/// switches all links to the new files by one exchange of two folders, and last puts each new file
/// in the place of its link. The next FileSet of the same folder and name finishes or undoes what a
/// killed one left; until then the links are as good as files, but must not be moved.
///
/// A file system without symbolic links or without exchange (NFS) takes a set where none of the
/// files is there yet; the one that was added last then gets its name last. FileError for a set
/// that would replace files there.
///
/// All of it throws FileError. One writer of a folder and name at a time: a second one is refused
/// where the file system has locks.
class ZG_API FileSet {
 public:
  /// `folder` has to exist. Sets of several names may be written to one folder at the same time.
  explicit FileSet(const std::string& folder, const std::string& name = "");
  ~FileSet();  ///< without finish() nothing has changed
  FileSet(const FileSet&) = delete;

  /// Where to write a file of the set: `file` is its path from the folder, "a" or "folder/a".
  /// Files are in place from finish() on. The last one should be what makes the others valid.
  std::string add(const std::string& file);
  std::string path_of(const std::string& file) const;  ///< where it is after finish()
  /// Returns when everything is on the disk under its name.
  void finish();

 private:
  std::unique_ptr<struct FileSetState> state_;
};

}  // namespace zg
