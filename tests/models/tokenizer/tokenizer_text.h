#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "zerograd/runtime/text/utf8.h"

// The text of tests/reference/tokenizer.py: mixed scripts, made of seed.txt by the same recipe.
namespace zg::testing {

/// A tokenizer.json of tests/reference/fixtures/tokenizer/families with the patch of a variant: an
/// object with a type replaces the other one.
inline nlohmann::json patched(nlohmann::json file, const nlohmann::json& patch) {
  for (const auto& [key, value] : patch.items())
    file[key] = value.is_object() && !value.contains("type") ? patched(file[key], value) : value;
  return file;
}

/// SplitMix64 (Steele 2014).
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  uint64_t state_;
};

class MixedText {
 public:
  static constexpr uint64_t blocks = 64;
  static constexpr size_t block_bytes = 16384;

  explicit MixedText(const std::string& seed_path) {
    const std::string seed = read_file(seed_path);
    for (size_t at = 0; at < seed.size();)
      seed_.push_back(utf8(next_code_point(seed, at, seed_path)));
  }

  std::string block(uint64_t number) const {
    Draws draws(number);
    std::string text;
    while (text.size() < block_bytes) text += piece(draws);
    return text;
  }
  std::string first(uint64_t count) const {
    std::string text;
    for (uint64_t number = 0; number < count; ++number) text += block(number);
    return text;
  }

 private:
  static std::string times(uint64_t count, const std::string& part) {
    std::string text;
    while (count-- > 0) text += part;
    return text;
  }

  std::string piece(Draws& draws) const {
    const uint64_t kind = draws.below(16);
    if (kind <= 8) {
      const uint64_t begin = draws.below(seed_.size());
      const uint64_t end = std::min<uint64_t>(begin + 1 + draws.below(48), seed_.size());
      std::string text;
      for (uint64_t i = begin; i < end; ++i) text += seed_[i];
      return text;
    }
    if (kind == 9) {
      const std::string& space = draws.one_of(spaces_);
      return times(1 + draws.below(6), space);
    }
    if (kind == 10) {
      const std::string number = std::to_string(draws.next());
      return number.substr(0, 1 + draws.below(number.size()));
    }
    if (kind == 11) {
      const auto [first, last] = draws.one_of(ranges_);
      std::string text;
      for (uint64_t count = 1 + draws.below(10); count > 0; --count)
        text += utf8(static_cast<char32_t>(first + draws.below(last - first + 1)));
      return text;
    }
    if (kind == 12) return utf8(draws.one_of(odd_));
    if (kind == 13) return draws.one_of(marks_);
    if (kind == 14) return draws.one_of(contractions_);
    const std::string& character = draws.one_of(seed_);
    return times(1 + draws.below(30), character);
  }

  struct Range {
    uint64_t first, last;
  };
  const std::vector<std::string> spaces_ = {
      " ",      "  ",     "\n",     "\r\n", "\t",   "\u00a0", "\u3000", "\u2028",
      "\u0085", "\u180e", "\u200b", "\x0b", "\x0c", "\x1c",   "\r",     "\u2009"};
  const std::vector<char32_t> odd_ = {0xfeff,  0x200d,   0xfffd, 0xfffe, 0x0,   0x7f,
                                      0xe000,  0x10ffff, 0x2060, 0xad,   0x61c, 0xfff9,
                                      0xe0041, 0x1f,     0x80,   0xfdd0};
  const std::vector<Range> ranges_ = {
      {0x41, 0x5a},     {0xc0, 0x24f},    {0x370, 0x3e1},     {0x400, 0x52f},
      {0x621, 0x64a},   {0x905, 0x939},   {0x93e, 0x94d},     {0xe01, 0xe3a},
      {0x3041, 0x3096}, {0x30a1, 0x30fa}, {0x4e00, 0x9fa5},   {0xac00, 0xd7a3},
      {0x300, 0x36f},   {0x2190, 0x22ff}, {0x1f600, 0x1f64f}, {0x20000, 0x2a6d6},
      {0x660, 0x669},   {0x2160, 0x2188}, {0x1d400, 0x1d454}, {0x1f1e6, 0x1f1ff}};
  const std::vector<std::string> marks_ = {"<|endoftext|>", "<s>",         "</s>", "<unk>",
                                           "<pad>",         "<|endoftext", "<s",   "<<s>>"};
  const std::vector<std::string> contractions_ = {"'s", "'t", "'re", "'ve",     "'m",  "'ll",
                                                  "'d", "'S", "'LL", "\u2019s", "''s", " 's"};
  std::vector<std::string> seed_;  // its characters
};

}  // namespace zg::testing
