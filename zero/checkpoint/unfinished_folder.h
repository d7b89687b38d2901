#pragma once

#include <string>

#include "zerograd/zero/checkpoint/manifest.h"

namespace zg::zero {

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
