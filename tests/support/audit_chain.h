#pragma once

#include <span>
#include <string>

#include "zerograd/runtime/storage/checksum.h"

namespace zg::testing {

/// The lines of an audit with their hashes computed again.
inline std::string rebuilt_chain(const std::string& lines) {
  std::string text, previous;
  for (size_t begin = 0, end = 0; (end = lines.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    std::string line = lines.substr(begin, end - begin);
    line.resize(std::min(line.find(",\"previous\":"), line.rfind('}')));
    line += ",\"previous\":\"" + previous + "\"";
    previous = checksum(std::as_bytes(std::span(line)));
    text += line + ",\"hash\":\"" + previous + "\"}\n";
  }
  return text;
}

}  // namespace zg::testing
