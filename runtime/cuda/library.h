#pragma once

#include <string>
#include <vector>

namespace zg::cuda {

/// A shared library that is opened at run time, so that a program starts where it is not installed.
class Library {
 public:
  /// The first of `names` that can be opened: as the system finds it, then in /usr/local/cuda.
  explicit Library(const std::vector<std::string>& names);

  bool present() const { return handle_ != nullptr; }
  const std::string& absence() const { return absence_; }  ///< why it is not present
  /// Null when it has none of that name.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string absence_;
};

}  // namespace zg::cuda
