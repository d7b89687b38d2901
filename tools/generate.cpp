#include "models/generate.h"

#include <cstdio>

#include "runtime/error.h"
#include "tools/characters.h"
#include "tools/effects.h"
#include "tools/setup.h"
#include "tools/subcommands.h"

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

}  // namespace

int generate(const std::vector<std::string>& arguments) {
  GenerateOptions options;
  if (!parse(arguments, options)) return 0;
  check_model_flags(options.given, options.checkpoint);
  const auto trained = load_model(options.checkpoint, options.model, options.place);
  const Characters characters = characters_for(trained->settings, options);
  const std::vector<int32_t> prompt = characters.encode(options.prompt);
  for (int32_t token : prompt)
    if (token >= trained->settings.model.vocabulary)
      throw ConfigError("--prompt: expected tokens below " +
                        std::to_string(trained->settings.model.vocabulary) + ", got " +
                        std::to_string(token));
  if (prompt.empty()) throw ConfigError("--prompt: expected at least one token, got none");
  for (int32_t token : prompt) write(characters.decode(token));
  models::generate(
      *trained->model, [&] { return trained->engine->inference_tape(); }, {prompt}, options.length,
      options.sampling, [&](int32_t token) { write(characters.decode(token)); });
  write("\n");
  return 0;
}

}  // namespace zg::tools
