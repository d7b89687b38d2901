#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/shape.h"
#include "zerograd/zero/checkpoint_file.h"
#include "zerograd/zero/checkpoint_layout.h"

namespace zg::zero {

/// The contents of a checkpoint's manifest.json; checkpoint_file.h says what it is.
struct Manifest {
  struct Piece {
    std::string parameter, state;
    int64_t offset = 0;  ///< of its first element in the parameter, or in the slice of it
    Shape shape;
    std::string file, checksum;
    std::vector<std::string> blocks = {};  ///< checksums of block_elements each, where it has more
    /// Of which part of the parameter it is, where that is no range of elements: columns of a
    /// matrix, whose rows several tensor ranks share.
    std::optional<Slice> slice = {};

    /// PARAMETER:STATE@OFFSET, of a slice with /OUTERxEXTENTxINNER/BEGIN+ROWS behind it.
    ZG_API std::string name() const;
  };

  CheckpointInfo info;
  std::optional<LossScaler::State> loss_scaler;  ///< of runs with a dynamic scale
  std::map<std::string, Shape> parameters;
  std::vector<Piece> pieces;
  /// Of each shard: XXH3-128 of its bytes before the tensors. Empty: an older checkpoint.
  std::map<std::string, std::string> headers;
  /// The checksum of the manifest itself, once read: equal where all of two checkpoints is.
  std::string checksum = {};
  /// For each of the info's files: XXH3-128 of its contents. A manifest that was read has these and
  /// not the contents, which CheckpointReader::info() reads.
  std::map<std::string, std::string> file_checksums;
};

/// ConfigError when info.config_json is not a JSON object.
ZG_API std::string manifest_text(const Manifest& manifest);
/// What one rank tells another about its shard: its parameters, pieces and header.
std::string account_text(const Manifest& shard);
void add_account(const std::string& text, Manifest& manifest);
/// Of `path`/manifest.json. FileError when it is missing, damaged or of another format; what it
/// says of shapes and places is checked, not what is in the files.
ZG_API Manifest read_manifest(const std::string& path);
Manifest manifest_from(const std::string& text, const std::string& file);  ///< file: for errors

}  // namespace zg::zero
