#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/shape.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/zero/checkpoint/checkpoint_info.h"
#include "zerograd/zero/optimizer/loss_scale.h"

namespace zg::zero {

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* shard_prefix = "shard_";
/// True if CheckpointInfo::files may contain the name; the rule is in the comment there.
bool is_own_file_name(const std::string& name);

/// Elements of a checkpoint piece that share a checksum. A reader that needs a range of a long
/// piece reads and verifies only the blocks of that range.
inline constexpr int64_t block_elements = int64_t{1} << 20;

/// Computes the checksum of a piece as its floats arrive. A piece of more than one block also gets
/// a checksum for each block.
class PieceChecksum {
 public:
  void update(std::span<const float> values);
  std::string hex() const { return whole_.hex(); }
  std::vector<std::string> blocks();  ///< empty: one block; call once, at the end

 private:
  Checksum whole_;
  std::vector<std::string> blocks_;                                 // completed blocks
  std::unique_ptr<Checksum> block_ = std::make_unique<Checksum>();  // the block being filled
  int64_t filled_ = 0;
};

/// The contents of a checkpoint's manifest.json; checkpoint_info.h documents the format.
struct Manifest {
  struct Piece {
    std::string parameter, state;
    int64_t offset = 0;  ///< index of the first element in the parameter, or in its `slice`
    Shape shape;
    std::string file, checksum;
    std::vector<std::string> blocks = {};  ///< checksums of block_elements each; empty: one block
    /// The slice of the parameter that the piece belongs to, if that is not a contiguous range of
    /// elements: columns of a matrix whose rows are divided over tensor ranks.
    std::optional<Slice> slice = {};

    /// PARAMETER:STATE@OFFSET, for a slice followed by /OUTERxEXTENTxINNER/BEGIN+ROWS.
    ZG_API std::string name() const;
  };

  CheckpointInfo info;
  std::optional<LossScaler::State> loss_scaler;  ///< only with a dynamic scale
  std::string optimizer = "adam";                ///< older checkpoints are of adam
  /// Its states that have a number for each element. Others have one piece for each parameter.
  std::vector<std::string> states = {"moment1", "moment2"};
  bool shared = false;  ///< parameter groups have optimizers of their own, with some of the states
  std::map<std::string, double> options;  ///< of an optimizer outside the library
  std::map<std::string, Shape> parameters;
  std::vector<Piece> pieces;
  /// By shard: XXH3-128 of the bytes before its tensors. Empty in an older checkpoint.
  std::map<std::string, std::string> headers;
  /// The checksum of manifest.json, set when it is read. Checkpoints with equal checksums are
  /// equal.
  std::string checksum = {};
  /// For each of info.files: XXH3-128 of its contents. After reading a manifest only these
  /// checksums are set; CheckpointReader::info() reads the contents.
  std::map<std::string, std::string> file_checksums;

  /// Elements of a state of one of `parameters`.
  int64_t numel_of(const std::string& parameter, const std::string& state) const;
};

/// Throws ConfigError when info.config_json is not a JSON object.
ZG_API std::string manifest_text(const Manifest& manifest);
/// One rank's message to rank 0 about its shard: parameters, pieces and header.
std::string account_text(const Manifest& shard);
void add_account(const std::string& text, Manifest& manifest);
/// Reads `path`/manifest.json. Throws FileError when it is missing, damaged or of another format.
/// It checks the shapes and offsets in the manifest, but opens no other file.
ZG_API Manifest read_manifest(const std::string& path);
Manifest manifest_from(const std::string& text, const std::string& file);  ///< file: for errors

}  // namespace zg::zero
