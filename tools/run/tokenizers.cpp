#include "tools/run/tokenizers.h"

#include <algorithm>

#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::tools {
namespace {

// The tokenizer of a trained model: the copy in its checkpoint, or the file that an older
// checkpoint or a Hugging Face folder names.
models::Tokenizer tokenizer_of(const Known& known) {
  const std::string& path = known.settings.data.tokenizer;
  if (const std::string& json = known.settings.tokenizer_json; !json.empty())
    return models::tokenizer_from_json(json, known.path + ": tokenizer.json");
  try {
    return models::load_tokenizer(path);
  } catch (const Unsupported& error) {
    throw Unsupported(std::string(error.what()) + "; --tokenizer PATH names another one");
  } catch (const FileError& error) {
    if (path == known.path) throw;  // the tokenizer of a Hugging Face folder
    throw FileError(std::string(error.what()) +
                    "; the checkpoint was trained with this tokenizer; expected it there, or "
                    "--tokenizer PATH with its new place");
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
  return "'" + printable(tokenizer.parts().tokens[static_cast<size_t>(id)]) + "'";
}

// Checkpoints are compared by the tokenizer's checksum, folders by the tokens of their ids.
void check_same(const Known& known, const DataOptions& data, const models::Tokenizer& tokenizer) {
  const DataOptions& saved = known.settings.data;
  if (!saved.tokenizer_checksum.empty()) {
    if (data.tokenizer_checksum == saved.tokenizer_checksum) return;
    throw ConfigError("--tokenizer: " + data.tokenizer +
                      " is not the tokenizer that the checkpoint was trained with: expected " +
                      saved.tokenizer + " with checksum " + saved.tokenizer_checksum + ", got " +
                      data.tokenizer_checksum);
  }
  if (saved.tokenizer.empty()) return;
  std::optional<models::Tokenizer> own;
  try {
    own = models::load_tokenizer(saved.tokenizer);
  } catch (const Error&) {
    return;  // the folder's tokenizer is unreadable, so the flag replaces it
  }
  if (const int64_t id = first_difference(*own, tokenizer); id >= 0)
    throw ConfigError(
        text("--tokenizer: %s is not the tokenizer of %s: token %lld is %s in it, "
             "expected %s; leave the flag out",
             data.tokenizer.c_str(), known.path.c_str(), (long long)id,
             quoted(tokenizer, id).c_str(), quoted(*own, id).c_str()));
}

bool reads_characters(const DataOptions& data, const models::Dataset& dataset) {
  return dataset.is_text() && data.tokenizer.empty();
}

// Says in a message how a model reads its token ids; empty: unknown.
std::string meaning_of(const Settings& settings) {
  if (!settings.characters.empty()) return "the characters of " + settings.data.source;
  if (!settings.data.tokenizer.empty()) return "those of the tokenizer " + settings.data.tokenizer;
  return "";
}

// With different numbers of characters, the common ids must be equal.
bool mean_the_same(const Settings& a, const Settings& b) {
  if (!a.characters.empty() || !b.characters.empty())
    return !a.characters.empty() && !b.characters.empty() &&
           (a.characters.starts_with(b.characters) || b.characters.starts_with(a.characters));
  return a.data.tokenizer_checksum == b.data.tokenizer_checksum;
}

}  // namespace

std::string checksum_of(const models::Tokenizer& tokenizer) {
  const std::string json = models::tokenizer_json(tokenizer);
  return checksum(std::as_bytes(std::span(json)));
}

models::Tokenizer tokenizer_named(const std::string& name, std::string_view text) {
  constexpr std::string_view train = "train:";
  if (!name.starts_with(train)) return models::load_tokenizer(name);
  return models::train_tokenizer(
      text, {.vocabulary = parse_integer("--tokenizer", name.substr(train.size()), 257, 1 << 24)});
}

std::optional<models::Tokenizer> settle_tokenizer(DataOptions& data, const Known* known,
                                                  bool named) {
  if (data.tokenizer.empty()) return std::nullopt;
  if (known && !known->settings.characters.empty())
    throw ConfigError("--tokenizer: the checkpoint's tokens are the characters of " +
                      known->settings.data.source + "; leave the flag out");
  const models::Tokenizer tokenizer =
      known && !named ? tokenizer_of(*known) : models::load_tokenizer(data.tokenizer);
  data.tokenizer_checksum = checksum_of(tokenizer);
  if (known) check_same(*known, data, tokenizer);
  return tokenizer;
}

std::optional<models::Tokenizer> folder_tokenizer(DataOptions& data, const Known& folder,
                                                  std::vector<std::string>& notes) {
  data.tokenizer = folder.settings.data.tokenizer;
  if (data.tokenizer.empty()) return std::nullopt;
  const DataKind kind = kind_of(data.source);
  try {
    if (kind != DataKind::task) return settle_tokenizer(data, &folder, /*named=*/false);
    notes.push_back("the tokenizer of " + folder.path + " is not used: the tokens of " +
                    data.source + " are digits");
  } catch (const Error& error) {
    if (kind == DataKind::text) throw;
    notes.push_back("the tokenizer of " + folder.path + " is not kept: " + error.what());
  }
  data.tokenizer.clear();
  return std::nullopt;
}

void check_tokenizer(const DataOptions& data, const models::Tokenizer& tokenizer,
                     const models::Dataset& dataset) {
  if (dataset.question_length() > 0)
    throw ConfigError("--tokenizer: expected data PATH.txt, PATH.bin or PREFIX, got " +
                      data.source + ", whose tokens are digits; leave the flag out");
  if (dataset.vocabulary() > tokenizer.vocabulary())
    throw ConfigError("--tokenizer: " + data.tokenizer + " has " +
                      std::to_string(tokenizer.vocabulary()) + " tokens; " + data.source +
                      " was made with another, of at least " +
                      std::to_string(dataset.vocabulary()));
}

void check_tokens(const Known& known, const DataOptions& data, const models::Dataset& dataset) {
  const Settings& saved = known.settings;
  const int64_t expected = saved.model.vocabulary, got = dataset.vocabulary();
  if (!saved.characters.empty() && characters_of(dataset) != saved.characters)
    throw ConfigError("--data: " + data.source + " has other characters than the checkpoint's " +
                      saved.data.source);
  if (saved.characters.empty() && !known.bare && reads_characters(data, dataset) && got != expected)
    throw ConfigError(
        text("--data: without a tokenizer %s is read as its %lld characters, and the "
             "model of %s knows %lld tokens of another kind; try --tokenizer PATH "
             "with the tokenizer that made them, or --data PATH.bin with tokens",
             data.source.c_str(), (long long)got, known.path.c_str(), (long long)expected));
  if (got > expected)
    throw ConfigError("--data: expected at most the model's " + std::to_string(expected) +
                      " tokens, got " + std::to_string(got) +
                      (data.tokenizer.empty() ? " in " + data.source
                                              : ", as the tokenizer " + data.tokenizer + " has"));
}

std::string check_initial_tokens(const Known& known, const Settings& run) {
  const std::string there = meaning_of(known.settings), here = meaning_of(run);
  if (known.bare || (there.empty() && here.empty())) return "";
  const std::string both = "--init: the tokens of " + known.path + " are " +
                           (there.empty() ? "numbers" : there) + ", the run's are " +
                           (here.empty() ? "numbers" : here);
  if (there.empty() || here.empty()) return both + ": whether an id means the same is not known";
  if (mean_the_same(known.settings, run)) return "";
  const std::string tokenizer =
      models::has_tokenizer(known.path) ? known.path : known.settings.data.tokenizer;
  throw ConfigError(
      both + ": the same id would mean another token; try " +
      (tokenizer.empty() ? "a text with the same characters" : "--tokenizer " + tokenizer));
}

std::string described(const DataOptions& data, const models::Dataset& dataset,
                      const std::optional<models::Tokenizer>& tokenizer) {
  std::string tokens = "numbers";
  if (tokenizer)
    tokens = text("tokenizer %s, vocabulary %lld", data.tokenizer.c_str(),
                  (long long)tokenizer->vocabulary());
  else if (dataset.is_text())
    tokens = text("%lld characters", (long long)dataset.vocabulary());
  else if (dataset.question_length() > 0)
    tokens = "digits";
  if (data.source.empty()) return "no data; tokens: " + tokens;
  return text("data %s: %lld training and %lld validation samples of %lld tokens; tokens: %s",
              data.source.c_str(), (long long)dataset.epoch_samples(models::Split::train),
              (long long)dataset.epoch_samples(models::Split::validation),
              (long long)dataset.block_size(), tokens.c_str());
}

}  // namespace zg::tools
