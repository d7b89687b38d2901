#include <charconv>

#include "models/hf_families.h"
#include "runtime/error.h"

namespace zg::models {
namespace {

HFModel read(const HFReader& reader) {
  const nlohmann::json* type = reader.find("model_type");
  if (!type || *type == "gpt2") return hf_gpt2_config(reader);
  if (*type == "bloom") return hf_bloom_config(reader);
  reader.refuse("model_type", "\"gpt2\" or \"bloom\"");
}

}  // namespace

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

std::string hf_json(const GPTConfig& config) {
  const bool bloom = config.family == Family::bloom;
  return (bloom ? hf_bloom_json(config) : hf_gpt2_json(config)).dump(2) + "\n";
}

const char* hf_title(Family family) { return family == Family::bloom ? "BLOOM" : "GPT-2"; }

double hf_number(float value) {
  char digits[32];
  double number = 0.0;
  std::from_chars(digits, std::to_chars(digits, std::end(digits), value).ptr, number);
  return number;
}

}  // namespace zg::models
