#include <algorithm>

#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/runtime/error.h"

namespace zg::models {

using Behavior = SplitStep::Behavior;

PreTokenizer::PreTokenizer(std::span<const PreTokenizerStep> steps, const std::string& where) {
  for (const PreTokenizerStep& step : steps) {
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      if (split->pattern.empty())
        throw FileError(where + ": an empty pattern; expected one that matches characters");
      add_split(*split, where, {});
    } else if (const auto* digits = std::get_if<DigitsStep>(&step)) {
      add_split({.pattern = digits->individual ? "\\p{N}" : "\\p{N}+"}, where, {});
    } else if (const auto* bytes = std::get_if<ByteLevelStep>(&step)) {
      if (&step != &steps.back())
        throw Unsupported(where + ": ByteLevel before another step; expected it as the last one");
      Stage stage;
      if (bytes->add_prefix_space) stage.prefix = *bytes;
      if (bytes->use_regex)
        add_split({.pattern = gpt2_split_pattern}, where, std::move(stage));
      else if (stage.prefix)
        stages_.push_back(std::move(stage));
    } else {
      const auto& metaspace = std::get<MetaspaceStep>(step);
      Stage stage{.metaspace = metaspace};
      if (metaspace.split)
        add_split({.pattern = metaspace.replacement,
                   .is_literal = true,
                   .behavior = Behavior::merged_with_next},
                  where, std::move(stage));
      else
        stages_.push_back(std::move(stage));
    }
  }
}

void PreTokenizer::add_split(const SplitStep& step, const std::string& where, Stage stage) {
  stage.splitter.emplace(step.is_literal ? literal_pattern(step.pattern) : step.pattern, where);
  stage.behavior = step.behavior;
  stage.invert = step.invert;
  stages_.push_back(std::move(stage));
}

struct PreTokenizer::Call {
  const char* begin;  // where the whole text begins; null: before the text of this call
  std::deque<TracedText>& owned;
  const OnWord& on_word;
};

namespace {

struct Piece {
  std::string_view text;
  bool is_match;
};

std::string_view joined(std::string_view a, std::string_view b) {  // b follows a
  return {a.data(), a.size() + b.size()};
}

// Joins pieces as SplitDelimiterBehavior of Hugging Face's tokenizers does. run() implements
// `isolated` and `removed`, which need no list of pieces.
std::vector<std::string_view> joined_pieces(const std::vector<Piece>& pieces, Behavior behavior) {
  std::vector<std::string_view> words;
  bool previous_match = false;
  if (behavior == Behavior::merged_with_next) {
    for (size_t i = pieces.size(); i-- > 0;) {
      const Piece& piece = pieces[i];
      if (piece.is_match && !previous_match && !words.empty())
        words.back() = joined(piece.text, words.back());
      else
        words.push_back(piece.text);
      previous_match = piece.is_match;
    }
    std::reverse(words.begin(), words.end());
    return words;
  }
  for (const Piece& piece : pieces) {
    const bool joins = behavior == Behavior::contiguous ? piece.is_match == previous_match
                                                        : piece.is_match && !previous_match;
    if (joins && !words.empty())
      words.back() = joined(words.back(), piece.text);
    else
      words.push_back(piece.text);
    previous_match = piece.is_match;
  }
  return words;
}

}  // namespace

// The text to split: the stage has added or replaced characters.
TracedView PreTokenizer::changed(const Stage& stage, const TracedView& text,
                                 const Call& call) const {
  const bool prefixed = stage.prefix && text.text.front() != ' ';
  if (!prefixed && !stage.metaspace) return text;
  TracedText& own = call.owned.emplace_back(text.copy());
  if (prefixed) {
    prepend(own, " ");
    return own;
  }
  const MetaspaceStep& step = *stage.metaspace;
  replace(own, {.text = " ", .by = step.replacement});
  const bool adds =
      step.prepend == MetaspaceStep::Prepend::always ||
      (step.prepend == MetaspaceStep::Prepend::first && text.text.data() == call.begin);
  if (adds && !own.text.starts_with(step.replacement)) prepend(own, step.replacement);
  return own;
}

void PreTokenizer::run(size_t number, const TracedView& text, const Call& call) const {
  if (number == stages_.size()) return call.on_word(text);
  const Stage& stage = stages_[number];
  const TracedView whole = changed(stage, text, call);
  // If the text is at the begin of the whole text, its changed copy is too.
  const Call inner = {text.text.data() == call.begin ? whole.text.data() : nullptr, call.owned,
                      call.on_word};
  if (!stage.splitter) return run(number + 1, whole, inner);
  Splitter::Pieces pieces(*stage.splitter, whole.text);
  std::string_view piece;
  if (stage.behavior == Behavior::isolated || stage.behavior == Behavior::removed) {
    const bool is_last = number + 1 == stages_.size();
    while (pieces.next(piece)) {
      if (stage.behavior == Behavior::removed && pieces.is_match() != stage.invert) continue;
      is_last ? call.on_word(whole.at(piece)) : run(number + 1, whole.at(piece), inner);
    }
    return;
  }
  std::vector<Piece> all;
  while (pieces.next(piece)) all.push_back({piece, pieces.is_match() != stage.invert});
  for (const std::string_view word : joined_pieces(all, stage.behavior))
    run(number + 1, whole.at(word), inner);
}

void PreTokenizer::for_words(const TracedView& text, bool begins_text,
                             std::deque<TracedText>& owned, const OnWord& on_word) const {
  if (!text.text.empty()) run(0, text, {begins_text ? text.text.data() : nullptr, owned, on_word});
}

}  // namespace zg::models
