#include "tools/options/flags.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/models/seq2seq/seq2seq_generate.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::tools {
namespace {

using models::Seq2SeqConfig;
using models::Seq2SeqFamily;

constexpr int64_t default_positions = 128;  // of a model that is given by a family and sizes

}  // namespace

void refuse_pair_flags(const Given& given) {
  const auto refuse = [&](std::vector<const char*> flags, const char* instead) {
    refuse_flags(given, flags,
                 fmt::format("expected an encoder-decoder model, whose data is pairs, such as "
                             "--model-type blenderbot-400m or a folder of one with --from-hf; got "
                             "a decoder-only model, which reads one text{}",
                             instead));
  };
  refuse({"--source-prefix", "--max-source-length", "--max-target-length", "--pad-to-max-length",
          "--label-smoothing"},
         "");
  refuse({"--n-train"}, "; a shorter run has --steps N or --train-samples N");
  refuse({"--n-val"}, "; a smaller validation has --eval-batches N or --val-fraction X");
}

const std::vector<std::string>& seq2seq_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = Seq2SeqConfig::preset_names();
    for (const Seq2SeqFamily family : {Seq2SeqFamily::blenderbot, Seq2SeqFamily::bart})
      all.emplace_back(name_of(family));
    return all;
  }();
  return names;
}

bool is_seq2seq_name(const std::string& model_type) {
  const std::vector<std::string>& names = seq2seq_names();
  return std::ranges::find(names, model_type) != names.end();
}

std::optional<Seq2SeqFamily> seq2seq_family(const std::string& model_type) {
  for (const Seq2SeqFamily family : {Seq2SeqFamily::blenderbot, Seq2SeqFamily::bart})
    if (model_type == name_of(family)) return family;
  return std::nullopt;
}

bool is_seq2seq(const TrainOptions& options) {
  return !options.seq2seq.config.empty() || is_seq2seq_name(options.model_type);
}

models::HFSeq2Seq seq2seq_model(const Seq2SeqOptions& options) {
  models::HFSeq2Seq model = models::hf_seq2seq(options.config, "model.seq2seq");
  if (options.generation.empty())
    model.generation = models::beam_options_of(model.config);
  else
    models::read_hf_generation(options.generation, "model.generation", model);
  return model;
}

void check_seq2seq_flags(const TrainOptions& options, const std::string& origin) {
  if (!is_seq2seq(options)) return refuse_pair_flags(options.given);
  if (options.axes.pipeline > 1)
    throw Unsupported(
        "--pipeline-parallel: ranks share the data and the heads of an encoder-decoder model, not "
        "its layers; leave the flag out and try --tensor-parallel N or --zero-stage 3");
  refuse_flags(options.given, {"--val-data", "--chat-format", "--pack"},
               "expected a decoder, which learns conversations; an encoder-decoder model learns "
               "pairs; leave the flag out");
  refuse_flags<Unsupported>(options.given,
                            {"--tied", "--untied", "--position-embedding", "--num-query-groups",
                             "--kv-channels", "--ffn-hidden-size", "--sliding-window",
                             "--rotary-base", "--norm-epsilon", "--max-position-embeddings"},
                            "encoder-decoder models have no such setting here; leave the flag out");
  if (origin.empty()) return;
  refuse_flags(options.given, {"--model-type", "--n-layer", "--n-head", "--n-embd", "--vocab-size"},
               origin + " defines the model; leave the flag out");
  if (options.resume.empty() || !options.has("--block-size")) return;
  const int64_t positions = seq2seq_model(options.seq2seq).config.positions;
  if (options.model.block_size != positions)
    raise<ConfigError>("--block-size: expected the {} positions of {}, got {}; leave the flag out",
                       positions, origin, options.model.block_size);
}

void set_dropout(Seq2SeqConfig& config, double dropout) {
  config.dropout = config.attention_dropout = static_cast<float>(dropout);
  if (dropout == 0.0) config.activation_dropout = 0.0f;
}

void set_dropout(Seq2SeqOptions& options, double dropout) {
  Seq2SeqConfig config = models::hf_seq2seq(options.config, "model.seq2seq").config;
  set_dropout(config, dropout);
  options.config = models::hf_json(config);
}

models::Seq2SeqConfig fresh_seq2seq(const TrainOptions& options, int64_t tokenizer_vocabulary,
                                    const std::optional<models::Seq2SeqTokens>& tokens) {
  const models::GPTConfig& model = options.model;
  Seq2SeqConfig config;
  if (const std::optional<Seq2SeqFamily> family = seq2seq_family(options.model_type)) {
    if (!options.is_set("--n-layer") || !options.is_set("--n-head") || !options.is_set("--n-embd"))
      raise<ConfigError>(
          "--model-type {}: expected --n-layer, --n-head and --n-embd with it; or try a name, {}",
          options.model_type, *family == Seq2SeqFamily::bart ? "bart-base" : "blenderbot-400m");
    config = Seq2SeqConfig::of(*family);
    config.encoder_layers = config.decoder_layers = model.layers;
    config.encoder_heads = config.decoder_heads = model.heads;
    config.width = model.width;
    config.encoder_hidden = config.decoder_hidden = 4 * model.width;
    config.positions = default_positions;
    config.vocabulary = tokenizer_vocabulary;
  } else {
    config = Seq2SeqConfig::preset(options.model_type);
  }
  if (model.vocabulary > 0) config.vocabulary = model.vocabulary;
  if (config.vocabulary == 0)
    throw ConfigError("--vocab-size: expected it, or --tokenizer, with --model-type " +
                      options.model_type + "; got neither");
  if (config.vocabulary < tokenizer_vocabulary)
    raise<ConfigError>(
        "--vocab-size: expected at least {}, the vocabulary size of the tokenizer, got {}",
        tokenizer_vocabulary, config.vocabulary);
  if (model.block_size > 0) config.positions = model.block_size;
  if (options.is_set("--dropout")) set_dropout(config, model.dropout);
  if (tokens) config.tokens = *tokens;
  models::validate(config);
  return config;
}

std::string differing_keys(const std::string& there, const std::string& expected,
                           bool (*ignores)(const std::string& key)) {
  const auto own = parse_json_object(there, "config.json");
  const auto wanted = parse_json_object(expected, "config.json");
  std::vector<std::string> keys;
  for (const auto& [key, value] : wanted.items())
    if (const auto other = own.value(key, nlohmann::json());
        other != value && !(ignores && ignores(key)))
      keys.push_back(fmt::format("{} is {}, expected {}", key, other.dump(), value.dump()));
  return join(keys, "; ");
}

namespace {

/// The keys in which two models differ. Leaves out the keys that do not change what a model
/// computes from its weights, and those that repeat others.
std::string differences(const Seq2SeqConfig& there, const Seq2SeqConfig& here) {
  return differing_keys(models::hf_json(there), models::hf_json(here), [](const std::string& key) {
    return key.ends_with("dropout") || key.ends_with("token_id") || key == "init_std" ||
           key == "architectures" || key == "num_hidden_layers";
  });
}

/// The flags of a fresh run with this model; empty: no flags describe it.
std::string flags_of(const Seq2SeqConfig& config) {
  const auto found = [&](std::string flags, Seq2SeqConfig candidate) -> std::string {
    if (candidate.vocabulary != config.vocabulary)
      flags += fmt::format(" --vocab-size {}", config.vocabulary);
    if (candidate.positions != config.positions)
      flags += fmt::format(" --block-size {}", config.positions);
    candidate.vocabulary = config.vocabulary;
    candidate.positions = config.positions;
    candidate.tokens = config.tokens;
    return differences(candidate, config).empty() ? "--model-type " + flags : "";
  };
  for (const std::string& name : Seq2SeqConfig::preset_names())
    if (const std::string flags = found(name, Seq2SeqConfig::preset(name)); !flags.empty())
      return flags;
  Seq2SeqConfig candidate = Seq2SeqConfig::of(config.family);
  candidate.encoder_layers = candidate.decoder_layers = config.encoder_layers;
  candidate.encoder_heads = candidate.decoder_heads = config.encoder_heads;
  candidate.width = config.width;
  candidate.positions = default_positions;
  return found(fmt::format("{} --n-layer {} --n-head {} --n-embd {}", name_of(config.family),
                           config.encoder_layers, config.encoder_heads, config.width),
               candidate);
}

std::string text_of(const models::Seq2SeqTokens& tokens) {
  return fmt::format("pad {}, decoder_start {}, bos {}, eos {}", tokens.pad, tokens.decoder_start,
                     tokens.bos ? std::to_string(*tokens.bos) : "none",
                     tokens.eos.empty() ? "none" : std::to_string(tokens.eos.front()));
}

}  // namespace

void check_initial_seq2seq(const std::string& path, const Seq2SeqOptions& there,
                           const Seq2SeqOptions& run) {
  const char* const through_a_folder = "export --hf DIR and --from-hf DIR";
  if (there.config.empty())
    raise<FileError>(
        "--init: {} has a decoder-only model; expected this run's encoder-decoder model", path);
  const Seq2SeqConfig config = seq2seq_model(there).config;
  const std::string flags = flags_of(config);
  const std::string advice = flags.empty() ? through_a_folder : flags;
  if (run.config.empty())
    raise<FileError>(
        "--init: {} has an encoder-decoder model; expected this run's decoder-only model; try {}",
        path, advice);
  const Seq2SeqConfig own = seq2seq_model(run).config;
  const std::string keys = differences(config, own);
  if (!keys.empty())
    raise<FileError>("--init: {} has another model than this run: {}; try {}", path, keys, advice);
  const std::string tokens = text_of(config.tokens), own_tokens = text_of(own.tokens);
  if (tokens != own_tokens)
    raise<ConfigError>(
        "--init: the special tokens of {} are {}; the run's are {}; try the --tokenizer that it "
        "was trained with, or {}",
        path, tokens, own_tokens, through_a_folder);
}

}  // namespace zg::tools
