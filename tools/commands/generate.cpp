#include "zerograd/models/gpt/generate.h"

#include <cstdio>

#include "tools/commands/subcommands.h"
#include "tools/options/run_checks.h"
#include "tools/run/setup.h"
#include "tools/run/tokenizers.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

void write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// A weights file does not store the characters: they come from the training data, which a flag
// names.
std::string characters_for(const SavedModel& saved_model, const GenerateOptions& options) {
  const Settings& settings = saved_model.settings;
  if (options.data.source.empty()) return settings.characters;
  const auto dataset = make_dataset(options.data, {.block_size = settings.model.block_size,
                                                   .seed = settings.seed,
                                                   .vocabulary = settings.model.vocabulary});
  check_tokens(saved_model, options.data, *dataset);
  return characters_of(*dataset);
}

// The model's own tokenizer, or that of the flag. If both exist, they must be equal.
std::optional<models::Tokenizer> tokenizer_for(const SavedModel& saved_model,
                                               const GenerateOptions& options) {
  DataOptions data = saved_model.settings.data;
  const bool named = options.given.count("--tokenizer") > 0;
  if (named) data.tokenizer = options.data.tokenizer;
  if (!data.tokenizer.empty() && !options.data.source.empty())
    throw ConfigError(fmt::format(
        "--data: the tokens are those of the tokenizer {}; leave the flag out", data.tokenizer));
  return resolve_tokenizer(data, &saved_model, named);
}

std::vector<int32_t> prompt_tokens(const models::TextStream& words, const std::string& prompt) try {
  return words.encode(prompt);
} catch (const ConfigError& error) {
  const std::string message = error.what();
  if (message.find("neither characters nor a tokenizer") == std::string::npos) throw;
  throw ConfigError(message +
                    "; try --tokenizer PATH, or --data with the text that it was trained on");
}

void speak(const TrainedModel& trained, const GenerateOptions& options, models::TextStream& words) {
  const int64_t saved_model = trained.saved_model.settings.model.vocabulary;
  const std::vector<int32_t> prompt = prompt_tokens(words, options.prompt);
  for (int32_t token : prompt)
    if (token >= saved_model)
      throw ConfigError(
          fmt::format("--prompt: expected tokens below {}, got {}", saved_model, token));
  if (prompt.empty()) throw ConfigError("--prompt: expected at least one token, got none");
  for (int32_t token : prompt) write(words.decode(token));
  models::generate(
      *trained.model, [&] { return trained.engine->inference_tape(); }, {prompt}, options.length,
      options.sampling, [&](int32_t token) { write(words.decode(token)); });
  write(words.rest() + "\n");
}

}  // namespace

int generate(const std::vector<std::string>& arguments) {
  GenerateOptions options;
  if (!parse(arguments, options)) return 0;
  check_model_flags(options.given, options.checkpoint);
  const auto trained = load_model(options.checkpoint, options.model, options.device_flags);
  std::optional<models::Tokenizer> tokenizer = tokenizer_for(trained->saved_model, options);
  const auto words = tokenizer ? models::text_stream(std::move(*tokenizer))
                               : models::character_stream(
                                     characters_for(trained->saved_model, options), "--prompt");
  speak(*trained, options, *words);
  return 0;
}

}  // namespace zg::tools
