#include "tools/options/seq2seq_flags.h"

#include <algorithm>

#include "zerograd/models/seq2seq/seq2seq_generate.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using models::Seq2SeqConfig;
using models::Seq2SeqFamily;

constexpr const char* pair_flags[] = {"--source-prefix",
                                      "--max-source-length",
                                      "--max-target-length",
                                      "--pad-to-max-length",
                                      "--label-smoothing",
                                      "--n-train",
                                      "--n-val"};

void check_decoder(const TrainOptions& options) {
  for (const char* flag : pair_flags) {
    if (!options.given.count(flag)) continue;
    const std::string name = flag;
    const char* instead = name == "--n-train" ? "; a shorter run has --steps N or --train-samples N"
                          : name == "--n-val"
                              ? "; a smaller validation has --eval-batches N or --val-fraction X"
                              : "";
    throw ConfigError(fmt::format(
        "{}: expected an encoder-decoder model, whose data is pairs, such as --model-type "
        "blenderbot-400m or a folder of one with --from-hf; got a model with a decoder alone, "
        "which reads one text{}",
        flag, instead));
  }
}

void check_axes(const TrainOptions& options) {
  const Axes& axes = options.axes;
  const std::pair<const char*, bool> flags[] = {{"--sequence-parallel", axes.sequence_parallel},
                                                {"--tensor-parallel", axes.tensor > 1},
                                                {"--pipeline-parallel", axes.pipeline > 1}};
  for (const auto& [flag, is_used] : flags)
    if (is_used)
      throw Unsupported(fmt::format(
          "{}: ranks share the data of an encoder-decoder model, not its layers; leave the flag "
          "out and try --zero-stage 3",
          flag));
}

}  // namespace

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
  return std::find(names.begin(), names.end(), model_type) != names.end();
}

std::optional<Seq2SeqFamily> seq2seq_family(const std::string& model_type) {
  for (const Seq2SeqFamily family : {Seq2SeqFamily::blenderbot, Seq2SeqFamily::bart})
    if (model_type == name_of(family)) return family;
  return std::nullopt;
}

bool is_seq2seq(const TrainOptions& options) {
  return !options.seq2seq.config.empty() || is_seq2seq_name(options.model.model_type);
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
  if (!is_seq2seq(options)) return check_decoder(options);
  const auto given = [&](const char* flag) { return options.given.count(flag) > 0; };
  check_axes(options);
  for (const char* flag : {"--tied", "--untied", "--position-embedding", "--num-query-groups",
                           "--kv-channels", "--ffn-hidden-size", "--sliding-window",
                           "--rotary-base", "--norm-epsilon", "--max-position-embeddings"})
    if (given(flag))
      throw Unsupported(fmt::format(
          "{}: encoder-decoder models have no such setting here; leave the flag out", flag));
  if (given("--init"))
    throw Unsupported(
        "--init: an encoder-decoder model starts from --from-hf or --resume; try export --hf and "
        "--from-hf");
  if (origin.empty()) return;
  for (const char* flag : {"--model-type", "--n-layer", "--n-head", "--n-embd", "--vocab-size"})
    if (given(flag))
      throw ConfigError(
          fmt::format("{}: {} says itself what its model is; leave the flag out", flag, origin));
  if (options.resume.empty()) return;
  for (const char* flag : {"--block-size", "--dropout"})
    if (given(flag))
      throw ConfigError(
          fmt::format("{}: {} says itself what its model is; leave the flag out", flag, origin));
}

models::Seq2SeqConfig fresh_seq2seq(const ModelOptions& model, int64_t tokenizer_vocabulary,
                                    const std::optional<models::Seq2SeqTokens>& tokens) {
  constexpr int64_t default_positions = 128;
  Seq2SeqConfig config;
  if (const std::optional<Seq2SeqFamily> family = seq2seq_family(model.model_type)) {
    if (!model.layers || !model.heads || !model.width)
      throw ConfigError(fmt::format(
          "--model-type {}: expected --n-layer, --n-head and --n-embd with it; or try "
          "a name, {}",
          model.model_type, *family == Seq2SeqFamily::bart ? "bart-base" : "blenderbot-400m"));
    config = Seq2SeqConfig::of(*family);
    config.encoder_layers = config.decoder_layers = model.layers;
    config.encoder_heads = config.decoder_heads = model.heads;
    config.width = model.width;
    config.encoder_hidden = config.decoder_hidden = 4 * model.width;
    config.positions = default_positions;
    config.vocabulary = tokenizer_vocabulary;
  } else {
    config = Seq2SeqConfig::preset(model.model_type);
  }
  if (model.vocabulary > 0) config.vocabulary = model.vocabulary;
  if (config.vocabulary == 0)
    throw ConfigError("--vocab-size: expected it, or --tokenizer, with --model-type " +
                      model.model_type + "; got neither");
  if (config.vocabulary < tokenizer_vocabulary)
    throw ConfigError(
        fmt::format("--vocab-size: expected at least {}, the vocabulary size of the "
                    "tokenizer, got {}",
                    tokenizer_vocabulary, config.vocabulary));
  if (model.block_size > 0) config.positions = model.block_size;
  if (model.dropout >= 0.0) config.dropout = static_cast<float>(model.dropout);
  if (tokens) config.tokens = *tokens;
  models::validate(config);
  return config;
}

}  // namespace zg::tools
