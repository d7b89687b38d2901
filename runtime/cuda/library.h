#pragma once

#include <string>
#include <vector>

namespace zg::cuda {

/// A shared library that is opened at run time, so that a program starts where it is not installed.
class Library {
 public:
  /// Opens the first of `names` that can be opened: by the system's search path, then in
  /// /usr/local/cuda.
  explicit Library(const std::vector<std::string>& names);

  bool present() const { return handle_ != nullptr; }
  const std::string& absence() const { return absence_; }  ///< why it is not present
  /// The address of a function or variable; null if the library does not define it.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string absence_;
};

}  // namespace zg::cuda
