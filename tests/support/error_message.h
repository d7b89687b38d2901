#pragma once

#include <string>

#include "zerograd/runtime/error.h"

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

/// The result of contains(); a failed check shows the text and the part.
struct Contained {
  std::string text, part;
  bool expected = true;

  operator bool() const {  // NOLINT: implicit, as a bool's own
    return (text.find(part) != std::string::npos) == expected;
  }
  Contained operator!() const { return {text, part, !expected}; }
  std::string str() const {
    return "\"" + part + (expected ? "\" in \"" : "\" not in \"") + text + "\"";
  }
};

inline Contained contains(const std::string& text, const std::string& part) { return {text, part}; }

}  // namespace zg::testing

/// CHECK_ERROR(TapeError, "inference", tape.backward(loss)): the statement throws an error of this
/// type whose message has this text.
#define CHECK_ERROR(Type, text, ...) \
  CHECK(::zg::testing::contains(::zg::testing::message_of<Type>([&] { __VA_ARGS__; }), text))
