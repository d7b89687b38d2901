#include "tools/run/inputs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/run/data_file.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

using models::Split;

PairText::PairText(const models::Seq2SeqConfig& config, const models::Tokenizer* tokenizer,
                   std::string where)
    : tokens_(config.tokens),
      tokenizer_(tokenizer),
      where_(std::move(where)),
      begins_with_bos_(!template_of(config).before.empty()) {}

std::vector<int32_t> PairText::encode(const std::string& text, int64_t limit) const {
  std::vector<int32_t> ids =
      tokenizer_ ? tokenizer_->encode(text) : models::character_stream("", where_)->encode(text);
  const bool ends = !tokens_.eos.empty();
  const auto room = std::max<int64_t>(0, limit - (begins_with_bos_ ? 1 : 0) - (ends ? 1 : 0));
  if (std::ssize(ids) > room) ids.resize(static_cast<size_t>(room));
  if (begins_with_bos_) ids.insert(ids.begin(), *tokens_.bos);
  if (ends) ids.push_back(tokens_.eos.front());
  return ids;
}

std::string PairText::decode(std::span<const int32_t> ids) const {
  std::vector<int32_t> words;
  std::string numbers;
  for (const int32_t id : ids) {
    const bool is_special = id == tokens_.pad || id == tokens_.decoder_start || id == tokens_.bos ||
                            std::ranges::find(tokens_.eos, id) != tokens_.eos.end();
    const auto is_marked = [id](const models::AddedToken& token) {
      return token.id == id && token.special;  // <mask>, <unk>
    };
    // A model may have more ids than its tokenizer.
    if (is_special || (tokenizer_ && (id >= tokenizer_->vocabulary() ||
                                      std::ranges::any_of(tokenizer_->parts().added, is_marked))))
      continue;
    words.push_back(id);
    numbers += (numbers.empty() ? "" : " ") + std::to_string(id);
  }
  return tokenizer_ ? tokenizer_->decode(words) : numbers;
}

models::TextTemplate template_of(const models::Seq2SeqConfig& config) {
  const models::Seq2SeqTokens& tokens = config.tokens;
  models::TextTemplate around;
  if (config.family == models::Seq2SeqFamily::bart && tokens.bos) around.before = {*tokens.bos};
  if (!tokens.eos.empty()) around.after = {tokens.eos.front()};
  return around;
}

models::Seq2SeqTokens seq2seq_tokens(models::Seq2SeqFamily family,
                                     const models::Tokenizer& tokenizer, const std::string& path) {
  const models::SpecialTokens special = models::special_tokens_of(tokenizer);
  if (special.eos.empty())
    raise<ConfigError>(
        "--tokenizer: expected a token that ends a text, </s> or <|endoftext|>, got none in {}",
        path);
  const int32_t eos = special.eos.front();
  const bool is_bart = family == models::Seq2SeqFamily::bart;
  return {.pad = special.pad.value_or(eos),
          .decoder_start = is_bart ? eos : special.bos.value_or(eos),
          .bos = special.bos,
          .eos = special.eos,
          .forced_eos = special.eos};
}

PairData::PairData(models::PairDataset pairs, const Padding& padding,
                   const models::Seq2SeqConfig& config)
    : pairs_(std::move(pairs)), padding_(padding), config_(config), validates_(true) {}

PairData::PairData(const Padding& padding, const models::Seq2SeqConfig& config, bool validates)
    : padding_(padding), config_(config), validates_(validates) {}

PairData::Lengths PairData::lengths(Split split, int64_t first, int64_t count) const {
  return !pairs_ || padding_.always ? padding_.longest : pairs_->longest(split, first, count);
}

PairData::Lengths PairData::longest() const {
  return pairs_ ? pairs_->longest() : padding_.longest;
}

std::vector<models::TokenPair> PairData::samples(Split split, int64_t first, int64_t count) const {
  if (pairs_) return pairs_->samples(split, first, count);
  const auto texts = [this](int64_t length) {
    return std::vector<int32_t>(static_cast<size_t>(length), config_.tokens.pad);
  };
  return {static_cast<size_t>(count), models::TokenPair{.source = texts(padding_.longest.source),
                                                        .target = texts(padding_.longest.target)}};
}

models::Seq2SeqBatch PairData::padded(Split split, int64_t first, int64_t count,
                                      const Lengths& lengths, const Device& device) const {
  std::vector<std::vector<int32_t>> sources, targets;
  for (models::TokenPair& pair : samples(split, first, count)) {
    sources.push_back(std::move(pair.source));
    targets.push_back(std::move(pair.target));
  }
  return models::padded_batch(sources, targets, config_.tokens, device, lengths.source,
                              lengths.target);
}

int64_t PairData::labels(Split split, int64_t first, int64_t count) const {
  int64_t labels = 0;
  for (const models::TokenPair& pair : samples(split, first, count))
    labels += std::ssize(pair.target);
  return labels;
}

int64_t PairData::vocabulary() const { return pairs_ ? pairs_->vocabulary() : config_.vocabulary; }

int64_t PairData::epoch_samples(Split split) const {
  if (pairs_) return pairs_->epoch_samples(split);
  return split == Split::train || validates_ ? int64_t{1} << 40 : 0;
}

void PairData::sample(Split, int64_t, int32_t*, int32_t*) const {
  throw Unsupported("pairs: they have no samples of one sequence");
}

namespace {

constexpr const char* pairs_wanted =
    "an encoder-decoder model learns pairs; expected PATH.jsonl with a line such as {\"source\": "
    "\"Hi\", \"target\": \"Hello\"} for each";

void check_kind(const std::string& source) {
  if (source == "sort" || source == "adder" || source.ends_with(".bin") ||
      source.ends_with(".txt") || !indexed_prefix(source).empty())
    raise<ConfigError>("--data: {}, got {}", pairs_wanted, source);
}

std::vector<models::TokenPair> pairs_in(const PairSource& source) {
  const std::string& path = source.data.source;
  check_kind(path);
  const PairText text(source.config, source.tokenizer, "--data: " + path);
  try {
    return models::read_pairs(
        path, [&](const std::string& words, int64_t limit) { return text.encode(words, limit); },
        {.max_source = source.options.max_source,
         .max_target = source.options.max_target,
         .source_prefix = source.options.source_prefix});
  } catch (const FileError& error) {
    raise<FileError>("--data: {}; {}", error.what(), pairs_wanted);
  }
}

/// Keeps the first pairs of each split, as --n-train and --n-val say. Returns the fraction of the
/// kept pairs that is in the validation split.
double limit_pairs(const PairSource& source, std::vector<models::TokenPair>& pairs) {
  const double fraction = source.data.validation_fraction;
  const auto count = std::ssize(pairs);
  const auto validation = std::llround(static_cast<double>(count) * fraction);
  const auto limited = [&](const char* flag, int64_t limit, int64_t all, const char* split) {
    if (limit > all)
      raise<ConfigError>("{}: expected at most the {} {} pairs of {}, got {}", flag, all, split,
                         source.data.source, limit);
    return limit > 0 ? limit : all;
  };
  const int64_t train =
      limited("--n-train", source.options.train_pairs, count - validation, "training");
  const int64_t held_out =
      limited("--n-val", source.options.validation_pairs, validation, "validation");
  pairs.erase(pairs.begin() + (count - validation + held_out), pairs.end());
  pairs.erase(pairs.begin() + train, pairs.begin() + (count - validation));
  const auto left = static_cast<double>(train + held_out);
  return train > 0 ? static_cast<double>(held_out) / left : fraction;
}

}  // namespace

PairData::Padding padding_of(const Seq2SeqOptions& options) {
  return {.longest = {.source = options.max_source, .target = options.max_target},
          .always = options.pad_to_max};
}

std::shared_ptr<const PairData> read_pair_data(const PairSource& source) {
  const std::string& path = source.data.source;
  std::vector<models::TokenPair> pairs = pairs_in(source);
  const double fraction = limit_pairs(source, pairs);
  auto data = std::make_shared<const PairData>(
      models::PairDataset(
          std::move(pairs),
          {.validation_fraction = fraction, .order = source.data.order, .seed = source.seed}),
      padding_of(source.options), source.config);
  if (data->vocabulary() > source.config.vocabulary)
    raise<ConfigError>(
        "--data: {} has the token {}; expected ids below {}, the model's vocabulary{}", path,
        data->vocabulary() - 1, source.config.vocabulary,
        source.tokenizer ? "; try the model's own --tokenizer" : "");
  return data;
}

void resolve_lengths(const models::Seq2SeqConfig& config, Seq2SeqOptions& options) {
  constexpr int64_t default_length = 128;
  for (const auto& [flag, length] : {std::pair("--max-source-length", &options.max_source),
                                     std::pair("--max-target-length", &options.max_target)}) {
    if (*length == 0) *length = std::min(default_length, config.positions);
    if (*length > config.positions)
      raise<ConfigError>("{}: expected at most the {} positions of the model, got {}", flag,
                         config.positions, *length);
  }
}

double pair_loss(const models::Seq2Seq& model, const std::function<Tape()>& make_tape,
                 const PairData& data, const Device& device, int64_t batch, int64_t batches) {
  const int64_t whole = data.epoch_samples(Split::validation);
  if (whole == 0)
    throw ConfigError("--val-fraction: expected a validation split, got none; try 0.1");
  const int64_t samples = batches > 0 ? std::min(whole, batch * batches) : whole;
  double sum = 0.0, labels = 0.0;
  for (int64_t first = 0; first < samples; first += batch) {
    const int64_t count = std::min(batch, samples - first);
    const auto weight = static_cast<double>(data.labels(Split::validation, first, count));
    const models::Seq2SeqBatch pairs = data.padded(
        Split::validation, first, count, data.lengths(Split::validation, first, count), device);
    Tape tape = make_tape();
    sum += model.loss(tape, pairs, {}).value().item() * weight;
    labels += weight;
  }
  return sum / labels;
}

}  // namespace zg::tools
