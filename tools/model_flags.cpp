#include "tools/model_flags.h"

#include "zerograd/models/gpt.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {

namespace {

// With the family's, last.
const std::vector<std::string>& model_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = models::GPTConfig::preset_names();
    all.emplace_back(name_of(models::Family::bloom));
    return all;
  }();
  return names;
}

}  // namespace

Flag model_type_flag(ModelOptions& model) {
  std::string names;
  for (const std::string& name : model_types()) {
    const size_t line = names.rfind('\n') == std::string::npos ? 0 : names.rfind('\n');
    names += names.empty() ? "" : names.size() - line > 48 ? ",\n" : ", ";
    names += name;
  }
  return {{"--model-type"},
          "NAME",
          names + " (with --n-layer, --n-head and --n-embd) [" + model.model_type + "]",
          [&model](const std::string& name, const std::string& value) {
            model.model_type = model_types()[parse_choice(name, value, model_types())];
          }};
}

Flag heads_flag(ModelOptions& model) {
  return integer_flag({"--n-head", "--num-attention-heads"}, model.heads, "attention heads",
                      {1, ""});
}

Flag tied_flag(ModelOptions& model) {
  return {{"--tied"},
          "",
          "the head shares the token embedding's weights [BLOOM's default]",
          [&model](const std::string& name, const std::string& value) {
            model.tied = parse_switch(name, value);
          }};
}

Flag position_flag(ModelOptions& model) {
  return {{"--position-embedding", "--position-embedding-type"},
          "learned|alibi",
          "positions: a table, or ALiBi in attention [learned; BLOOM alibi, bloom-13b learned]",
          [&model](const std::string& name, const std::string& value) {
            model.position =
                static_cast<models::Position>(parse_choice(name, value, {"learned", "alibi"}));
          }};
}

bool is_family(const std::string& model_type) {
  return model_type == name_of(models::Family::bloom);
}

void check_sizes(const ModelOptions& model) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"--n-layer", model.layers}, {"--n-head", model.heads}, {"--n-embd", model.width}};
  std::string missing;
  for (const auto& [flag, value] : sizes)
    if (value == 0) missing += (missing.empty() ? "" : " and ") + std::string(flag);
  const bool family = is_family(model.model_type);
  const bool any = model.layers || model.heads || model.width;
  if (missing.empty() || (!family && !any)) return;
  throw ConfigError((family ? "--model-type " + model.model_type : "--n-layer") +
                    ": expected --n-layer, --n-head and --n-embd together, got none of " + missing +
                    (family ? "; or try a name, " + model.model_type + "-560m" : ""));
}

Flag checkpoint_positional(std::string& target) {
  return positional("CHECKPOINT",
                    "a checkpoint's DIR, one step_N, a safetensors file or a Hugging Face folder",
                    target);
}

int64_t own_vocabulary(const ModelOptions& model) {
  const bool named = !model.layers && !is_family(model.model_type);
  return named ? models::GPTConfig::preset(model.model_type).vocabulary : 0;
}

void check_model(const ModelOptions& model, const Given& given) {
  const bool any = model.layers || model.heads || model.width;
  if (any && given.count("--model-type") && !is_family(model.model_type))
    throw ConfigError(
        "--model-type: a model is a name or --n-layer, --n-head and --n-embd; expected "
        "one of them, got both");
}

}  // namespace zg::tools
