#include "tools/deepspeed/load.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>
#include <algorithm>
#include <sstream>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::tools {

using zero::deepspeed::check_text;
using zero::deepspeed::CheckedConfig;
using zero::deepspeed::default_of;
using zero::deepspeed::find_row;
using zero::deepspeed::Position;
using zero::deepspeed::Setting;
using zero::deepspeed::Value;
namespace {

// Maximum nesting. It is checked in parser events, which come before the parser recurses into the
// next level.
constexpr size_t max_depth = 64;

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
    raise<ConfigError>("{}{}", place(file_, at, path), message);
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
      // Out of the range of a double: remains a string, which the type check rejects.
    }
    return value;
  }

  void open(Value value) {
    if (open_.size() >= max_depth)
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
        refuse(value.at,
               "more than 1000 keys; expected fewer in one object, got one more; try accelerate's "
               "config; this file may be another kind of YAML");
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
      raise<ConfigError>("{}expected one document, got two; try a file for each",
                         place(file, next.root.at, ""));
    return builder.root;
  } catch (const YAML::Exception& error) {
    raise<ConfigError>(
        "{}not valid YAML: {}; expected accelerate's config; try key: value on a line",
        place(file, places.of(error.mark), ""), printable(error.msg, 80));
  }
}

namespace {

const Value::Member* find(const Value& object, const std::string& key) {
  for (const Value::Member& member : object.members)
    if (member.key == key && member.value.kind != Value::Kind::null) return &member;
  return nullptr;
}

Value object_at(Position at) { return {.kind = Value::Kind::object, .at = at}; }

// Copies the value of `key` in `from` to `name` in `to`. The word none counts as absent, as in
// accelerate, which passes these values through environment variables.
void take(const Value& from, const char* key, Value& to, const char* name) {
  const Value::Member* member = find(from, key);
  if (!member || (member->value.kind == Value::Kind::text && member->value.text == "none")) return;
  to.members.push_back({.key = name, .at = member->at, .value = member->value});
}

}  // namespace

Value deepspeed_config_of(const Value& yaml) {
  const Value::Member* block = find(yaml, "deepspeed_config");
  const Position at = block ? block->at : yaml.at;
  Value config = object_at(at), zero = object_at(at);
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu"})
    config.members.push_back(
        {.key = key, .at = at, .value = {.kind = Value::Kind::text, .at = at, .text = "auto"}});
  const Value own = block ? block->value : object_at(at);
  take(own, "gradient_accumulation_steps", config, "gradient_accumulation_steps");
  take(own, "gradient_clipping", config, "gradient_clipping");
  take(own, "zero_stage", zero, "stage");
  take(own, "zero3_save_16bit_model", zero, "stage3_gather_16bit_weights_on_model_save");
  for (const char* what : {"offload_optimizer", "offload_param"}) {
    Value offload = object_at(at);
    take(own, (std::string(what) + "_device").c_str(), offload, "device");
    take(own, (std::string(what) + "_nvme_path").c_str(), offload, "nvme_path");
    if (!offload.members.empty())
      zero.members.push_back({.key = what, .at = offload.members[0].at, .value = offload});
  }
  config.members.push_back({.key = "zero_optimization", .at = at, .value = std::move(zero)});
  return config;
}

namespace {

void fill_precision(const CheckedConfig& yaml, CheckedConfig& deepspeed) {
  const Setting* precision = yaml.find("accelerate", "mixed_precision");
  if (!precision || precision->text == "no") return;
  const bool f16 = precision->text == "fp16";
  const char *const section = f16 ? "fp16" : "bf16", *const other = f16 ? "bf16" : "fp16";
  if (deepspeed.is_on(other, "enabled"))
    raise<ConfigError>(
        "{}{} here and {} in {}; expected the same, got both; try mixed_precision: {}",
        yaml.place_of(*precision), precision->text, other, deepspeed.file, other);
  const Setting* enabled = deepspeed.find(section, "enabled");
  if (enabled && enabled->given) return;
  deepspeed.settings[std::string(section) + ".enabled"] = {
      .row = find_row(section, "enabled"), .given = true, .boolean = true};
  check_contradictions(deepspeed);
}

}  // namespace

void fill_defaults(const CheckedConfig& yaml, const Given& flags, CheckedConfig& deepspeed) {
  const Setting* named = yaml.find("accelerate_deepspeed", "deepspeed_config_file");
  const Setting* stage = deepspeed.find("zero_optimization", "stage");
  if ((!named || named->null) && stage && !stage->given)
    deepspeed.settings["zero_optimization.stage"] =
        default_of(*find_row("accelerate_deepspeed", "zero_stage"), yaml.version);
  if (!flags.count("--precision")) fill_precision(yaml, deepspeed);
}

std::vector<std::string> apply_accelerate(const CheckedConfig& yaml, const CheckedConfig* deepspeed,
                                          const Given& flags, TrainOptions& options) {
  std::vector<std::string> overridden;
  const auto take = [&](const char* key, const char* flag, const auto& set) {
    const Setting* setting = yaml.find("accelerate", key);
    if (!setting || !setting->given || setting->null) return;
    if (flags.count(flag)) {
      overridden.push_back(std::string(key) + " (" + flag + ")");
      return;
    }
    set(*setting);
    options.given.insert(flag);
    options.sources[flag] = Source::config;
  };
  take("num_processes", "--ranks", [&](const Setting& s) {
    if (options.process && s.integer != options.ranks)
      raise<ConfigError>(
          "{}expected the {} processes that were started, got {}; try num_processes: {}",
          yaml.place_of(s), options.ranks, s.integer, options.ranks);
    options.ranks = s.integer;
  });
  take("mixed_precision", "--precision", [&](const Setting& s) {
    if (deepspeed || s.text == "no") return;  // fill_precision() takes it from DeepSpeed's config
    options.engine.compute = s.text == "fp16" ? DType::f16 : DType::bf16;
  });
  return overridden;
}

}  // namespace zg::tools
