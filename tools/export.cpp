#include <cstdio>

#include "models/tokenizer_files.h"
#include "runtime/error.h"
#include "runtime/file_io.h"
#include "tools/checkpoint_options.h"
#include "tools/checkpoints.h"
#include "tools/effects.h"
#include "tools/hugging_face.h"
#include "tools/setup.h"
#include "tools/subcommands.h"
#include "tools/tokenizers.h"

namespace zg::tools {

int export_weights(const std::vector<std::string>& arguments) {
  ExportOptions options;
  if (!parse(arguments, options)) return 0;
  check_model_flags(options.given, options.checkpoint);
  check_outside(options.hugging_face + "/config.json", "export");
  const bool is_file = is_regular_file(options.checkpoint);
  const std::string source = is_file ? options.checkpoint : usable_checkpoint(options.checkpoint);
  const Settings settings = settings_of(source, options.model);
  models::validate(settings.model);
  DataOptions data = settings.data;
  if (!options.tokenizer.empty()) data.tokenizer = options.tokenizer;
  settle_tokenizer(data, &settings);
  const std::string hash =
      export_hf(zero::weights_of(source), settings.model, options.hugging_face);
  if (!data.tokenizer.empty())
    models::save_tokenizer(models::load_tokenizer(data.tokenizer), options.hugging_face);
  std::printf("saved %s of %s\nparam_hash %s\n", options.hugging_face.c_str(), source.c_str(),
              hash.c_str());
  return 0;
}

}  // namespace zg::tools
