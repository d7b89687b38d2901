#pragma once

#include <optional>
#include <string>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

// Conversion of a checkpoint to one file of weights, and back. Both directions process a few MiB at
// a time, without a whole tensor in memory.
namespace zg::zero {

/// Keys in a file's __metadata__: one for CheckpointInfo::config_json, and a prefix before each
/// name of CheckpointInfo::files.
inline constexpr const char* config_metadata = "zerograd_config";
inline constexpr const char* file_metadata = "zerograd_file:";
/// Reads config_json and files from a file that consolidate() wrote. Absent if it has neither.
/// Throws FileError for a file name that is not allowed in a checkpoint.
ZG_API std::optional<CheckpointInfo> info_of(const SafetensorsReader& file);

/// Writes the master weights of a checkpoint to one safetensors file, in byte order of their names,
/// as f32 or bf16 (rounded to nearest even), with config_json and files. Returns the
/// Engine::parameter_hash() of these values. Throws FileError for a damaged checkpoint; then `file`
/// is not written.
ZG_API std::string consolidate(const std::string& path, const std::string& file, DType dtype);
ZG_API std::string consolidate(const CheckpointReader& checkpoint, const std::string& file,
                               DType dtype);
/// Writes other weights in the same way, with config_json and files of `info`. Has one whole tensor
/// in memory at a time.
ZG_API std::string consolidate(const WeightSource& weights, const CheckpointInfo& info,
                               const std::string& file, DType dtype);

/// The inverse of consolidate(): writes DIR/step_0 with one shard for each of `ranks` ranks. The
/// master weights are the floating-point tensors of a safetensors file, converted to f32. Adam's
/// moments and the counters are zero; other optimizers can load only the weights. config_json and
/// files are those of `info`. Throws FileError if there is no floating-point tensor. Returns the
/// Engine::parameter_hash() of the weights.
ZG_API std::string split(const std::string& file, const std::string& directory,
                         const CheckpointInfo& info, int ranks);

}  // namespace zg::zero
