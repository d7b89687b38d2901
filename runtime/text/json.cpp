#include "zerograd/runtime/text/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg {
namespace {

// Returns the offset at which the text is nested deeper than `depth`, or at which its string number
// `string` begins, whichever is first. Returns the text's size if there is neither.
size_t find_in_json(std::string_view text, int depth, int64_t string) {
  bool is_inside = false;  // a string
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (is_inside) {
      at += c == '\\';
      is_inside = c != '"';
    } else if (c == '"') {
      if (string-- == 0) return at;
      is_inside = true;
    } else if (c == '{' || c == '[') {
      if (depth-- == 0) return at;
    } else if (c == '}' || c == ']') {
      ++depth;
    }
  }
  return text.size();
}

// nlohmann's own builder has no check of equal keys, and its callback, which could have one, costs
// time quadratic in the length of a list.
template <class Json>
class JsonBuilder {
 public:
  explicit JsonBuilder(bool unique_keys) : unique_keys_(unique_keys) {}

  Json root;
  std::string failure;
  size_t at = 0;        // of the failure: bytes read
  int64_t strings = 0;  // read, keys included

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return ++strings, add(std::move(value)); }
  bool binary(typename Json::binary_t& value) { return add(std::move(value)); }
  bool start_object(size_t) { return open(Json::object()); }
  bool end_object() { return keys_.pop_back(), end_array(); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() { return open_.pop_back(), true; }
  bool key(std::string& name) {
    ++strings;
    if (unique_keys_ && !keys_.back().insert(name).second) {
      failure = fmt::format("has '{}' twice", printable(name));
      return false;
    }
    auto& members = *open_.back()->template get_ptr<typename Json::object_t*>();
    if constexpr (std::is_same_v<Json, nlohmann::json>)
      member_ = &members[std::move(name)];
    else  // ordered_json's operator[] would compare the name with each earlier key
      member_ = &static_cast<std::vector<typename Json::object_t::value_type>&>(members)
                     .emplace_back(std::move(name), nullptr)
                     .second;
    return true;
  }
  bool parse_error(size_t read, const std::string&, const typename Json::exception& error) {
    at = read;
    const std::string what = error.what();  // "[json.exception...] parse error at line 1, ...: why"
    const size_t place = what.find("column "), why = what.find(place < what.size() ? ": " : "] ");
    failure = "is not JSON: " + printable(what.substr(why + 2), 160);
    return false;
  }

 private:
  Json* place() {
    if (open_.empty()) return &root;
    return open_.back()->is_array() ? &open_.back()->emplace_back() : member_;
  }
  template <class Value>
  bool add(Value&& value) {
    *place() = std::forward<Value>(value);
    return true;
  }
  bool open(Json value) {
    if (value.is_object()) keys_.emplace_back();
    open_.push_back(place());
    *open_.back() = std::move(value);
    return true;
  }

  const bool unique_keys_;
  std::vector<Json*> open_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  Json* member_ = nullptr;                   // the value of the last key
};

}  // namespace

template <class Json>
Json parse_json_object(std::string_view text, const std::string& name, const JsonRules& rules) {
  const auto refuse = [&](size_t at, const std::string& why) {
    const std::string_view before = text.substr(0, at);
    const size_t line = before.rfind('\n') + 1;  // npos + 1 is 0
    const auto column = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(line),
                                      before.end(), [](char c) { return (c & 0xC0) != 0x80; });
    raise<FileError>("{}:{}:{}: {}{}", name, rules.line + std::ranges::count(before, '\n'),
                     column + 1, why, rules.advice);
  };
  if (const size_t at = text.find('\0'); at < text.size()) refuse(at, "has a zero byte");
  if (const size_t at = valid_utf8(text); at < text.size())
    refuse(at, "invalid UTF-8; expected text in UTF-8");
  if (const size_t at = find_in_json(text, rules.max_depth, INT64_MAX); at < text.size())
    refuse(at, fmt::format("is nested deeper than {} levels", rules.max_depth));
  JsonBuilder<Json> builder(rules.unique_keys || !std::is_same_v<Json, nlohmann::json>);
  if (!Json::sax_parse(text.begin(), text.end(), &builder))
    refuse(
        builder.at > 0 ? builder.at - 1 : find_in_json(text, rules.max_depth, builder.strings - 1),
        builder.failure);
  if (!builder.root.is_object())
    refuse(0, fmt::format("expected a JSON object, got {}", printable(builder.root.dump())));
  return std::move(builder.root);
}

template nlohmann::json parse_json_object(std::string_view, const std::string&, const JsonRules&);
template nlohmann::ordered_json parse_json_object(std::string_view, const std::string&,
                                                  const JsonRules&);

}  // namespace zg
