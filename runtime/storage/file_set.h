#pragma once

#include <memory>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg {

/// A set of files that replaces older ones atomically: a reader finds either all old files or all
/// new ones, even if the writer is killed or the power fails at any moment.
///
///   FileSet files("corpus", "english");
///   write(files.add("english.bin"));
///   write(files.add("english.idx"));
///   files.finish();
///
/// New files are written into a hidden folder beside the old ones, FOLDER/.replacing_NAME. finish()
/// first replaces each file by a symbolic link into that folder, which still leads to the old file.
/// Then it exchanges two folders in one system call, so that all links lead to the new files.
/// Finally it replaces each link by its new file. If the process is killed meanwhile, the next
/// FileSet of the same folder and name completes or reverts its work. Until then the links can be
/// read like files but must not be moved. Work is continued only if the hidden folder has the list
/// of the files, and each file has its old or its new checksum, because a folder that was copied
/// from elsewhere may contain links that lead out of it. No link below `folder` is followed.
///
/// On a file system without symbolic links or without exchange (NFS) only a set of new files can be
/// written, and the file that was added last gets its name last. A set that would replace files
/// there is a FileError.
///
/// All functions throw FileError. Only one process at a time may write a set of this folder and
/// name; a second one is refused if the file system has locks.
class ZG_API FileSet {
 public:
  /// `folder` must exist. Sets with different names may be written to one folder at the same time.
  explicit FileSet(const std::string& folder, const std::string& name = "");
  ~FileSet();  ///< without finish(): no file has changed
  FileSet(const FileSet&) = delete;

  /// Returns the path at which to write a file of the set. `file` is its path relative to the
  /// folder, "a" or "folder/a". Add last the file without which readers ignore the others, for
  /// example an index.
  std::string add(const std::string& file);
  std::string path_of(const std::string& file) const;  ///< its path after finish()
  /// Replaces the old files by the new ones. Returns when everything is on the disk.
  void finish();

 private:
  std::unique_ptr<struct FileSetState> state_;
};

}  // namespace zg
