#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace zg::zero {

// DIR/step_N, where N is the number of attempted steps, holds
//   shard_RRRRR.safetensors   one for each rank: f32 tensors named PARAMETER:STATE@OFFSET. STATE is
//                             master or a state of the optimizer; a frozen parameter has its value
//                             as master. OFFSET is the index of the tensor's first element in the
//                             parameter. A tensor that holds the whole parameter has its shape, any
//                             other tensor has one axis. A state with a shape of its own (such as
//                             second moments of rows, then of columns) is one tensor.
//                             A tensor-parallel slice that is not one contiguous range of the
//                             parameter's elements is named
//                             PARAMETER:STATE@OFFSET/OUTERxEXTENTxINNER/BEGIN+ROWS: the parameter
//                             is OUTER blocks of EXTENT rows of INNER elements. The slice has ROWS
//                             rows of each block, from BEGIN on. OFFSET counts within the slice.
//   manifest.json             format, version, counters and config of CheckpointInfo,
//                             parameters (name to shape), tensors (name, dtype, shape, file and
//                             XXH3-128 of the bytes; for long tensors also of each block of 2^20
//                             elements), headers (shard file to XXH3-128 of the safetensors
//                             header, with its length), files (name to XXH3-128 of the contents),
//                             the state of a dynamic loss scale, the optimizer unless it is adam,
//                             base (path and hash) if parameters are not saved,
//                             and a checksum of the manifest itself
//   the files of CheckpointInfo, under their own names
// DIR/latest contains the name of the last saved step_N, for users and scripts. The library does
// not read it. Shards hold the element ranges that their ranks owned. A reader joins them by
// offset, so the number of ranks and the ZeRO stage may differ.

/// The contents of a checkpoint other than tensors.
struct CheckpointInfo {
  int64_t steps = 0;  ///< attempted optimizer steps
  int64_t skipped = 0;
  int64_t micro_batches = 0;     ///< consumed by the run so far: the position in the data
  std::string config_json = {};  ///< the caller's own JSON object: model, data and run settings
  /// Small files of the run, for example tokenizer.json: name to contents. Rank 0 writes them
  /// beside the shards. A name has letters, digits, '.', '_' and '-', does not begin with '.' or
  /// "shard_" and is not "manifest.json". All contents together have at most 1 GiB.
  std::map<std::string, std::string> files = {};
  /// The weights of the parameters that are not saved (Parameter::saved), for example those of a
  /// model that adapters are trained for.
  struct Base {
    std::string path;  ///< where the caller reads them; empty: every parameter is saved
    std::string hash;  ///< weights_hash()
    bool operator==(const Base&) const = default;
  };
  Base base = {};
};

}  // namespace zg::zero
