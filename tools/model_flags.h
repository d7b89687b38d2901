#pragma once

#include "tools/flags.h"
#include "tools/options.h"

// Flags of several subcommands that say what a model is.
namespace zg::tools {

Flag model_type_flag(ModelOptions& model);
Flag heads_flag(ModelOptions& model);
Flag tied_flag(ModelOptions& model);
Flag position_flag(ModelOptions& model);
Flag checkpoint_positional(std::string& target);
/// Whether the name is that of a family, "bloom", whose sizes flags give.
bool is_family(const std::string& model_type);
/// ConfigError for a family, or some sizes, without the other sizes.
void check_sizes(const ModelOptions& model);
/// A named BLOOM's; 0: the model has no vocabulary of its own.
int64_t own_vocabulary(const ModelOptions& model);
/// ConfigError for a name and sizes at once.
void check_model(const ModelOptions& model, const Given& given);

}  // namespace zg::tools
