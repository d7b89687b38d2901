#include "zerograd/zero/deepspeed/hjson.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <map>

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::zero::deepspeed {
namespace {

// Limits the time to find the nearest known key for each unknown one.
constexpr size_t max_keys = 1000;

bool is_punctuator(char c) { return c != '\0' && std::strchr("{}[],:", c) != nullptr; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// True for JSON's numbers only: 007, +1, .5 and 0x10 are strings without quotes.
bool is_number(const std::string& word) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t first = at;
    while (at < word.size() && is_digit(word[at])) ++at;
    return at > first;
  };
  if (at < word.size() && word[at] == '-') ++at;
  const size_t first = at;
  if (!digits() || (word[first] == '0' && at > first + 1)) return false;
  if (at < word.size() && word[at] == '.' && (++at, !digits())) return false;
  if (at < word.size() && (word[at] == 'e' || word[at] == 'E')) {
    ++at;
    if (at < word.size() && (word[at] == '+' || word[at] == '-')) ++at;
    if (!digits()) return false;
  }
  return at == word.size();
}

class Reader {
 public:
  Reader(const std::string& source, const std::string& file) : source_(source), file_(file) {
    if (source_.compare(0, 3, "\xEF\xBB\xBF") == 0) at_ = 3;
  }

  Value read() {
    check_text(source_, file_);
    skip();
    if (at_end())
      refuse(here(), "the file holds no settings; expected an object {...}, got nothing",
             "{ \"train_batch_size\": 16 }");
    Value value;
    const char first = look();
    if (first == '{' || first == '[')
      value = read_value();
    else
      value = read_members(here(), '\0');
    skip();
    if (!at_end())
      refuse(here(),
             fmt::format("text after the end of the config; expected one object, got '{}'", rest()),
             "leaving it out, or a { for each }");
    return value;
  }

 private:
  [[noreturn]] void refuse(Position at, const std::string& message, const std::string& advice) {
    std::string path;
    for (const std::string& part : path_)
      path += (path.empty() || part.starts_with("[") ? "" : ".") + part;
    throw ConfigError(place(file_, at, path) + message + (advice.empty() ? "" : "; try " + advice));
  }
  [[noreturn]] void refuse_end(const std::string& expected, const char* advice) {
    refuse(here(), fmt::format("the file ends here; expected {}, got nothing", expected),
           std::string(advice) + ", or the complete file if this one was cut off");
  }

  bool at_end() const { return at_ >= source_.size(); }
  char look(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool starts(const char* word) const { return source_.compare(at_, std::strlen(word), word) == 0; }
  void step() {
    const char byte = source_[at_++];
    if (byte == '\n') {
      ++line_;
      column_ = 1;
    } else if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) {
      ++column_;  // the first byte of a character
    }
  }
  Position here() const { return {line_, column_}; }
  std::string rest() const {
    constexpr size_t characters = 16;
    const std::string next = source_.substr(at_, 4 * (characters + 1));
    return printable(next.substr(0, next.find('\n')), characters);
  }

  void skip() {
    for (;;) {
      while (!at_end() && is_blank(look())) step();
      if (look() == '#' || starts("//")) {
        while (!at_end() && look() != '\n') step();
      } else if (starts("/*")) {
        const Position start = here();
        const size_t end = source_.find("*/", at_ + 2);
        if (end == std::string::npos)
          refuse(start, "the comment is not closed; expected */, got the end of the file",
                 "*/ at its end");
        while (at_ < end + 2) step();
      } else {
        return;
      }
    }
  }

  Value read_value() {
    const Position start = here();
    switch (look()) {
      case '{':
      case '[': {
        if (++depth_ > json_depth_limit)
          refuse(start,
                 fmt::format("more than {} levels; expected fewer, got one more", json_depth_limit),
                 "a flatter config");
        const bool object = look() == '{';
        step();
        Value value = object ? read_members(start, '}') : read_items(start);
        --depth_;
        return value;
      }
      case '"':
      case '\'': {
        Value value{.kind = Value::Kind::text, .at = start, .quoted = true};
        value.text = starts("'''") ? read_block() : read_quoted();
        return value;
      }
      default:
        return read_bare();
    }
  }

  // Reads members up to `close`, which is \0 for a root without braces.
  Value read_members(Position start, char close) {
    Value object{.kind = Value::Kind::object, .at = start};
    std::map<std::string, int> lines;
    for (;;) {
      skip();
      if (at_end()) {
        if (close == '\0') return object;
        refuse_end(fmt::format("a }} for the {{ of line {}", start.line), "a } here");
      }
      if (look() == close) return step(), object;
      Value::Member member{.at = here()};
      if (object.members.size() >= max_keys)
        refuse(member.at, "more than 1000 keys; expected fewer in one object, got one more",
               "a DeepSpeed config; this file may be another kind of JSON");
      member.key = read_key();
      path_.push_back(member.key);
      const auto [first, is_new] = lines.emplace(member.key, member.at.line);
      if (!is_new)
        refuse(member.at,
               fmt::format("the key comes twice; expected it once, got it in line {} too",
                           first->second),
               "leaving one of the two out");
      skip();
      if (at_end()) refuse_end("a : after the key", "a value here");
      if (look() != ':')
        refuse(here(), fmt::format("expected a : after the key, got '{}'", rest()), "a : here");
      step();
      skip();
      if (at_end()) refuse_end("a value", "a value here");
      member.value = read_value();
      path_.pop_back();
      object.members.push_back(std::move(member));
      skip();
      if (look() == ',') step();
    }
  }

  Value read_items(Position start) {
    Value array{.kind = Value::Kind::array, .at = start};
    for (;;) {
      skip();
      if (at_end()) refuse_end(fmt::format("a ] for the [ of line {}", start.line), "a ] here");
      if (look() == ']') return step(), array;
      path_.push_back(fmt::format("[{}]", array.items.size()));
      array.items.push_back(read_value());
      path_.pop_back();
      skip();
      if (look() == ',') step();
    }
  }

  std::string read_key() {
    if (look() == '"' || look() == '\'') return read_quoted();
    std::string key;
    while (!at_end() && !is_punctuator(look()) && !is_blank(look())) {
      key += look();
      step();
    }
    if (key.empty())
      refuse(here(), fmt::format("expected a key or a }}, got '{}'", rest()),
             look() == ',' ? "one comma between two settings" : "\"key\": value");
    return key;
  }

  std::string read_quoted() {
    const Position start = here();
    const char quote = look();
    std::string text;
    step();
    for (;;) {
      if (at_end() || look() == '\n' || look() == '\r') {
        const bool cut = at_end();
        refuse(start,
               fmt::format("the string is not closed; expected {}, got the end of the {}", quote,
                           cut ? "file" : "line"),
               fmt::format("a {} after '{}'{}", quote, printable(text, 16),
                           cut ? ", or the complete file if this one was cut off" : ""));
      }
      if (look() == quote) return step(), text;
      if (look() == '\\') {
        read_escape(text);
      } else {
        text += look();
        step();
      }
    }
  }

  void read_escape(std::string& text) {
    const Position start = here();
    step();
    static constexpr char names[] = "\"'\\/bfnrt", bytes[] = "\"'\\/\b\f\n\r\t";
    const char name = look();
    const char* found = name == '\0' ? nullptr : std::strchr(names, name);
    if (found) {
      text += bytes[found - names];
      return step();
    }
    uint32_t code = 0;
    if (name != 'u' || !read_code(code))
      refuse(start, fmt::format("expected an escape like \\n or \\u00e9, got '\\{}'", rest()),
             "\\\\");
    if (code >= 0xD800 && code < 0xDC00 && starts("\\u")) {
      uint32_t low = 0;
      step();
      if (!read_code(low) || low < 0xDC00 || low > 0xDFFF)
        refuse(start, "expected both halves of a UTF-16 surrogate pair, got one", "\\ud83d\\ude00");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code <= 0xDFFF)
      refuse(start, "expected both halves of a UTF-16 surrogate pair, got one", "\\ud83d\\ude00");
    text += utf8(code);
  }

  bool read_code(uint32_t& code) {  // called at the u of \u; reads it and the four digits
    if (at_ + 5 > source_.size()) return false;
    const char* first = source_.data() + at_ + 1;
    const auto [end, error] = std::from_chars(first, first + 4, code, 16);
    if (error != std::errc() || end != first + 4) return false;
    for (int i = 0; i < 5; ++i) step();
    return true;
  }

  std::string read_block() {
    const Position start = here();
    const size_t end = source_.find("'''", at_ + 3);
    if (end == std::string::npos)
      refuse(start, "the string is not closed; expected ''', got the end of the file",
             "''' at its end");
    const std::string text = source_.substr(at_ + 3, end - at_ - 3);
    while (at_ < end + 3) step();
    return text;
  }

  // A number, true, false or null if a comma, } or ], a comment or the end of the line follows.
  // Anything else is a string up to the end of the line, including commas.
  Value read_bare() {
    Value value{.at = here()};
    if (is_punctuator(look()))
      refuse(value.at, fmt::format("expected a value, got '{}'", rest()), "a value here");
    size_t end = at_;
    while (!ends_literal(end)) ++end;
    if (!is_literal(trimmed(end), value)) {
      end = std::min(source_.find_first_of("\r\n", end), source_.size());
      value.kind = Value::Kind::text;
      value.text = trimmed(end);
    }
    while (at_ < end) step();
    return value;
  }

  bool ends_literal(size_t at) const {
    if (at >= source_.size() || std::strchr("\r\n,}]#", source_[at])) return true;
    const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
    return source_[at] == '/' && (next == '/' || next == '*');
  }

  std::string trimmed(size_t end) const {
    while (end > at_ && is_blank(source_[end - 1])) --end;
    return source_.substr(at_, end - at_);
  }

  bool is_literal(const std::string& word, Value& value) {
    if (word == "null") return true;
    if (word == "true" || word == "false") {
      value.kind = Value::Kind::boolean;
      value.text = word;
      value.boolean = word == "true";
      return true;
    }
    if (!is_number(word)) return false;
    value.kind = Value::Kind::number;
    value.text = word;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value.number);
    if (error == std::errc::result_out_of_range) {
      // Too large, or so small that it is 0.
      const size_t exponent = word.find_first_of("eE");
      const bool small = exponent != std::string::npos && word[exponent + 1] == '-';
      if (!small)
        refuse(value.at, "expected a number that a double holds, got " + word.substr(0, 24),
               "a smaller number");
      value.number = 0.0;
    }
    return true;
  }

  const std::string& source_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1, column_ = 1, depth_ = 0;
  std::vector<std::string> path_;
};

}  // namespace

std::string shown(double number) { return fmt::format("{:g}", number); }

std::string shown(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "null";
    case Value::Kind::array:
      return fmt::format("a list of {}", value.items.size());
    case Value::Kind::object:
      return "an object {...}";
    case Value::Kind::text:
      return fmt::format("'{}'", printable(value.text));
    default:
      return printable(value.text);
  }
}

// Longer paths are cut in messages, which must not contain a whole file. Every known key is
// shorter.
constexpr size_t longest_path = 120;

std::string place(const std::string& file, Position at, const std::string& path) {
  return fmt::format("{}:{}:{}: {}", file, at.line, at.column,
                     path.empty() ? "" : printable(path, longest_path) + ": ");
}

void check_text(const std::string& source, const std::string& file) {
  Position here;
  size_t at = source.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (; at < source.size(); ++here.column) {
    const auto byte = static_cast<unsigned char>(source[at]);
    bool valid = (byte >= 0x20 || byte == '\t' || byte == '\r' || byte == '\n') && byte != 0x7F;
    try {
      next_code_point(source, at, file);
    } catch (const ConfigError&) {
      valid = false;
    }
    if (!valid)
      raise<ConfigError>(
          "{}the byte {} is a control character or no UTF-8; expected UTF-8 text; try a text file",
          place(file, here, ""), byte);
    if (byte == '\n') here = {here.line + 1, 0};
  }
}

Value read_hjson(const std::string& source, const std::string& file) {
  return Reader(source, file).read();
}

}  // namespace zg::zero::deepspeed
