#include <cstdio>
#include <variant>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/models/data/chat_template.h"
#include "zerograd/models/gguf/gguf.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

struct ExportOptions {
  std::string checkpoint;
  // One of these three is given.
  std::string hugging_face;                        ///< path of a folder
  std::string gguf;                                ///< path of a file
  std::string peft;                                ///< path of a folder for adapters
  models::GGUFType dtype = models::GGUFType::f32;  ///< dtype of the output's matrices
  bool merge = false;                              ///< add the adapters to the weights
  AdapterPaths adapters;
  std::string tokenizer;  ///< empty: the tokenizer stored in the checkpoint
  TrainOptions train;     ///< flags of train: the model
};

bool parse(const std::vector<std::string>& arguments, ExportOptions& options) {
  const CommandLine line = {
      .usage =
          "zerograd export CHECKPOINT --hf DIR [--dtype f32|f16|bf16] [--merge]\n"
          "       zerograd export CHECKPOINT --gguf FILE [--dtype f32|f16|bf16|q8_0] [--merge]\n"
          "       zerograd export CHECKPOINT --peft DIR",
      .summary =
          "Writes a model as transformers loads it with "
          "AutoModelForCausalLM.from_pretrained(DIR):\n"
          "config.json, model.safetensors with the masters in f32, and the tokenizer that it was\n"
          "trained with. Other files in DIR stay.\n"
          "Or writes a Llama, Mistral, Qwen2, Qwen3 or SmolLM2 as one file for llama.cpp.\n"
          "Or writes adapters as PEFT loads them with PeftModel.from_pretrained(base, DIR).",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"to",
                  {path_flag({"--hf"}, "DIR", options.hugging_face, PathUse::writes,
                             "the folder to write"),
                   path_flag({"--gguf"}, "FILE", options.gguf, PathUse::writes,
                             "the GGUF file to write"),
                   choice_flag({"--dtype"}, options.dtype, {"f32", "f16", "bf16", "q8_0"},
                               "dtype of the folder's tensors or GGUF matrices; q8_0: GGUF only"),
                   switch_flag({"--merge"}, options.merge,
                               "add the adapters to the weights that they were trained for"),
                   path_flag({"--peft"}, "DIR", options.peft, PathUse::writes,
                             "write adapter_config.json and adapter_model.safetensors there")}},
                 {"model (the checkpoint's own unless given)",
                  {flag_named("--model-type", options.train), flag_named("--n-head", options.train),
                   tokenizer_flag({"--tokenizer"}, "PATH", options.tokenizer,
                                  "new path of the run's tokenizer, or one for a weights file;\n"
                                  "none: write a GGUF file without a tokenizer"),
                   adapter_flag(options.adapters), base_flag(options.adapters)}}},
      .notes =
          "A model that reads characters gets no tokenizer: transformers and llama.cpp have none\n"
          "for them. A folder of --tokenizer also has the chat template of a GGUF file.\n\n"
          "  zerograd export checkpoints --hf gpt2-mine\n"
          "  zerograd export llama-mine --hf llama-half --dtype bf16\n"
          "  zerograd train --from-hf gpt2-mine --data tokens.bin\n"
          "  zerograd export llama-mine --gguf llama-mine.gguf --dtype q8_0\n"
          "  zerograd export runs/adapters --peft adapters\n"
          "  zerograd export runs/adapters --merge --hf merged"};
  if (!parse(line, arguments, options.train.given)) return false;
  const int64_t targets =
      !options.hugging_face.empty() + !options.gguf.empty() + !options.peft.empty();
  if (targets != 1)
    throw ConfigError(
        targets == 0 ? "--hf: expected a folder to write, got nothing; try --hf DIR, --gguf FILE "
                       "or --peft DIR"
                     : "export: expected one of --hf, --gguf and --peft, got more; export twice");
  if (!options.peft.empty() && options.train.has("--dtype"))
    throw ConfigError("--dtype: adapters are written in f32; leave the flag out of --peft");
  if (options.gguf.empty() && options.dtype == models::GGUFType::q8_0)
    throw ConfigError("--dtype: expected f32, f16 or bf16 for --hf, got q8_0; try --gguf FILE");
  if (options.merge && !options.peft.empty())
    throw ConfigError("--merge: expected --hf DIR or --gguf FILE with it, got --peft");
  check_model(options.train);
  return true;
}

// A model with adapters is written as adapters or merged; a whole model is neither.
void check_form(const ExportOptions& options, const RunSpec& settings) {
  const bool has_adapters = settings.lora.rank > 0;
  if (has_adapters && options.peft.empty() && !options.merge)
    raise<ConfigError>(
        "{}: {} has adapters of {}; expected --merge with it, which adds them to its weights, or "
        "--peft DIR, which writes only the adapters",
        options.gguf.empty() ? "--hf" : "--gguf", options.checkpoint, settings.base.path);
  if (!has_adapters && (options.merge || !options.peft.empty()))
    raise<ConfigError>(
        "{}: {} has no adapters; expected a checkpoint of train --lora, or --adapter DIR; leave "
        "the flag out",
        options.merge ? "--merge" : "--peft", options.checkpoint);
}

int export_adapters(const SavedModel& saved_model, const std::string& directory) {
  const RunSpec& settings = saved_model.settings;
  const std::string hash =
      models::export_peft(adapter_weights(saved_model), settings.model,
                          {.lora = lora_of(settings.lora), .base = settings.base.path}, directory);
  const std::string& from = saved_model.adapter.empty() ? saved_model.path : saved_model.adapter;
  print_line(stdout, "saved {} of {}\nadapter_hash {}", directory, from, hash);
  return 0;
}

/// The model to write. With --merge it has all positions of the base, also if the adapters were
/// trained only on the first ones.
models::GPTConfig model_to_write(const ExportOptions& options, const RunSpec& settings) {
  models::GPTConfig model = settings.model;
  if (options.merge && is_hf_folder(settings.base.path))
    model.block_size = open_hf_folder(settings.base.path).model().config.block_size;
  return model;
}

/// The weights of model_to_write(): with --merge those of the base and the adapters.
WeightSource weights_to_write(const ExportOptions& options, const SavedModel& saved_model) {
  RunSpec settings = saved_model.settings;
  if (!options.merge) return weights_of(saved_model);
  WeightSource base = checked_base(settings);
  if (const models::GPTConfig model = model_to_write(options, settings); model != settings.model) {
    settings.model = model;
    base = base_weights(settings);
  }
  return models::merged(base, adapter_weights(saved_model), lora_of(settings.lora));
}

/// The tokenizer.json at a path. If it is a folder, tokens of its other files are added.
models::GGUFTokenizer gguf_tokenizer_at(const std::string& path) {
  if (!is_directory(path)) return {.json = read_text(path), .path = path};
  models::GGUFTokenizer tokenizer = models::gguf_tokenizer(path);
  try {
    if (models::has_tokenizer(path))
      tokenizer.json = models::tokenizer_json(models::load_tokenizer(path));
  } catch (const Unsupported&) {  // llama.cpp may have it, and refuses it otherwise
  }
  return tokenizer;
}

/// The chat template of the tokenizer. If the tokenizer has none, as in an older checkpoint: that
/// of the folder of --tokenizer, of the exported folder, or of the folder of the adapters' base.
std::string template_to_write(const models::Tokenizer& tokenizer, const ExportOptions& options,
                              const SavedModel& saved_model) {
  if (std::string text = models::chat_template_of(tokenizer); !text.empty()) return text;
  for (const std::string& folder :
       {options.tokenizer, saved_model.path, saved_model.settings.base.path})
    if (is_directory(folder) && (folder == options.tokenizer || is_hf_folder(folder)))
      if (std::string text = models::folder_chat_template(folder).text; !text.empty()) return text;
  return "";
}

/// The tokenizer of a GGUF file: that of --tokenizer, of the exported folder, or the copy in the
/// checkpoint.
models::GGUFTokenizer gguf_tokenizer_of(const ExportOptions& options, const SavedModel& saved_model,
                                        models::SpecialTokens& tokens) {
  const bool named = !options.tokenizer.empty();
  if (options.tokenizer == "none") return {};
  if (is_hf_folder(saved_model.path))
    return gguf_tokenizer_at(named ? options.tokenizer : saved_model.path);
  DataOptions data = saved_model.settings.data;
  if (named) data.tokenizer = options.tokenizer;
  const auto tokenizer = resolve_tokenizer(data, &saved_model, named);
  if (!tokenizer) return {};
  if (tokens == models::SpecialTokens()) tokens = special_tokens_of(*tokenizer);
  if (named) return gguf_tokenizer_at(options.tokenizer);
  return {.json = models::tokenizer_json(*tokenizer),
          .path = "tokenizer of " + saved_model.path,
          .chat_template = template_to_write(*tokenizer, options, saved_model)};
}

models::GGUFResult write_gguf(const WeightSource& weights, const models::HFModel& model,
                              const ExportOptions& options,
                              const models::GGUFTokenizer& tokenizer) {
  try {
    return models::save_gguf(weights, model, options.gguf,
                             {.type = options.dtype, .tokenizer = tokenizer});
  } catch (const Unsupported& error) {
    const std::string message = error.what();
    raise<Unsupported>("{}{}", message,
                       message.ends_with("leave the tokenizer out") ? ": --tokenizer none" : "");
  }
}

/// Returns the hash of the parameters, as export_folder() does.
std::string export_gguf(const ExportOptions& options, const SavedModel& saved_model) {
  const RunSpec& settings = saved_model.settings;
  if (!settings.seq2seq.config.empty())
    raise<Unsupported>(
        "--gguf: {} has an encoder-decoder; expected a Llama, Mistral, Qwen2 or Qwen3; try --hf "
        "DIR",
        saved_model.path);
  models::validate(settings.model);
  models::SpecialTokens tokens = settings.special_tokens;
  const models::GGUFTokenizer tokenizer = gguf_tokenizer_of(options, saved_model, tokens);
  const models::GGUFResult result = write_gguf(weights_to_write(options, saved_model),
                                               {settings.model, tokens}, options, tokenizer);
  for (const std::string& note : result.notes) print_line(stderr, "note: {}", note);
  return result.hash;
}

std::string export_folder(const ExportOptions& options, const SavedModel& saved_model) {
  const RunSpec& settings = saved_model.settings;
  const bool is_decoder = settings.seq2seq.config.empty();
  const models::GPTConfig model = model_to_write(options, settings);
  if (is_decoder) models::validate(model);
  DataOptions data = settings.data;
  const bool named = !options.tokenizer.empty();
  if (named) data.tokenizer = options.tokenizer;
  const auto tokenizer = resolve_tokenizer(data, &saved_model, named);
  models::SpecialTokens tokens = settings.special_tokens;
  if (tokenizer && tokens == models::SpecialTokens()) tokens = special_tokens_of(*tokenizer);
  if (const std::string dropouts = is_decoder && is_hf_folder(options.checkpoint)
                                       ? open_hf_folder(saved_model.path).model().dropouts
                                       : std::string();
      !dropouts.empty())
    print_line(stderr, "note: {}: {} differ; the first is written for all", saved_model.path,
               dropouts);
  if (!tokenizer && models::has_tokenizer(options.hugging_face))
    print_line(stderr, "note: the tokenizer in {} stays; the model does not say which one it has",
               options.hugging_face);
  std::optional<models::TextTemplate> around;  // absent: as the tokenizer has it
  std::variant<models::HFModel, models::HFSeq2Seq> written =
      models::HFModel{model, tokens, settings.generation_config};
  if (!is_decoder) {
    written = seq2seq_model(settings.seq2seq);
    const models::Seq2SeqConfig& config = std::get<models::HFSeq2Seq>(written).config;
    tokens = {.bos = config.tokens.bos, .pad = config.tokens.pad, .eos = config.tokens.eos};
    around = template_of(config);
  }
  const auto add_files = [&](FileSet& files) {
    if (!tokenizer) return;
    models::add_tokenizer(*tokenizer, files, "", around);
    write_text(
        files.add("tokenizer_config.json"),
        models::hf_tokenizer_config_json(*tokenizer, tokens, models::longest_context(model)));
    if (const std::string text = template_to_write(*tokenizer, options, saved_model); !text.empty())
      write_text(files.add("chat_template.jinja"), text);
  };
  const DType dtype = options.dtype == models::GGUFType::bf16  ? DType::bf16
                      : options.dtype == models::GGUFType::f16 ? DType::f16
                                                               : DType::f32;
  return std::visit(
      [&](const auto& hf) {
        return models::export_hugging_face(weights_to_write(options, saved_model), hf,
                                           options.hugging_face, add_files, dtype);
      },
      written);
}

}  // namespace

int export_weights(const std::vector<std::string>& arguments) {
  ExportOptions options;
  if (!parse(arguments, options)) return 0;
  check_model_flags(options.train.given, options.checkpoint);
  const bool to_gguf = !options.gguf.empty(), to_peft = !options.peft.empty();
  const std::string& path = to_gguf ? options.gguf : to_peft ? options.peft : options.hugging_face;
  check_not_in_checkpoint(to_gguf ? path : path + "/config.json", "export");
  const SavedModel saved_model =
      open_saved_model(options.checkpoint, options.train, options.adapters);
  check_form(options, saved_model.settings);
  check_output(saved_model.settings, to_gguf ? "--gguf" : to_peft ? "--peft" : "--hf", path);
  if (to_peft) return export_adapters(saved_model, path);
  const std::string hash =
      to_gguf ? export_gguf(options, saved_model) : export_folder(options, saved_model);
  print_line(stdout, "saved {} of {}\nparam_hash {}", path, saved_model.path, hash);
  return 0;
}

}  // namespace zg::tools
