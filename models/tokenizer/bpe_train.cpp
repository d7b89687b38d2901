#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "zerograd/models/tokenizer/split_pattern.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

using Pair = uint64_t;  // left, right

Pair pair_of(int32_t left, int32_t right) {
  return static_cast<Pair>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
int32_t left_of(Pair pair) { return static_cast<int32_t>(pair >> 32); }
int32_t right_of(Pair pair) { return static_cast<int32_t>(pair & 0xffffffff); }

struct Word {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

/// A pair, its count when it was queued, and the words that contain it.
struct Candidate {
  Pair pair;
  int64_t count;
  std::vector<uint32_t> words;

  bool operator<(const Candidate& other) const {  // a heap has the largest on top
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

std::map<std::string_view, int64_t> count_words(std::string_view text,
                                                const TokenizerTraining& training) {
  std::vector<Splitter> splitters;
  if (!training.split.empty()) splitters.emplace_back(training.split, "train");
  if (training.gpt2_split) splitters.emplace_back(gpt2_split_pattern, "train");
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Splitter& splitter : splitters) {
    std::vector<std::string_view> smaller;
    for (const std::string_view whole : pieces) {
      Splitter::Pieces pieces(splitter, whole);
      for (std::string_view piece; pieces.next(piece);) smaller.push_back(piece);
    }
    pieces = std::move(smaller);
  }
  std::unordered_map<std::string_view, int64_t> counts;
  for (const std::string_view piece : pieces) ++counts[piece];
  return {counts.begin(), counts.end()};
}

/// Repeats the algorithm of Hugging Face's BpeTrainer step by step. The same vocabulary results
/// only if pairs are counted at the same steps.
class Trainer {
 public:
  explicit Trainer(const TokenizerTraining& training) : training_(training) {
    for (const std::string& content : training.added) {
      if (content.empty() || ids_.contains(content))
        raise<ConfigError>("train: expected added tokens that are not empty and differ, got '{}'",
                           content);
      parts_.added.push_back({.content = content, .id = id_of(content)});
    }
    for (const unsigned char byte : bytes_by_character())
      byte_ids_[byte] = id_of(byte_alphabet()[byte]);
    if (training.vocabulary < size())
      raise<ConfigError>(
          "train: expected a vocabulary of at least {} tokens, for 256 bytes and the "
          "added tokens, got {}",
          size(), training.vocabulary);
  }

  Tokenizer run(std::string_view text) {
    read(text);
    while (size() < training_.vocabulary && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate top = std::move(queue_.back());
      queue_.pop_back();
      if (const int64_t now = counts_[top.pair]; now != top.count) {
        top.count = now;
        push(std::move(top));
        continue;
      }
      if (top.count < std::max<int64_t>(1, training_.min_count)) break;
      merge(top);
    }
    parts_.pre_tokenizers = {ByteLevelStep{.use_regex = training_.gpt2_split}};
    if (!training_.split.empty())
      parts_.pre_tokenizers.insert(parts_.pre_tokenizers.begin(),
                                   SplitStep{.pattern = training_.split});
    return Tokenizer(std::move(parts_), "train");
  }

 private:
  int64_t size() const { return std::ssize(parts_.tokens); }

  int32_t id_of(const std::string& token) {
    const auto [found, is_new] = ids_.emplace(token, static_cast<int32_t>(size()));
    if (is_new) parts_.tokens.push_back(token);
    return found->second;
  }

  void read(std::string_view text) {
    for (const auto& [piece, count] : count_words(text, training_)) {
      if (piece.size() < 2) continue;
      Word& word = words_.emplace_back(Word{.count = count});
      for (const char byte : piece)
        word.tokens.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    }
    for (uint32_t i = 0; i < words_.size(); ++i)
      for (size_t k = 0; k + 1 < words_[i].tokens.size(); ++k)
        count(pair_of(words_[i].tokens[k], words_[i].tokens[k + 1]), words_[i].count, i);
    enqueue_found();
  }

  void count(Pair pair, int64_t more, uint32_t word) {
    counts_[pair] += more;
    if (more <= 0) return;
    std::vector<uint32_t>& words = found_[pair];
    if (words.empty() || words.back() != word)
      words.push_back(word);  // the pairs of one word follow each other, so no other entry has it
  }

  void enqueue_found() {
    for (auto& [pair, words] : found_)
      if (const int64_t count = counts_[pair]; count > 0) push({pair, count, std::move(words)});
    found_.clear();
  }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }

  void merge(const Candidate& top) {
    const int32_t left = left_of(top.pair), right = right_of(top.pair);
    const std::string joined =
        parts_.tokens[static_cast<size_t>(left)] + parts_.tokens[static_cast<size_t>(right)];
    const int32_t result = id_of(joined);
    parts_.merges.push_back({left, right, result});
    for (const uint32_t i : top.words) merge_in(i, left, right, result);
    enqueue_found();
  }

  void merge_in(uint32_t word, int32_t left, int32_t right, int32_t result) {
    std::vector<int32_t>& tokens = words_[word].tokens;
    const int64_t times = words_[word].count;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++kept) {
      if (tokens[i] != left || i + 1 == tokens.size() || tokens[i + 1] != right) {
        tokens[kept] = tokens[i++];
        continue;
      }
      if (kept > 0) {
        count(pair_of(tokens[kept - 1], left), -times, word);
        count(pair_of(tokens[kept - 1], result), times, word);
      }
      i += 2;
      if (i < tokens.size()) {
        count(pair_of(right, tokens[i]), -times, word);
        count(pair_of(result, tokens[i]), times, word);
      }
      tokens[kept] = result;
    }
    tokens.resize(kept);
  }

  const TokenizerTraining& training_;
  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> ids_;
  std::array<int32_t, 256> byte_ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, int64_t> counts_;
  std::map<Pair, std::vector<uint32_t>> found_;  // since the last enqueue_found()
  std::vector<Candidate> queue_;                 // a heap
};

}  // namespace

Tokenizer train_tokenizer(std::string_view text, const TokenizerTraining& training) {
  return Trainer(training).run(text);
}

}  // namespace zg::models
