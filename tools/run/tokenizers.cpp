#include "tools/run/inputs.h"

#include <algorithm>

#include "tools/options/flags.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

// The tokenizer of a trained model: the copy in its checkpoint, or the file that an older
// checkpoint or a Hugging Face folder names.
models::Tokenizer tokenizer_of(const SavedModel& saved_model) {
  const std::string& path = saved_model.settings.data.tokenizer;
  if (const std::string& json = saved_model.settings.tokenizer_json; !json.empty())
    return models::tokenizer_from_json(json, saved_model.path + ": tokenizer.json",
                                       saved_model.settings.tokenizer_config);
  try {
    return models::load_tokenizer(path);
  } catch (const Unsupported& error) {
    raise<Unsupported>("{}; --tokenizer PATH names another one", error.what());
  } catch (const FileError& error) {
    if (path == saved_model.path) throw;  // the tokenizer of a Hugging Face folder
    throw FileError(std::string(error.what()) +
                    "; the checkpoint was trained with this tokenizer; expected it there, or "
                    "--tokenizer PATH with its new path");
  }
}

// The first id that means another token in `a` than in `b`; -1: none.
int64_t first_difference(const models::Tokenizer& a, const models::Tokenizer& b) {
  const auto &left = a.parts().tokens, &right = b.parts().tokens;
  const auto common = static_cast<int64_t>(std::min(left.size(), right.size()));
  const auto [found, other] =
      std::mismatch(left.begin(), left.begin() + common, right.begin(), right.begin() + common);
  return found == left.begin() + common ? -1 : found - left.begin();
}

std::string quoted(const models::Tokenizer& tokenizer, int64_t id) {
  return fmt::format("'{}'", printable(tokenizer.parts().tokens[static_cast<size_t>(id)]));
}

// Checkpoints are compared by the tokenizer's checksum, folders by the tokens of their ids.
void check_same(const SavedModel& saved_model, const DataOptions& data,
                const models::Tokenizer& tokenizer) {
  const DataOptions& saved = saved_model.settings.data;
  if (!saved.tokenizer_checksum.empty()) {
    if (data.tokenizer_checksum == saved.tokenizer_checksum) return;
    raise<ConfigError>(
        "--tokenizer: {} is not the tokenizer that the checkpoint was trained with: expected {} "
        "with checksum {}, got {}",
        data.tokenizer, saved.tokenizer, saved.tokenizer_checksum, data.tokenizer_checksum);
  }
  if (saved.tokenizer.empty()) return;
  std::optional<models::Tokenizer> own;
  try {
    own = models::load_tokenizer(saved.tokenizer);
  } catch (const Error&) {
    return;  // the folder's tokenizer is unreadable, so the flag replaces it
  }
  if (const int64_t id = first_difference(*own, tokenizer); id >= 0)
    raise<ConfigError>(
        "--tokenizer: {} is not the tokenizer of {}: token {} is {} in it, expected {}; leave the "
        "flag out",
        data.tokenizer, saved_model.path, id, quoted(tokenizer, id), quoted(*own, id));
}

bool reads_characters(const DataOptions& data, const models::Dataset& dataset) {
  return dataset.is_text() && data.tokenizer.empty();
}

// Says in a message how a model reads its token ids; empty: unknown.
std::string meaning_of(const RunSpec& settings) {
  if (!settings.characters.empty()) return "the characters of " + settings.data.source;
  if (!settings.data.tokenizer.empty()) return "those of the tokenizer " + settings.data.tokenizer;
  return "";
}

// With different numbers of characters, the common ids must be equal.
bool mean_the_same(const RunSpec& a, const RunSpec& b) {
  if (!a.characters.empty() || !b.characters.empty())
    return !a.characters.empty() && !b.characters.empty() &&
           (a.characters.starts_with(b.characters) || b.characters.starts_with(a.characters));
  return a.data.tokenizer_checksum == b.data.tokenizer_checksum;
}

}  // namespace

std::string checksum_of(const models::Tokenizer& tokenizer) {
  const std::string json = models::tokenizer_json(tokenizer, models::TextTemplate());
  return checksum(std::as_bytes(std::span(json)));
}

std::optional<models::Tokenizer> resolve_tokenizer(DataOptions& data, const SavedModel* saved_model,
                                                   bool named) {
  if (data.tokenizer.empty()) return std::nullopt;
  if (saved_model && !saved_model->settings.characters.empty())
    raise<ConfigError>(
        "--tokenizer: the checkpoint's tokens are the characters of {}; leave the flag out",
        saved_model->settings.data.source);
  const models::Tokenizer tokenizer =
      saved_model && !named ? tokenizer_of(*saved_model) : models::load_tokenizer(data.tokenizer);
  data.tokenizer_checksum = checksum_of(tokenizer);
  if (!saved_model) return tokenizer;
  check_same(*saved_model, data, tokenizer);
  const RunSpec& saved = saved_model->settings;
  return tokenizer.limited_to(saved.seq2seq.config.empty()
                                  ? saved.model.vocabulary
                                  : seq2seq_model(saved.seq2seq).config.vocabulary);
}

void keep_tokenizer(const models::Tokenizer& tokenizer, RunSpec& settings) {
  settings.tokenizer_json = models::tokenizer_json(tokenizer);
  settings.tokenizer_config = tokenizer.parts().config;
}

std::optional<models::Tokenizer> folder_tokenizer(DataOptions& data, const SavedModel& folder,
                                                  std::vector<std::string>& notes) {
  data.tokenizer = folder.settings.data.tokenizer;
  if (data.tokenizer.empty()) return std::nullopt;
  const DataKind kind = kind_of(data.source);
  try {
    if (kind != DataKind::task) return resolve_tokenizer(data, &folder, /*named=*/false);
    notes.push_back(fmt::format("the tokenizer of {} is not used: the tokens of {} are digits",
                                folder.path, data.source));
  } catch (const Error& error) {
    if (kind == DataKind::text || kind == DataKind::conversations) throw;
    notes.push_back(fmt::format("the tokenizer of {} is not kept: {}", folder.path, error.what()));
  }
  data.tokenizer.clear();
  return std::nullopt;
}

std::optional<int32_t> end_token(const SavedModel* saved_model,
                                 const models::Tokenizer* tokenizer) {
  if (tokenizer)
    if (const auto named = models::named_token(*tokenizer, "eos_token")) return named;
  if (saved_model)
    if (const std::vector<int32_t>& eos = saved_model->settings.special_tokens.eos; !eos.empty())
      return eos.front();
  if (!tokenizer) return std::nullopt;
  const models::SpecialTokens own = models::special_tokens_of(*tokenizer);
  return own.eos.empty() ? std::nullopt : std::optional(own.eos.front());
}

void check_tokenizer(const DataOptions& data, const models::Tokenizer& tokenizer,
                     const models::Dataset& dataset) {
  if (dataset.question_length() > 0)
    raise<ConfigError>(
        "--tokenizer: expected data PATH.txt, PATH.bin or PREFIX, got {}, whose tokens are digits; "
        "leave the flag out",
        data.source);
  if (dataset.vocabulary() > tokenizer.vocabulary())
    raise<ConfigError>(
        "--tokenizer: {} has {} tokens; the tokens of {} come from another one with at least {}",
        data.tokenizer, tokenizer.vocabulary(), data.source, dataset.vocabulary());
}

void check_tokens(const SavedModel& saved_model, const DataOptions& data,
                  const models::Dataset& dataset) {
  const RunSpec& saved = saved_model.settings;
  const int64_t expected = saved.model.vocabulary, got = dataset.vocabulary();
  if (!saved.characters.empty() && characters_of(dataset) != saved.characters)
    raise<ConfigError>("--data: {} has other characters than the checkpoint's {}", data.source,
                       saved.data.source);
  if (saved.characters.empty() && !saved_model.weights_only && reads_characters(data, dataset) &&
      got != expected)
    raise<ConfigError>(
        "--data: without a tokenizer {} is read as its {} characters, and the model of {} knows {} "
        "tokens of another kind; try --tokenizer PATH with the tokenizer that made them, or --data "
        "PATH.bin with tokens",
        data.source, got, saved_model.path, expected);
  if (got > expected)
    raise<ConfigError>("--data: expected at most the model's {} tokens, got {}{}", expected, got,
                       data.tokenizer.empty()
                           ? " in " + data.source
                           : fmt::format(", as the tokenizer {} has", data.tokenizer));
}

std::string check_initial_tokens(const SavedModel& saved_model, const RunSpec& run) {
  const std::string there = meaning_of(saved_model.settings), here = meaning_of(run);
  if (saved_model.weights_only || (there.empty() && here.empty())) return "";
  const std::string both =
      fmt::format("--init: the tokens of {} are {}, the run's are {}", saved_model.path,
                  there.empty() ? "numbers" : there, here.empty() ? "numbers" : here);
  if (there.empty() || here.empty()) return both + ": whether an id means the same is not known";
  if (mean_the_same(saved_model.settings, run)) return "";
  const std::string tokenizer = models::has_tokenizer(saved_model.path)
                                    ? saved_model.path
                                    : saved_model.settings.data.tokenizer;
  raise<ConfigError>(
      "{}: the same id would mean another token; try {}", both,
      tokenizer.empty() ? "a text with the same characters" : "--tokenizer " + tokenizer);
}

std::string description_of(const DataOptions& data, const models::Dataset& dataset,
                           const std::optional<models::Tokenizer>& tokenizer) {
  std::string tokens = "numbers";
  if (tokenizer)
    tokens = fmt::format("tokenizer {}, vocabulary {}", data.tokenizer, tokenizer->vocabulary());
  else if (dataset.is_text())
    tokens = fmt::format("{} characters", dataset.vocabulary());
  else if (dataset.question_length() > 0)
    tokens = "digits";
  const auto* const pairs = dynamic_cast<const PairData*>(&dataset);
  const PairData::Lengths longest = pairs ? pairs->longest() : PairData::Lengths();
  if (data.source.empty())
    return pairs ? fmt::format("no data; pairs of {} and {} tokens", longest.source, longest.target)
                 : "no data; tokens: " + tokens;
  return fmt::format("data {}: {} training and {} validation {} tokens; tokens: {}", data.source,
                     dataset.epoch_samples(models::Split::train),
                     dataset.epoch_samples(models::Split::validation),
                     pairs ? fmt::format("pairs of up to {} and {}", longest.source, longest.target)
                           : fmt::format("samples of {}", dataset.block_size()),
                     tokens);
}

}  // namespace zg::tools
