#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/shape.h"
#include "zero/checkpoint_file.h"

namespace zg::zero {

/// The contents of a checkpoint's manifest.json; checkpoint_file.h says what it is.
struct Manifest {
  struct Piece {
    std::string parameter, state;
    int64_t offset = 0;  ///< of its first element in the parameter
    Shape shape;
    std::string file, checksum;

    std::string name() const;  ///< PARAMETER:STATE@OFFSET
  };

  CheckpointInfo info;
  std::optional<LossScaler::State> loss_scaler;  ///< of runs with a dynamic scale
  std::map<std::string, Shape> parameters;
  std::vector<Piece> pieces;
};

/// ConfigError when info.config_json is not a JSON object.
std::string manifest_text(const Manifest& manifest);
/// What one rank tells another about its shard.
std::string pieces_text(const std::vector<Manifest::Piece>& pieces);
std::vector<Manifest::Piece> pieces_from(const std::string& text);
/// Of `path`/manifest.json. FileError when it is missing, damaged or of another format.
Manifest read_manifest(const std::string& path);
inline constexpr const char* manifest_name = "manifest.json";

}  // namespace zg::zero
