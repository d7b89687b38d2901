#include <cstdio>
#include <filesystem>

#include "tools/commands/checkpoint_options.h"
#include "tools/commands/subcommands.h"
#include "tools/options/run_checks.h"
#include "tools/options/seq2seq_flags.h"
#include "tools/run/checkpoints.h"
#include "tools/run/pairs.h"
#include "tools/run/setup.h"
#include "tools/run/tokenizers.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

int export_weights(const std::vector<std::string>& arguments) {
  ExportOptions options;
  if (!parse(arguments, options)) return 0;
  check_model_flags(options.given, options.checkpoint);
  check_not_in_checkpoint(options.hugging_face + "/config.json", "export");
  std::error_code ignored;  // two paths that cannot be compared are treated as different
  const bool from_hf = is_hf_folder(options.checkpoint);
  if (from_hf && std::filesystem::equivalent(options.checkpoint, options.hugging_face, ignored))
    throw ConfigError(fmt::format("--hf: {} is the folder to read; expected another one to write",
                                  options.hugging_face));
  const SavedModel saved_model = open_saved_model(options.checkpoint, options.model);
  const Settings& settings = saved_model.settings;
  if (settings.seq2seq.config.empty()) models::validate(settings.model);
  DataOptions data = settings.data;
  const bool named = !options.tokenizer.empty();
  if (named) data.tokenizer = options.tokenizer;
  const auto tokenizer = resolve_tokenizer(data, &saved_model, named, around_text(settings));
  models::SpecialTokens tokens = settings.special_tokens;
  if (tokenizer && tokens == models::SpecialTokens()) tokens = special_tokens_of(*tokenizer);
  if (const std::string dropouts = from_hf && settings.seq2seq.config.empty()
                                       ? open_hf_folder(saved_model.path).model().dropouts
                                       : std::string();
      !dropouts.empty())
    std::fprintf(stderr, "note: %s: %s differ; the first is written for all\n",
                 saved_model.path.c_str(), dropouts.c_str());
  if (!tokenizer && models::has_tokenizer(options.hugging_face))
    std::fprintf(stderr,
                 "note: the tokenizer in %s stays; the model does not say which one it has\n",
                 options.hugging_face.c_str());
  models::TextTemplate around;
  std::optional<models::HFSeq2Seq> seq2seq;
  if (!settings.seq2seq.config.empty()) {
    seq2seq = seq2seq_model(settings.seq2seq);
    const models::Seq2SeqTokens& own = seq2seq->config.tokens;
    tokens = {.bos = own.bos, .pad = own.pad, .eos = own.eos};
    around = template_of(seq2seq->config);
  }
  const auto add_files = [&](FileSet& files) {
    models::add_tokenizer(*tokenizer, files, "", around);
    write_text(files.add("tokenizer_config.json"),
               models::hf_tokenizer_config_json(*tokenizer, tokens, settings.model.block_size));
  };
  const auto add = tokenizer ? std::function<void(FileSet&)>(add_files) : nullptr;
  const WeightSource weights = weights_of(saved_model);
  const std::string hash =
      seq2seq ? models::export_hugging_face(weights, *seq2seq, options.hugging_face, add)
              : models::export_hugging_face(weights, {settings.model, tokens}, options.hugging_face,
                                            add);
  std::printf("saved %s of %s\nparam_hash %s\n", options.hugging_face.c_str(),
              saved_model.path.c_str(), hash.c_str());
  return 0;
}

}  // namespace zg::tools
