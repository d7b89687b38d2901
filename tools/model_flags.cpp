#include "tools/model_flags.h"

#include "models/gpt.h"
#include "runtime/error.h"

namespace zg::tools {

Flag model_type_flag(ModelOptions& model) {
  std::string names;
  for (const std::string& name : models::GPTConfig::preset_names()) {
    const size_t line = names.rfind('\n') == std::string::npos ? 0 : names.rfind('\n');
    names += names.empty() ? "" : names.size() - line > 48 ? ",\n" : ", ";
    names += name;
  }
  return {{"--model-type"},
          "NAME",
          names + " [" + model.model_type + "]",
          [&model](const std::string& name, const std::string& value) {
            const auto& known = models::GPTConfig::preset_names();
            model.model_type = known[parse_choice(name, value, known)];
          }};
}

Flag heads_flag(ModelOptions& model) {
  return integer_flag({"--n-head", "--num-attention-heads"}, model.heads, "attention heads",
                      {1, ""});
}

Flag checkpoint_positional(std::string& target) {
  return positional("CHECKPOINT", "a checkpoint's DIR, one step_N, or a safetensors file", target);
}

void check_model(const ModelOptions& model, const Given& given) {
  const bool any = model.layers || model.heads || model.width;
  if (any && given.count("--model-type"))
    throw ConfigError(
        "--model-type: a model is a name or --n-layer, --n-head and --n-embd; expected "
        "one of them, got both");
}

}  // namespace zg::tools
