#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

namespace zg::zero {

/// A text file that one run appends lines to.
class LineFile {
 public:
  /// Locks the file, so that no other run writes it, and keeps its first kept() bytes. A device
  /// such as /dev/full is not shortened. Throws FileError.
  LineFile(const std::string& path, const std::function<uintmax_t()>& kept);
  /// `line` ends with \n. It is passed on at once, so that a reader of the file sees it.
  void write(const std::string& line);
  void sync();  ///< returns when the lines are on the disk

 private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace zg::zero
