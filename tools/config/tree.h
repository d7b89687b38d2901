#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// Where something begins in a file: both count from 1, columns in characters.
struct Position {
  int line = 1, column = 1;
};

/// What a config file says, with the place of every word.
struct Value {
  enum class Kind { null, boolean, number, text, array, object };
  struct Member;

  Kind kind = Kind::null;
  Position at;
  std::string text;      ///< a string's characters; a number's or boolean's as they are written
  bool quoted = false;   ///< of a string: it stood in quotes
  double number = 0.0;   ///< of a number
  bool boolean = false;  ///< of a boolean
  std::vector<Value> items;
  std::vector<Member> members;  ///< in the order of the file; no key comes twice
};

struct Value::Member {
  std::string key;
  Position at;  ///< of the key
  Value value;
};

/// As an error shows it: 'text', 2e8, true, an object.
std::string shown(const Value& value);

/// "ds.json:12:5: zero_optimization.stage: " — how every error about a config begins.
std::string place(const std::string& file, Position at, const std::string& path);

/// ConfigError at the first byte that is no UTF-8, and at a control other than space, tab and the
/// ends of lines. No reader then meets a byte that it would have to pass on.
void check_text(const std::string& source, const std::string& file);

}  // namespace zg::tools
