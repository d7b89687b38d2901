#include "tools/deepspeed/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {

using zero::deepspeed::check_text;
using zero::deepspeed::Position;
using zero::deepspeed::Value;

namespace {

// Checked in events, which come before the parser recurses into the next level.
constexpr size_t deepest = 64;

// Converts the parser's columns, which count bytes, to columns in characters.
class Places {
 public:
  explicit Places(const std::string& source) {
    // The parser drops the byte order mark.
    const size_t mark_bytes = source.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    characters_.reserve(source.size() + 1);
    for (size_t at = mark_bytes; at < source.size(); ++at)
      characters_.push_back(last() + ((static_cast<unsigned char>(source[at]) & 0xC0) != 0x80));
    characters_.push_back(last());
  }

  Position of(const YAML::Mark& mark) const {
    const int size = static_cast<int>(characters_.size());
    const int at = std::clamp(mark.pos, 0, size - 1), begin = at - std::clamp(mark.column, 0, at);
    return {std::max(0, mark.line) + 1, before(at) - before(begin) + 1};
  }

 private:
  int last() const { return characters_.empty() ? 0 : characters_.back(); }
  int before(int at) const { return at == 0 ? 0 : characters_[static_cast<size_t>(at - 1)]; }
  std::vector<int> characters_;  // entry i: characters that begin at or before byte i
};

// Builds the tree from parser events. yaml-cpp's document nodes would lose repeated keys, and with
// an alias a few bytes could become a large tree.
class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& file, const Places& places) : file_(file), places_(places) {}
  Value root;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    put({.kind = Value::Kind::null, .at = position(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(position(mark), "expected a value, got an alias; try the value itself");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& word) override {
    if (anchor != YAML::NullAnchor)
      refuse(position(mark), "expected a value, got an anchor; try the value without &");
    put(tag == "!"
            ? Value{.kind = Value::Kind::text, .at = position(mark), .text = word, .quoted = true}
            : plain(word, position(mark)));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open({.kind = Value::Kind::array, .at = position(mark)});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open({.kind = Value::Kind::object, .at = position(mark)});
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Value value;
    Value::Member key;  // in an object: the key that waits for its value
    bool has_key = false;
  };

  [[noreturn]] void refuse(Position at, const std::string& message) const {
    std::string path;
    for (const Level& level : open_)
      if (level.has_key) path += (path.empty() ? "" : ".") + level.key.key;
    throw ConfigError(place(file_, at, path) + message);
  }

  // Converts numbers, true, false and null as in JSON, and YAML's ~.
  static Value plain(const std::string& word, Position at) {
    Value value{.kind = Value::Kind::text, .at = at, .text = word};
    if (word.empty() || word == "~") value.kind = Value::Kind::null;
    if (word.empty() || word.size() > 40 ||
        word.find_first_not_of("0123456789+-.eEtrufalsn") != std::string::npos)
      return value;
    try {
      value = zero::deepspeed::read_hjson("{ v: " + word + "\n}", "scalar").members.front().value;
      value.at = at;
    } catch (const ConfigError&) {
      // Out of the range of a double: stays a word, which the type check refuses.
    }
    return value;
  }

  void open(Value value) {
    if (open_.size() >= deepest)
      refuse(value.at, "more than 64 levels; expected fewer, got one more; try a flatter config");
    if (!open_.empty() && open_.back().value.kind == Value::Kind::object && !open_.back().has_key)
      refuse(value.at, "expected a key, got " + shown(value) + "; try a word");
    open_.push_back({.value = std::move(value), .key = {}});
  }

  void close() {
    Value value = std::move(open_.back().value);
    open_.pop_back();
    put(std::move(value));
  }

  void put(Value value) {
    if (open_.empty()) {
      root = std::move(value);
      return;
    }
    Level& level = open_.back();
    if (level.value.kind == Value::Kind::array) {
      level.value.items.push_back(std::move(value));
    } else if (!level.has_key) {
      if (value.kind == Value::Kind::null) refuse(value.at, "expected a key, got none; try a word");
      for (const Value::Member& other : level.value.members)
        if (other.key == value.text)
          refuse(value.at, printable(value.text) +
                               ": the key comes twice; expected it once, got it in line " +
                               std::to_string(other.at.line) +
                               " too; try leaving one of the two out");
      if (level.value.members.size() >= 1000)
        refuse(value.at, "more than 1000 keys; expected fewer, got one more; try a config");
      level.key = {.key = value.text, .at = value.at, .value = {}};
      level.has_key = true;
    } else {
      level.key.value = std::move(value);
      level.value.members.push_back(std::move(level.key));
      level.has_key = false;
    }
  }

  Position position(const YAML::Mark& mark) const { return places_.of(mark); }

  const std::string& file_;
  const Places& places_;
  std::vector<Level> open_;
};

}  // namespace

Value read_yaml(const std::string& source, const std::string& file) {
  check_text(source, file);
  const Places places(source);
  try {
    std::istringstream stream(source);
    YAML::Parser parser(stream);
    Builder builder(file, places);
    if (!parser.HandleNextDocument(builder)) return {.kind = Value::Kind::null};
    Builder next(file, places);
    if (parser.HandleNextDocument(next))
      throw ConfigError(place(file, next.root.at, "") +
                        "expected one document, got two; try a file for each");
    return builder.root;
  } catch (const YAML::Exception& error) {
    throw ConfigError(place(file, places.of(error.mark), "") +
                      "no YAML: " + printable(error.msg, 80) +
                      "; expected accelerate's config; try key: value on a line");
  }
}

}  // namespace zg::tools
