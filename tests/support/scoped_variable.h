#pragma once

#include <cstdlib>
#include <string>

namespace zg::testing {

/// Sets an environment variable for the lifetime of this object, then restores its old value.
class ScopedVariable {
 public:
  ScopedVariable(const char* variable, const char* value) : variable_(variable) {
    if (const char* text = std::getenv(variable)) {
      before_ = text;
      was_set_ = true;
    }
    setenv(variable, value, 1);
  }
  ~ScopedVariable() {
    if (was_set_)
      setenv(variable_, before_.c_str(), 1);
    else
      unsetenv(variable_);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* variable_;
  std::string before_;
  bool was_set_ = false;
};

}  // namespace zg::testing
