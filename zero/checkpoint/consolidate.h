#pragma once

#include <optional>
#include <string>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

// Checkpoints to single files of weights and back, a few MiB at a time: neither direction holds a
// tensor, let alone a model, in memory.
namespace zg::zero {

/// The entries of a file's __metadata__ that hold CheckpointInfo::config_json and, each with its
/// name behind this prefix, CheckpointInfo::files.
inline constexpr const char* config_metadata = "zerograd_config";
inline constexpr const char* file_metadata = "zerograd_file:";
/// Both, of a file that consolidate wrote. Absent: it has neither. FileError for a name that no
/// file of a checkpoint can have.
ZG_API std::optional<CheckpointInfo> info_of(const SafetensorsReader& file);

/// Writes a checkpoint's master parameters, by name in byte order, as one safetensors file, f32 or
/// bf16 (rounded to nearest even), with its config_json and files. Returns what
/// Engine::parameter_hash() says of these values. FileError: damage is found before the file has
/// its name.
ZG_API std::string consolidate(const std::string& path, const std::string& file, DType dtype);
ZG_API std::string consolidate(const CheckpointReader& checkpoint, const std::string& file,
                               DType dtype);
/// The same from other weights, one tensor at a time in memory, with what `info` says of them.
ZG_API std::string consolidate(const WeightSource& weights, const CheckpointInfo& info,
                               const std::string& file, DType dtype);

/// Writes DIR/step_0 as so many ranks save it: the floating tensors of a safetensors file, widened
/// to f32, as masters, moments of zero, counters of zero, and the config_json and files of `info`.
/// FileError when there is no such tensor. Returns the hash as above.
ZG_API std::string split(const std::string& file, const std::string& directory,
                         const CheckpointInfo& info, int ranks);

}  // namespace zg::zero
