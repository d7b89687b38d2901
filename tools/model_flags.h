#pragma once

#include "tools/flags.h"
#include "tools/options.h"

// Flags of several subcommands that say what a model is.
namespace zg::tools {

Flag model_type_flag(ModelOptions& model);
Flag heads_flag(ModelOptions& model);
Flag checkpoint_positional(std::string& target);
/// ConfigError for a name and sizes at once.
void check_model(const ModelOptions& model, const Given& given);

}  // namespace zg::tools
