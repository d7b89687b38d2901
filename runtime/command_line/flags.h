#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

// Parsers of the values of flags. Each parser takes the flag's name, for its error: a ConfigError
// such as "--steps: expected a whole number of 1 or more, got 'x'".
namespace zg {

int64_t parse_integer(const std::string& flag, const std::string& value, int64_t minimum,
                      int64_t maximum = INT64_MAX);

/// Bytes or elements: 123, 1e9, 512MiB, 1.5GiB (powers of 1024), 2GB (powers of 1000).
int64_t parse_size(const std::string& flag, const std::string& value);

/// An interval of numbers, and its description in errors.
struct Range {
  double minimum, maximum;
  bool open_below = false, open_above = false;  ///< true: minimum, maximum itself is not allowed
  const char* words;                            ///< in errors: "a number above 0"
};
double parse_number(const std::string& flag, const std::string& value, const Range& range);

/// Returns true for on, true or 1, and false for off, false or 0.
bool parse_switch(const std::string& flag, const std::string& value);

/// The position of `value` in `choices`; the error lists them and names the nearest.
size_t parse_choice(const std::string& flag, const std::string& value,
                    const std::vector<std::string>& choices);

/// Throws an E, "FLAG: WHY", for the first of the flags that is given.
template <class E = ConfigError>
void refuse_flags(const Given& given, const std::vector<const char*>& flags,
                  const std::string& why) {
  for (const char* flag : flags)
    if (given.count(flag)) throw E(flag + (": " + why));
}
/// Throws ConfigError if both are given.
inline void refuse_both(const Given& given, const char* flag, const char* other) {
  if (given.count(other))
    refuse_flags(given, {flag},
                 std::string("expected one of ") + other + " and " + flag + ", got both");
}

// Functions that make flags. A flag stores its value in a variable. The help of an integer, number,
// seed or choice flag ends with the default: the variable's value, or `shown` if that is given ("":
// no default). The help of the other flags is `help` without a default.

using Names = std::vector<std::string>;

/// The smallest allowed value of an integer flag, and the default that its help shows.
struct Count {
  int64_t minimum = 0;
  const char* shown = nullptr;
};
/// Larger than any useful count; the product of two does not overflow.
inline constexpr int64_t largest_count = INT32_MAX;

template <class T>  // int64_t | std::optional<int64_t>
Flag integer_flag(Names names, T& target, const std::string& help, Count count = {});
Flag size_flag(Names names, int64_t& target, const std::string& help);
template <class T>  // float | double
Flag number_flag(Names names, T& target, const Range& range, const std::string& help,
                 const char* shown = nullptr);
Flag seed_flag(uint64_t& target, const std::string& help);
Flag text_flag(Names names, const std::string& value, std::string& target, const std::string& help);
/// A text that is one path. For a flag that means other paths, set Flag::paths of the result.
Flag path_flag(Names names, const std::string& value, std::string& target, PathUse use,
               const std::string& help);
/// A positional argument, a path.
Flag positional(const char* name, const char* help, std::string& target, PathUse use);
Flag switch_flag(Names names, bool& target, const std::string& help);

/// --device cpu|cuda|hpu.
Flag device_flag(Device::Type& type);
/// --use-hpu: the same as --device hpu. DeepSpeed's examples use it; the help does not list it.
Flag use_hpu_flag(Device::Type& type);

/// One of `choices`, the enumerators of E in order.
template <class E>
Flag choice_flag(Names names, E& target, const std::vector<std::string>& choices,
                 const std::string& help) {
  // A config may have set a value that the flag does not offer.
  const auto now = static_cast<size_t>(target);
  const std::string shown = now < choices.size() ? choices[now] : "";
  return {std::move(names), join(choices, "|"), help + " [" + shown + "]",
          [&target, choices](const std::string& name, const std::string& value) {
            target = static_cast<E>(parse_choice(name, value, choices));
          }};
}

// Ranges of flags. The maximum 3e38f is exactly a float, so a value can be stored as a float,
// printed, and read again.
inline constexpr Range positive{0.0, 3e38f, true, false, "a number above 0"};
inline constexpr Range not_negative{0.0, 3e38f, false, false, "a number of 0 or more"};
inline constexpr Range below_one{0.0, 1.0, false, true, "a number of 0 or more and below 1"};

}  // namespace zg
