#pragma once

#include <string>

#include "runtime/api.h"
#include "runtime/dtype.h"
#include "zero/checkpoint_file.h"

// Checkpoints to single files of weights and back, a few MiB at a time: neither direction holds a
// tensor, let alone a model, in memory.
namespace zg::zero {

/// The entry of a file's __metadata__ that holds CheckpointInfo::config_json.
inline constexpr const char* config_metadata = "zerograd_config";

/// Writes a checkpoint's master parameters, by name in byte order, as one safetensors file, f32 or
/// bf16 (rounded to nearest even), with its config_json. Returns what Engine::parameter_hash() says
/// of these values. FileError: damage is found before the file has its name.
ZG_API std::string consolidate(const std::string& path, const std::string& file, DType dtype);
ZG_API std::string consolidate(const CheckpointReader& checkpoint, const std::string& file,
                               DType dtype);

/// Writes DIR/step_0 as so many ranks save it: the floating tensors of a safetensors file, widened
/// to f32, as masters, moments of zero, counters of zero and `config_json`. FileError when there is
/// no such tensor. Returns the hash as above.
ZG_API std::string split(const std::string& file, const std::string& directory,
                         const std::string& config_json, int ranks);

}  // namespace zg::zero
