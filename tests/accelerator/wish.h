#pragma once

#include <cstdlib>
#include <string>

namespace zg::testing {

/// RAII: sets a variable of the environment.
class Wish {
 public:
  Wish(const char* variable, const char* value) : variable_(variable) {
    if (const char* text = std::getenv(variable)) {
      before_ = text;
      was_set_ = true;
    }
    setenv(variable, value, 1);
  }
  ~Wish() {
    if (was_set_)
      setenv(variable_, before_.c_str(), 1);
    else
      unsetenv(variable_);
  }
  Wish(const Wish&) = delete;
  Wish& operator=(const Wish&) = delete;

 private:
  const char* variable_;
  std::string before_;
  bool was_set_ = false;
};

}  // namespace zg::testing
