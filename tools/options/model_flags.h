#pragma once

#include <array>

#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"

// Flags that several subcommands share: data, model, device.
namespace zg::tools {

/// --tokenizer. The files beside a file of a tokenizer are inputs too.
Flag tokenizer_flag(Names names, const std::string& value, std::string& target,
                    const std::string& help);
/// The files of --data.
std::vector<NamedPath> data_files(const std::string& source);
/// The values of --model-type, in lines for help.
std::string model_names();
void parse_model_type(TrainOptions& options, const std::string& flag, const std::string& value);
/// Megatron's --split, of up to three weights.
std::array<double, 3> parse_split(const std::string& flag, const std::string& value);
Flag chat_flag(bool& chat);
/// f32, bf16 or f16. Throws ConfigError that begins with the flag's name.
DType parse_dtype(const std::string& name, const std::string& value);
/// --dtype
Flag dtype_flag(std::optional<DType>& dtype, const std::string& help);

/// The checkpoints that a path names, or the model's folder or file.
std::vector<NamedPath> checkpoints_in(const std::string& path);
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
void check_model(const TrainOptions& options);

/// --local-rank of torchrun's scripts and, if `one_rank`, --ranks. A value other than the default
/// is Unsupported, so that no flag is accepted and ignored.
FlagGroup unsupported_flags(bool one_rank);

}  // namespace zg::tools
