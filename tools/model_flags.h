#pragma once

#include "tools/options.h"
#include "zerograd/runtime/command_line/flags.h"

// Flags that several subcommands have: data, model, device.
namespace zg::tools {

Flag source_flag(DataOptions& data);
std::vector<Flag> held_out_flags(DataOptions& data);
Flag tokenizer_flag(DataOptions& data);
std::vector<Flag> place_flags(PlaceOptions& place);

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

/// --local-rank of torchrun's scripts, and where `one_rank` --ranks: known flags whose other values
/// are Unsupported by name. None is accepted and ignored.
FlagGroup unsupported_flags(bool one_rank);

}  // namespace zg::tools
