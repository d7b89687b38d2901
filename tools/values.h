#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/text.h"

// Values of flags. Each parser takes the flag's name and throws ConfigError
// "--steps: expected a whole number of 1 or more, got 'x'".
namespace zg::tools {

int64_t parse_integer(const std::string& flag, const std::string& value, int64_t least,
                      int64_t most = INT64_MAX);

/// Bytes or elements: 123, 1e9, 512MiB, 1.5GiB (powers of 1024), 2GB (powers of 1000).
int64_t parse_size(const std::string& flag, const std::string& value);

/// An interval of numbers and how an error names it.
struct Range {
  double least, most;
  bool open_below = false, open_above = false;  ///< whether the border itself is excluded
  const char* words;                            ///< "a number above 0"
};
double parse_number(const std::string& flag, const std::string& value, const Range& range);

/// on, true, 1 | off, false, 0.
bool parse_switch(const std::string& flag, const std::string& value);

/// The position of `value` in `choices`; the error lists them and names the nearest.
size_t parse_choice(const std::string& flag, const std::string& value,
                    const std::vector<std::string>& choices);

}  // namespace zg::tools
