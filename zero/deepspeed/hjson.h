#pragma once

#include <string>
#include <vector>

namespace zg::zero::deepspeed {

/// A position in a file: line and column count from 1, columns in characters.
struct Position {
  int line = 1, column = 1;
};

/// A value of a config file, with the position of every key and value in it.
struct Value {
  enum class Kind { null, boolean, number, text, array, object };
  struct Member;

  Kind kind = Kind::null;
  Position at;
  /// The characters of a string; a number or boolean as it is written in the file.
  std::string text;
  bool quoted = false;  ///< a string in quotes
  double number = 0.0;
  bool boolean = false;
  std::vector<Value> items;
  std::vector<Member> members;  ///< in the order of the file; no key comes twice
};

struct Value::Member {
  std::string key;
  Position at;  ///< the key's
  Value value;
};

/// The value as errors show it: 'text', 2e8, true, an object.
std::string shown(const Value& value);
std::string shown(double number);  ///< formatted as by printf's %g

/// "ds.json:12:5: zero_optimization.stage: ", the beginning of every error about a config.
std::string place(const std::string& file, Position at, const std::string& path);

/// Throws ConfigError for the first byte that is not UTF-8 and for control characters except space,
/// tab and line ends. So messages never contain such bytes.
void check_text(const std::string& source, const std::string& file);

/// Reads JSON as DeepSpeed does, which is HJSON (https://hjson.github.io/syntax.html): comments
/// `#`, `//` and `/* */`, trailing and missing commas, keys and strings without quotes (such a
/// string goes to the end of its line), 'single' and '''multi-line''' quotes, a root without
/// braces. Throws ConfigError with file, line, column and key path for anything else, for a key
/// that comes twice, for bytes that are not UTF-8, for more than 64 levels and for objects with
/// more than 1000 keys.
Value read_hjson(const std::string& source, const std::string& file);

}  // namespace zg::zero::deepspeed
