#pragma once

#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"

// Flags that several subcommands share: data, model, device.
namespace zg::tools {

Flag source_flag(DataOptions& data);
Flag validation_fraction_flag(DataOptions& data);
Flag split_flag(DataOptions& data);
Flag tokenizer_flag(DataOptions& data);
/// The same under other names and help. The files beside a file of a tokenizer are inputs too.
Flag tokenizer_flag(Names names, const std::string& value, std::string& target,
                    const std::string& help);
Flag validation_source_flag(DataOptions& data);
Flag chat_format_flag(DataOptions& data);
Flag chat_flag(bool& chat);
Flag pack_flag(DataOptions& data);
std::vector<Flag> place_flags(DeviceFlags& device_flags);
/// f32, bf16 or f16. Throws ConfigError that begins with the flag's name.
DType parse_dtype(const std::string& name, const std::string& value);
/// --dtype
Flag dtype_flag(std::optional<DType>& dtype, const std::string& help);

Flag model_type_flag(std::string& model_type);
Flag heads_flag(int64_t& heads);
Flag tied_flag(bool& tied);
Flag position_flag(models::Position& position);
/// A flag whose value is a checkpoint, a folder of them, a model's folder or a file of weights.
Flag checkpoint_flag(Names names, const std::string& value, std::string& target,
                     const std::string& help);
Flag checkpoint_positional(std::string& target);
/// The family of a name such as "bloom" or "llama", whose sizes come from flags; absent: no family.
std::optional<models::Family> family_named(const std::string& model_type);
bool is_family(const std::string& model_type);
/// Throws ConfigError if a family is named but not all sizes are given, or if only some sizes are
/// given.
void check_sizes(const TrainOptions& options);
/// Whether any of the sizes is set.
bool has_sizes(const TrainOptions& options);
/// The vocabulary of a named BLOOM; 0: the model has no vocabulary of its own.
int64_t own_vocabulary(const TrainOptions& options);
/// Throws ConfigError if both a model name and sizes are given.
void check_model(const std::string& model_type, const Given& given);

/// --local-rank of torchrun's scripts and, if `one_rank`, --ranks. A value other than the default
/// is Unsupported, so that no flag is accepted and ignored.
FlagGroup unsupported_flags(bool one_rank);

}  // namespace zg::tools
