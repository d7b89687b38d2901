#include "models/generate.h"

#include <cstdio>

#include "models/tokenizer_files.h"
#include "runtime/error.h"
#include "tools/characters.h"
#include "tools/effects.h"
#include "tools/setup.h"
#include "tools/subcommands.h"
#include "tools/tokenizers.h"

namespace zg::tools {
namespace {

void write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// A weights file has no characters: the data that it was trained on has.
Characters characters_for(const Settings& settings, const GenerateOptions& options) {
  if (options.data.source.empty()) return Characters(settings.characters);
  const std::string characters = characters_of(*make_dataset(
      options.data, settings.model.block_size, settings.seed, settings.model.vocabulary));
  if (!settings.characters.empty() && characters != settings.characters)
    throw ConfigError("--data: " + options.data.source + " has other characters than the model's " +
                      settings.data.source + "; leave the flag out");
  return Characters(characters);
}

// The checkpoint's own tokenizer, or the flag's, which has to be the same where it says which.
DataOptions tokenizer_for(const Settings& settings, const GenerateOptions& options) {
  DataOptions data = settings.data;
  if (options.given.count("--tokenizer")) data.tokenizer = options.data.tokenizer;
  if (!data.tokenizer.empty() && !options.data.source.empty())
    throw ConfigError("--data: the tokens are those of the tokenizer " + data.tokenizer +
                      "; leave the flag out");
  settle_tokenizer(data, &settings);
  return data;
}

/// Words: Characters or TokenizedText.
template <class Words>
void speak(const TrainedModel& trained, const GenerateOptions& options, Words words) {
  const int64_t known = trained.settings.model.vocabulary;
  const std::vector<int32_t> prompt = words.encode(options.prompt);
  for (int32_t token : prompt)
    if (token >= known)
      throw ConfigError("--prompt: expected tokens below " + std::to_string(known) + ", got " +
                        std::to_string(token));
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
  const auto trained = load_model(options.checkpoint, options.model, options.place);
  const DataOptions data = tokenizer_for(trained->settings, options);
  if (data.tokenizer.empty())
    speak(*trained, options, characters_for(trained->settings, options));
  else
    speak(*trained, options, TokenizedText(models::load_tokenizer(data.tokenizer)));
  return 0;
}

}  // namespace zg::tools
