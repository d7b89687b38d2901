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

  const std::string& absence() const { return absence_; }  ///< empty: it is present
  /// The address of a function or variable; null if the library does not define it.
  void* symbol(const char* name) const;

  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  /// A function that is used. lacking(): the first that the library does not define; empty: none.
  Symbol find(const char* name) {
    void* const address = symbol(name);
    if (!address && lacking_.empty()) lacking_ = name;
    return {address};
  }
  const std::string& lacking() const { return lacking_; }

 private:
  void* handle_ = nullptr;
  std::string absence_, lacking_;
};

}  // namespace zg::cuda
