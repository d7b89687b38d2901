#include "zerograd/models/seq2seq/seq2seq_config.h"

#include <cmath>

#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

Seq2SeqConfig blenderbot(int64_t width, int64_t decoder_layers) {
  Seq2SeqConfig config = Seq2SeqConfig::of(Seq2SeqFamily::blenderbot);
  config.width = width;
  config.encoder_layers = 2;
  config.decoder_layers = decoder_layers;
  config.encoder_heads = config.decoder_heads = 32;
  config.encoder_hidden = config.decoder_hidden = 4 * width;
  config.vocabulary = 8008;
  config.positions = 128;
  config.scaled_embedding = true;
  return config;
}

Seq2SeqConfig bart(int64_t width, int64_t layers, int64_t heads) {
  Seq2SeqConfig config = Seq2SeqConfig::of(Seq2SeqFamily::bart);
  config.width = width;
  config.encoder_layers = config.decoder_layers = layers;
  config.encoder_heads = config.decoder_heads = heads;
  config.encoder_hidden = config.decoder_hidden = 4 * width;
  config.vocabulary = 50265;
  config.positions = 1024;
  config.attention_dropout = config.activation_dropout = 0.1f;
  return config;
}

void require(bool holds, const char* field, const std::string& expected, const std::string& got) {
  if (!holds) raise<ConfigError>("seq2seq: {}: expected {}, got {}", field, expected, got);
}

}  // namespace

const char* name_of(Seq2SeqFamily family) {
  return family == Seq2SeqFamily::bart ? "bart" : "blenderbot";
}

Seq2SeqConfig Seq2SeqConfig::of(Seq2SeqFamily family) {
  Seq2SeqConfig config{.family = family};
  if (family == Seq2SeqFamily::blenderbot) {
    config.tokens = {.pad = 0, .decoder_start = 1, .bos = 1, .eos = {2}, .forced_eos = {2}};
    return config;
  }
  config.position_offset = 2;
  config.pre_norm = false;
  config.embedding_norm = true;
  config.tokens = {.pad = 1, .decoder_start = 2, .bos = 0, .eos = {2}, .forced_eos = {2}};
  return config;
}

const std::vector<std::string>& Seq2SeqConfig::preset_names() {
  static const std::vector<std::string> names = {"blenderbot-400m", "blenderbot-3b", "bart-base",
                                                 "bart-large"};
  return names;
}

Seq2SeqConfig Seq2SeqConfig::preset(const std::string& name) {
  if (name == "blenderbot-400m") return blenderbot(1280, 12);
  if (name == "blenderbot-3b") return blenderbot(2560, 24);
  if (name == "bart-base") return bart(768, 6, 12);
  if (name == "bart-large") return bart(1024, 12, 16);
  raise<ConfigError>("seq2seq: model type: expected one of {}, got '{}'",
                     join(preset_names(), ", "), name);
}

void validate(const Seq2SeqConfig& config) {
  const auto within = [](const char* field, int64_t n, int64_t least, int64_t most) {
    require(n >= least && n <= most, field, fmt::format("{} to {}", least, most),
            std::to_string(n));
  };
  within("width", config.width, 1, max_width);
  within("encoder_layers", config.encoder_layers, 1, max_layers);
  within("decoder_layers", config.decoder_layers, 1, max_layers);
  within("vocabulary", config.vocabulary, 1, max_rows);
  within("positions", config.positions, 1, max_rows);
  within("position_offset", config.position_offset, 0, max_rows);
  within("encoder_hidden", config.encoder_hidden, 0, max_width);
  within("decoder_hidden", config.decoder_hidden, 0, max_width);
  const auto heads = [&](const char* field, int64_t n) {
    require(n > 0 && config.width % n == 0, field,
            fmt::format("a divisor of the width {}", config.width), std::to_string(n));
  };
  heads("encoder_heads", config.encoder_heads);
  heads("decoder_heads", config.decoder_heads);
  require(!nn::is_gated(config.mlp), "mlp", "gelu_erf or gelu_tanh", name_of(config.mlp));
  const auto probability = [](const char* field, float p) {
    require(p >= 0.0f && p < 1.0f, field, "a number in [0, 1)", std::to_string(p));
  };
  probability("dropout", config.dropout);
  probability("attention_dropout", config.attention_dropout);
  probability("activation_dropout", config.activation_dropout);
  require(std::isfinite(config.stddev) && config.stddev >= 0.0f, "stddev", "a number from 0",
          std::to_string(config.stddev));
  const auto token = [&](const char* field, int32_t id) {
    require(id >= 0 && id < config.vocabulary, field,
            fmt::format("an id from 0 to {}", config.vocabulary - 1), std::to_string(id));
  };
  const Seq2SeqTokens& tokens = config.tokens;
  token("tokens.pad", tokens.pad);
  token("tokens.decoder_start", tokens.decoder_start);
  if (tokens.bos) token("tokens.bos", *tokens.bos);
  if (tokens.forced_bos) token("tokens.forced_bos", *tokens.forced_bos);
  for (const int32_t id : tokens.eos) token("tokens.eos", id);
  for (const int32_t id : tokens.forced_eos) token("tokens.forced_eos", id);
}

}  // namespace zg::models
