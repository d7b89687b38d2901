#include <charconv>

#include "zerograd/models/hugging_face/hf_families.h"
#include "zerograd/runtime/error.h"

namespace zg::models {
namespace {

using nlohmann::json;

HFModel read(const HFReader& reader) {
  const json* type = reader.find("model_type");
  if (!type || *type == "gpt2") return hf_gpt2_config(reader);
  if (*type == "bloom") return hf_bloom_config(reader);
  reader.refuse("model_type", "\"gpt2\" or \"bloom\"");
}

json id_of(std::optional<int32_t> token) { return token ? json(*token) : json(nullptr); }

// As transformers writes it: a list where there are several.
json ids_of(const std::vector<int32_t>& tokens) {
  return tokens.empty() ? json(nullptr) : tokens.size() == 1 ? json(tokens.front()) : json(tokens);
}

}  // namespace

SpecialTokens hf_tokens(const HFReader& reader, const SpecialTokens& absent, int64_t vocabulary) {
  const auto known = [&](const char* key, const std::vector<int32_t>& otherwise) {
    std::vector<int32_t> ids = reader.ids(key, otherwise);
    std::erase_if(ids, [&](int32_t id) { return id >= vocabulary; });
    return ids;
  };
  const auto first = [&](const char* key, std::optional<int32_t> otherwise) {
    const std::vector<int32_t> ids =
        known(key, otherwise ? std::vector{*otherwise} : std::vector<int32_t>());
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };
  return {.bos = first("bos_token_id", absent.bos),
          .pad = first("pad_token_id", absent.pad),
          .eos = known("eos_token_id", absent.eos)};
}

HFModel hf_config(const std::string& text, const std::string& path) {
  const HFReader reader(text, path);
  const HFModel theirs = read(reader);
  try {
    validate(theirs.config);
  } catch (const ConfigError& error) {
    reader.fail(error.what());
  }
  return theirs;
}

void read_hf_generation(const std::string& text, const std::string& path, HFModel& model) {
  model.tokens = hf_tokens(HFReader(text, path), model.tokens, model.config.vocabulary);
}

std::string hf_json(const GPTConfig& config, const SpecialTokens& tokens) {
  const bool bloom = config.family == Family::bloom;
  json written = bloom ? hf_bloom_json(config) : hf_gpt2_json(config);
  written["bos_token_id"] = id_of(tokens.bos);
  written["eos_token_id"] = ids_of(tokens.eos);
  written["pad_token_id"] = id_of(tokens.pad);
  return written.dump(2) + "\n";
}

std::string hf_generation_json(const SpecialTokens& tokens) {
  json written = {{"_from_model_config", true}};
  if (tokens.bos) written["bos_token_id"] = *tokens.bos;
  if (!tokens.eos.empty()) written["eos_token_id"] = ids_of(tokens.eos);
  if (tokens.pad) written["pad_token_id"] = *tokens.pad;
  return written.dump(2) + "\n";
}

const char* hf_title(Family family) { return family == Family::bloom ? "BLOOM" : "GPT-2"; }

double hf_number(float value) {
  char digits[32];
  double number = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), value).ptr, number);
  return number;
}

}  // namespace zg::models
