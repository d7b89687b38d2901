#include "zerograd/models/hugging_face/hf_seq2seq.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "zerograd/models/hugging_face/hf_keys.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::models {
namespace {

using nlohmann::json;

/// Values of transformers for keys that a config.json leaves out.
struct Seq2SeqDefaults {
  int64_t vocabulary, positions, width, hidden, heads, encoder_layers, decoder_layers;
};

Seq2SeqDefaults defaults_of(Seq2SeqFamily family) {
  if (family == Seq2SeqFamily::bart) return {50265, 1024, 1024, 4096, 16, 12, 12};
  return {8008, 128, 2560, 10240, 32, 2, 24};
}

/// An integer of 0 or more.
int64_t whole_number(const JsonNode& node, int64_t absent) {
  if (node.value.is_null()) return absent;
  if (!node.value.is_number_unsigned() ||
      node.value.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()})
    node.fail("a whole number from 0 on");
  return node.value.get<int64_t>();
}

std::optional<int64_t> optional_number(const JsonNode& node) {
  if (node.value.is_null()) return {};
  return whole_number(node, 0);
}

std::optional<int32_t> first_id(const JsonNode& theirs, const char* key,
                                std::optional<int32_t> absent) {
  const std::vector<int32_t> otherwise = absent ? std::vector{*absent} : std::vector<int32_t>();
  const std::vector<int32_t> ids = hf_ids(theirs, key, otherwise);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

Seq2SeqTokens tokens_of(const JsonNode& theirs, const Seq2SeqTokens& absent) {
  const auto required = [&](const char* key, int32_t otherwise) {
    const std::optional<int32_t> id = first_id(theirs, key, otherwise);
    if (!id) theirs.at(key).fail("the id of a token");
    return *id;
  };
  return {.pad = required("pad_token_id", absent.pad),
          .decoder_start = required("decoder_start_token_id", absent.decoder_start),
          .bos = first_id(theirs, "bos_token_id", absent.bos),
          .eos = hf_ids(theirs, "eos_token_id", absent.eos),
          .forced_bos = first_id(theirs, "forced_bos_token_id", absent.forced_bos),
          .forced_eos = hf_ids(theirs, "forced_eos_token_id", absent.forced_eos)};
}

int64_t encoder_hidden_of(const Seq2SeqConfig& config) {
  return config.encoder_hidden > 0 ? config.encoder_hidden : 4 * config.width;
}
int64_t decoder_hidden_of(const Seq2SeqConfig& config) {
  return config.decoder_hidden > 0 ? config.decoder_hidden : 4 * config.width;
}

HFMap<Seq2SeqConfig> map_of(Seq2SeqFamily family) {
  using C = Seq2SeqConfig;
  const Seq2SeqDefaults absent = defaults_of(family);
  return {
      {hf_row("width", &C::width, {"d_model"}, absent.width),
       hf_row("encoder_layers", &C::encoder_layers, {"encoder_layers"}, absent.encoder_layers),
       hf_row("decoder_layers", &C::decoder_layers, {"decoder_layers"}, absent.decoder_layers),
       hf_row("encoder_heads", &C::encoder_heads, {"encoder_attention_heads"}, absent.heads),
       hf_row("decoder_heads", &C::decoder_heads, {"decoder_attention_heads"}, absent.heads),
       hf_row("encoder_hidden", &C::encoder_hidden, {"encoder_ffn_dim"}, absent.hidden,
              encoder_hidden_of),
       hf_row("decoder_hidden", &C::decoder_hidden, {"decoder_ffn_dim"}, absent.hidden,
              decoder_hidden_of),
       hf_row("vocabulary", &C::vocabulary, {"vocab_size"}, absent.vocabulary),
       hf_row("positions", &C::positions, {"max_position_embeddings"}, absent.positions),
       hf_row(nullptr, &C::scaled_embedding, {"scale_embedding"}, false),
       hf_row("dropout", &C::dropout, {"dropout"}, 0.1f),
       hf_row("attention_dropout", &C::attention_dropout, {"attention_dropout"}, 0.0f),
       hf_row("activation_dropout", &C::activation_dropout, {"activation_dropout"}, 0.0f),
       hf_row("stddev", &C::stddev, {"init_std"}, 0.02f),
       hf_activation<C>("activation_function", nn::MlpKind::gelu_erf),
       {nullptr, "pad_token_id",
        [](const JsonNode& theirs, C& config) { config.tokens = tokens_of(theirs, config.tokens); },
        [](json& written, const C& config) {
          written["num_hidden_layers"] = config.encoder_layers;
          written["pad_token_id"] = config.tokens.pad;
          written["decoder_start_token_id"] = config.tokens.decoder_start;
          written["bos_token_id"] = hf_id(config.tokens.bos);
          written["eos_token_id"] = hf_ids(config.tokens.eos);
          written["forced_bos_token_id"] = hf_id(config.tokens.forced_bos);
          written["forced_eos_token_id"] = hf_ids(config.tokens.forced_eos);
        }}},
      {{"encoder_layerdrop", 0.0},
       {"decoder_layerdrop", 0.0},
       {"tie_word_embeddings", true},
       {"is_encoder_decoder", true}},
      {{"is_decoder", false}}};
}

Seq2SeqConfig read_config(const JsonNode& theirs) {
  const JsonNode type = theirs.at("model_type");
  if (type.value != "blenderbot" && type.value != "bart")
    type.refuse("blenderbot or bart here (HuggingFaceFolder reads decoders)");
  Seq2SeqConfig config =
      Seq2SeqConfig::of(type.value == "bart" ? Seq2SeqFamily::bart : Seq2SeqFamily::blenderbot);
  map_of(config.family).read(theirs, config);
  return config;
}

/// The keys that change the ids that transformers generates, and that BeamOptions cannot represent.
std::string note_on_generation(const JsonNode& theirs) {
  const bool samples = theirs.at("do_sample").flag(false);
  const bool searches = theirs.at("num_beams").count(1) > 1;
  std::vector<std::string> keys;
  for (const auto& [key, neutral] :
       std::initializer_list<std::pair<const char*, json>>{{"encoder_repetition_penalty", 1},
                                                           {"guidance_scale", 1},
                                                           {"num_beam_groups", 1},
                                                           {"diversity_penalty", 0},
                                                           {"penalty_alpha", 0},
                                                           {"typical_p", 1},
                                                           {"epsilon_cutoff", 0},
                                                           {"eta_cutoff", 0},
                                                           {"renormalize_logits", false},
                                                           {"remove_invalid_values", false}})
    if (const json& value = theirs.at(key).value; !value.is_null() && value != neutral)
      keys.emplace_back(key);
  for (const char* key :
       {"exponential_decay_length_penalty", "sequence_bias", "bad_words_ids", "stop_strings",
        "constraints", "force_words_ids", "top_h", "watermarking_config"})
    if (!theirs.at(key).value.empty()) keys.emplace_back(key);
  for (const char* key : {"temperature", "top_k", "top_p", "min_p"})
    if ((!samples || searches) && !theirs.at(key).value.is_null()) keys.emplace_back(key);
  if (samples && searches) keys.emplace_back("do_sample");
  return join(keys, ", ");
}

/// The sampling options, which apply if do_sample is true.
SamplingOptions sampling_of(const JsonNode& theirs) {
  return {.temperature = theirs.at("temperature").number(1.0),
          .top_k = whole_number(theirs.at("top_k"), 50),
          .top_p = theirs.at("top_p").number(1.0),
          .min_p = theirs.at("min_p").number(0.0)};
}

/// Reads the keys that control generation; `absent` has the values of absent token keys.
BeamOptions read_generation(const JsonNode& theirs, const BeamOptions& absent) {
  BeamOptions options;
  options.beams = theirs.at("num_beams").count(1);
  options.return_sequences = theirs.at("num_return_sequences").count(1);
  const std::optional<int32_t> start =
      first_id(theirs, "decoder_start_token_id", absent.start.front());
  options.start = start ? std::vector{*start} : absent.start;
  options.eos = hf_ids(theirs, "eos_token_id", absent.eos);
  options.pad = first_id(theirs, "pad_token_id", absent.pad);
  options.max_length = optional_number(theirs.at("max_length"));
  options.max_new_tokens = optional_number(theirs.at("max_new_tokens"));
  options.min_length = whole_number(theirs.at("min_length"), 0);
  options.min_new_tokens = optional_number(theirs.at("min_new_tokens"));
  options.length_penalty = theirs.at("length_penalty").number(1.0);
  if (const JsonNode early = theirs.at("early_stopping"); early.value == "never")
    options.early_stopping = EarlyStopping::never;
  else if (early.value.is_string())
    early.fail("true, false or \"never\"");
  else if (early.flag(false))
    options.early_stopping = EarlyStopping::yes;
  options.no_repeat_ngram_size = whole_number(theirs.at("no_repeat_ngram_size"), 0);
  options.encoder_no_repeat_ngram_size = whole_number(theirs.at("encoder_no_repeat_ngram_size"), 0);
  options.repetition_penalty = theirs.at("repetition_penalty").number(1.0);
  options.suppressed = hf_ids(theirs, "suppress_tokens", {});
  options.begin_suppressed = hf_ids(theirs, "begin_suppress_tokens", {});
  if (theirs.at("do_sample").flag(false) && options.beams == 1)
    options.sampling = sampling_of(theirs);
  options.forced_bos = first_id(theirs, "forced_bos_token_id", absent.forced_bos);
  options.forced_eos = hf_ids(theirs, "forced_eos_token_id", absent.forced_eos);
  return options;
}

BeamOptions tokens_of(const Seq2SeqConfig& config) {
  return {.start = {config.tokens.decoder_start},
          .eos = config.tokens.eos,
          .pad = config.tokens.pad,
          .forced_bos = config.tokens.forced_bos,
          .forced_eos = config.tokens.forced_eos};
}

/// Throws Unsupported, with the field, unless a config.json describes the model.
void require_same_model(Seq2SeqConfig ours, const Seq2SeqConfig& theirs) {
  const auto require = [&](const char* field, auto value, auto other) {
    if (value != other)
      raise<Unsupported>("export: {} is {}; expected {}: the {} of transformers has no other",
                         field, value, other, name_of(ours.family));
  };
  require("position_offset", ours.position_offset, theirs.position_offset);
  require("pre_norm", ours.pre_norm, theirs.pre_norm);
  require("embedding_norm", ours.embedding_norm, theirs.embedding_norm);
  ours.encoder_hidden = encoder_hidden_of(ours);
  ours.decoder_hidden = decoder_hidden_of(ours);
  if (ours != theirs)
    raise<Unsupported>("export: a {} with settings that transformers does not have",
                       name_of(ours.family));
}

void validate_in_file(const Seq2SeqConfig& config, const std::string& path) {
  try {
    validate(config);
  } catch (const ConfigError& error) {
    throw FileError(path + ": " + error.what());
  }
}

}  // namespace

bool is_hf_seq2seq(const std::string& text, const std::string& path) {
  const json config = parse_json_object(text, path);
  const auto type = config.find("model_type");
  return type != config.end() && (*type == "blenderbot" || *type == "bart");
}

HFSeq2Seq hf_seq2seq(const std::string& text, const std::string& path) {
  const json parsed = parse_json_object(text, path);
  const JsonNode theirs{parsed, path + ": "};
  HFSeq2Seq model{.config = read_config(theirs), .generation = {}};
  validate_in_file(model.config, path);
  model.generation = read_generation(theirs, tokens_of(model.config));
  model.generation_note = note_on_generation(theirs);
  constexpr const char* ngrams = "encoder_no_repeat_ngram_size";
  if (model.config.family == Seq2SeqFamily::blenderbot && !parsed.contains(ngrams))
    model.generation.encoder_no_repeat_ngram_size = 3;  // the default of BlenderbotConfig
  return model;
}

HFGeneration hf_generation(const std::string& text, const std::string& path,
                           const BeamOptions& absent) {
  const json parsed = parse_json_object(text, path);
  const JsonNode theirs{parsed, path + ": "};
  HFGeneration generation{.options = read_generation(theirs, absent),
                          .do_sample = {},
                          .note = note_on_generation(theirs)};
  if (const JsonNode samples = theirs.at("do_sample"); !samples.value.is_null())
    generation.do_sample = samples.flag();
  return generation;
}

void read_hf_generation(const std::string& text, const std::string& path, HFSeq2Seq& model) {
  BeamOptions absent = tokens_of(model.config);
  // If this file is present, transformers takes no forced tokens from config.json.
  absent.forced_bos = {};
  absent.forced_eos = {};
  HFGeneration read = hf_generation(text, path, absent);
  model.generation = std::move(read.options);
  model.generation_note = std::move(read.note);
  model.generation_json = text;
}

std::string hf_json(const Seq2SeqConfig& config, DType dtype) {
  const bool is_bart = config.family == Seq2SeqFamily::bart;
  json written =
      map_of(config.family)
          .write(is_bart ? "BartForConditionalGeneration" : "BlenderbotForConditionalGeneration",
                 name_of(config.family), config);
  set_hf_dtype(written, dtype);
  std::string text = written.dump(2) + "\n";
  require_same_model(config, hf_seq2seq(text, "export").config);
  return text;
}

std::string hf_generation_json(const Seq2SeqConfig& config, const BeamOptions& options,
                               const std::string& read) {
  const BeamOptions absent;
  json written = read.empty() ? json::object() : parse_json_object(read, "generation_config.json");
  const auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (value != otherwise) written[key] = value;
  };
  const auto add_optional = [&](const char* key, const auto& value) {
    if (value) written[key] = *value;
  };
  if (!options.start.empty()) written["decoder_start_token_id"] = options.start.front();
  add_optional("bos_token_id", config.tokens.bos);
  written["eos_token_id"] = hf_ids(options.eos);
  add_optional("pad_token_id", options.pad);
  add_optional("forced_bos_token_id", options.forced_bos);
  if (!options.forced_eos.empty()) written["forced_eos_token_id"] = hf_ids(options.forced_eos);
  add("num_beams", options.beams, absent.beams);
  add("num_return_sequences", options.return_sequences, absent.return_sequences);
  add_optional("max_length", options.max_length);
  add_optional("max_new_tokens", options.max_new_tokens);
  add("min_length", options.min_length, absent.min_length);
  add_optional("min_new_tokens", options.min_new_tokens);
  add("length_penalty", options.length_penalty, absent.length_penalty);
  if (options.early_stopping == EarlyStopping::never) written["early_stopping"] = "never";
  if (options.early_stopping == EarlyStopping::yes) written["early_stopping"] = true;
  add("repetition_penalty", options.repetition_penalty, absent.repetition_penalty);
  add("suppress_tokens", options.suppressed, absent.suppressed);
  add("begin_suppress_tokens", options.begin_suppressed, absent.begin_suppressed);
  add("no_repeat_ngram_size", options.no_repeat_ngram_size, absent.no_repeat_ngram_size);
  add("encoder_no_repeat_ngram_size", options.encoder_no_repeat_ngram_size,
      absent.encoder_no_repeat_ngram_size);
  return written.dump(2) + "\n";
}

std::vector<HFTensor> hf_tensors(const Seq2SeqConfig& config) {
  ParameterStore store;
  const Seq2Seq model(store, config);
  std::vector<HFTensor> tensors;
  for (const auto& [name, parameter] : store.by_name()) tensors.push_back({name, parameter->shape});
  return tensors;
}

}  // namespace zg::models
