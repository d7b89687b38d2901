#pragma once

#include <string>

namespace zg::testing {

/// The message of the `Type` that f throws.
template <class Type, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Type& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace zg::testing
