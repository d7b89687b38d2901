#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <set>

#include "tests/support/placed_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/config/config_matrix.h"
#include "tools/deepspeed/load.h"
#include "zerograd/zero/deepspeed/hjson.h"
#include "zerograd/zero/deepspeed/schema.h"

namespace zg::testing {
namespace {

using zero::deepspeed::Position;
using zero::deepspeed::Value;

/// A damaged text, and the position that the error must have; line 0: any position.
struct Damaged {
  std::string text, kind;
  Position at{0, 0};
};

/// A key and its value, as positions and bytes of the text.
struct Member {
  std::string key;
  Position key_at, value_at;
  size_t begin, value_begin, value_end;
  bool is_scalar, is_root;
};

size_t offset_of(const std::string& text, Position at) {
  size_t begin = 0;
  for (int line = 1; line < at.line; ++line) begin = text.find('\n', begin) + 1;
  return begin + static_cast<size_t>(at.column - 1);  // the configs are ASCII
}

size_t end_of_value(const std::string& text, size_t begin) {
  if (text[begin] == '"') return text.find('"', begin + 1) + 1;
  if (text[begin] != '{' && text[begin] != '[') return text.find_first_of(",}] \n", begin);
  int depth = 0;
  size_t at = begin;
  do {
    depth += text[at] == '{' || text[at] == '[' ? 1 : text[at] == '}' || text[at] == ']' ? -1 : 0;
    ++at;
  } while (depth > 0);
  return at;
}

void list_members(const std::string& text, const Value& object, bool is_root,
                  std::vector<Member>& members) {
  for (const Value::Member& member : object.members) {
    const size_t value = offset_of(text, member.value.at);
    const bool is_object = member.value.kind == Value::Kind::object;
    members.push_back({member.key, member.at, member.value.at, offset_of(text, member.at), value,
                       is_object ? value : end_of_value(text, value), !is_object, is_root});
    list_members(text, member.value, false, members);
  }
}

bool is_known(const std::string& key) {
  return std::any_of(zero::deepspeed::rows().begin(), zero::deepspeed::rows().end(),
                     [&](const zero::deepspeed::Row& row) {
                       return zero::deepspeed::find_row(row.section, key) != nullptr;
                     });
}

// Any value of this key is valid.
bool takes_anything(const std::string& key) {
  return std::all_of(zero::deepspeed::rows().begin(), zero::deepspeed::rows().end(),
                     [&](const zero::deepspeed::Row& row) {
                       return key != row.key || row.type == zero::deepspeed::Type::any;
                     });
}

class Damage {
 public:
  Damage(std::string text, bool is_yaml, uint64_t seed)
      : text_(std::move(text)), is_yaml_(is_yaml), random_(seed) {
    const Value root =
        is_yaml ? tools::read_yaml(text_, "f") : zero::deepspeed::read_hjson(text_, "f");
    list_members(text_, root, true, members_);
  }

  Damaged misspelt() {
    const Member& member = any([](const Member&) { return true; });
    std::string key = member.key;
    while (is_known(key)) {
      const size_t at = below(key.size());
      const int how = static_cast<int>(below(3));
      if (how == 0) key.erase(at, 1);
      if (how == 1) key.insert(at, 1, key[at]);
      if (how == 2) key[at] = static_cast<char>('a' + below(26));
      if (key.empty()) key = member.key;
    }
    const size_t quote = text_[member.begin] == '"' ? 1 : 0;
    return {replaced(member.begin + quote, member.key.size(), key), "misspelt", member.key_at};
  }

  Damaged wrong_value(const char* kind, const char* value) {
    const Member& member =
        any([](const Member& m) { return m.is_scalar && !takes_anything(m.key); });
    return {replaced(member.value_begin, member.value_end - member.value_begin, value), kind,
            member.value_at};
  }

  Damaged twice() {
    const Member& member = any([](const Member& m) { return m.is_scalar; });
    const std::string copy = text_.substr(member.begin, member.value_end - member.begin);
    const std::string again =
        is_yaml_ ? copy + "\n" + std::string(static_cast<size_t>(member.key_at.column - 1), ' ')
                 : copy + ", ";
    const Position at = is_yaml_ ? Position{member.key_at.line + 1, member.key_at.column}
                                 : Position{member.key_at.line,
                                            member.key_at.column + static_cast<int>(again.size())};
    return {replaced(member.begin, 0, again), "twice", at};
  }

  // Moves a key of a section to the top level, or one of the top level to zero_optimization.
  Damaged misplaced() {
    const bool up = below(2) == 0;
    const Member& member = any([&](const Member& m) {
      return m.is_scalar && m.is_root != up &&
             !zero::deepspeed::find_row(up ? "" : "zero_optimization", m.key);
    });
    const Member& block = any([](const Member& m) { return m.key == "zero_optimization"; });
    const Position place = up ? members_.front().key_at : block.value_at;
    const size_t at = up ? members_.front().begin : block.value_begin + 1;
    const std::string copy = text_.substr(member.begin, member.value_end - member.begin);
    return {replaced(at, 0, copy + ", "), "misplaced", {place.line, place.column + (up ? 0 : 1)}};
  }

  Damaged without_brace() {
    size_t at = 0;
    do at = below(text_.size());
    while (std::string("{}[]").find(text_[at]) == std::string::npos);
    return {replaced(at, 1, ""), "brace"};
  }

  Damaged cut() { return {text_.substr(0, below(text_.rfind('}'))), "cut"}; }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  const Member& any(const std::function<bool(const Member&)>& fits) {
    for (;;)
      if (const Member& member = members_[below(members_.size())]; fits(member)) return member;
  }
  std::string replaced(size_t at, size_t count, const std::string& with) const {
    return std::string(text_).replace(at, count, with);
  }

  const std::string text_;
  const bool is_yaml_;
  std::mt19937_64 random_;
  std::vector<Member> members_;
};

}  // namespace

TEST_CASE(
    "hostile configs: 400 damaged configs are each refused with place and advice before any step") {
  const TemporaryFolder folder;
  int refused = 0;
  std::set<std::string> paths;  // in the same order on every machine
  for (const auto& entry : std::filesystem::directory_iterator(ZG_CONFIGS))
    paths.insert(entry.path().string());
  REQUIRE(paths.size() >= 10);
  uint64_t seed = 40;
  for (const std::string& path : paths) {
    const bool is_yaml = path.ends_with(".yaml");
    std::string original = read_file(path);
    const std::string off = "\"enabled\": false";  // the keys of a section that is off are not read
    if (const size_t at = original.find(off); at != std::string::npos)
      original.replace(at, off.size(), "\"enabled\": true");
    Damage damage(original, is_yaml, ++seed);
    std::vector<Damaged> all;
    for (int i = 0; i < 6; ++i) {
      all.push_back(damage.misspelt());
      all.push_back(damage.wrong_value("type", "{}"));
      all.push_back(damage.wrong_value("range", "-7.5"));
      all.push_back(damage.twice());
      all.push_back(damage.without_brace());
      if (is_yaml) continue;  // half a YAML is YAML
      all.push_back(damage.misplaced());
      all.push_back(damage.cut());
    }
    const std::string file = folder / (is_yaml ? "a.yaml" : "ds.json");
    for (const auto& [text, kind, at] : all) {
      write_file(file, text);
      const Outcome outcome = configured("--config " + file).outcome;
      const std::string error = line_after(outcome.error, "error: ConfigError: ");
      INFO("path ", path, ", kind ", kind, ", text ", text, ", error ", outcome.error);
      if (std::string(kind) == "misplaced" && outcome.status == 0) {  // unlike all top-level keys
        CHECK(contains(outcome.error,
                       file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column)));
        CHECK(contains(outcome.error, ": accepted without effect (DeepSpeed has no such key"));
        ++refused;
        continue;
      }
      CHECK(outcome.status == 2);
      CHECK(outcome.out.empty());
      CHECK(flaw_of(error, file, text) == "");
      const Place place = place_in(error, file);
      if (at.line > 0) {
        CHECK(place.line == at.line);
        CHECK(place.column == at.column);
      }
      ++refused;
    }
  }
  CHECK(refused >= 400);
}

TEST_CASE(
    "hostile configs: oddities of published configs are accepted or give the exact expected "
    "error") {
  const TemporaryFolder folder;
  const std::string file = folder / "ds.json";
  const auto outcome = [&](const std::string& text) {
    write_file(file, text);
    return configured("--batch-size 8 --config " + file);
  };
  // Accepted because the meaning is clear: a comment after a value, a trailing comma, a quoted
  // boolean, "auto", integers with exponents; and stage 2 although the surrounding text says 3.
  const Configured runs = outcome(
      "{\n \"zero_optimization\": {\n  \"stage\": 2,\n  \"overlap_comm\": true,  #this MAY be "
      "necessary\n  \"reduce_bucket_size\": 5e8,\n  \"allgather_bucket_size\": 2e8,\n },\n "
      "\"bf16\": {\"enabled\": \"true\"},\n \"gradient_clipping\": \"auto\",\n}");
  checked(runs.outcome);
  CHECK(runs.seen.at("compute") == "bf16");
  CHECK(runs.seen.at("stage") == "2");
  std::string levels;
  for (int i = 0; i < 63; ++i) levels += "[0]";
  const std::pair<std::string, std::string> refused[] = {
      {"\"zero_optimization\": {\n\"fp16\": {\"enabled\": true}}",
       "2:1: zero_optimization.fp16: unknown key; expected a key of zero_optimization, got 'fp16'; "
       "try it at the top level, where it belongs"},
      {"\"zero_optimization\": {\n\"all_reduce_bucket_size\": 5e8}",
       "2:1: zero_optimization.all_reduce_bucket_size: unknown key; expected a key of "
       "zero_optimization, got 'all_reduce_bucket_size'; did you mean allgather_bucket_size, or "
       "reduce_bucket_size?"},
      {"\"zero_optimization\": {\n\"offload_param\": {\n\"device\": \"",
       "3:11: zero_optimization.offload_param.device: the string is not closed; expected \", got "
       "the end of the line; try a \" after ''"},
      {"\"steps_per_print\": 1,\n\"steps_per_print\": 2",
       "2:1: steps_per_print: the key comes twice; expected it once, got it in line 1 too; try "
       "leaving one of the two out"},
      {"\"train_batch_size\": 18446744073709551616",
       "1:22: train_batch_size: expected a whole number of 0 or more, or null, or \"auto\", got "
       "18446744073709551616; try leaving it out"},
      {"\"steps_per_print\": " + std::string(200'000, '['),
       "1:84: steps_per_print" + levels.substr(0, 105) +
           "...: more than 64 levels; expected fewer, got one more; try a flatter config"},
  };
  for (const auto& [text, expected] : refused) {
    CAPTURE(text.substr(0, 100));
    const Outcome end = checked(outcome("{" + text + "\n}").outcome, 2);
    CHECK(line_after(end.error, "error: ConfigError: ") == file + ":" + expected);
  }
}

}  // namespace zg::testing
