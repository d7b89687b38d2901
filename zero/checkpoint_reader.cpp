#include "zero/checkpoint_reader.h"

#include <algorithm>

#include "runtime/error.h"
#include "zero/checksum.h"

namespace zg::zero {

CheckpointReader::CheckpointReader(const std::string& path)
    : path_(path), manifest_(read_manifest(path)) {
  for (const Manifest::Piece& piece : manifest_.pieces)
    pieces_[{piece.parameter, piece.state}].push_back(&piece);
  for (auto& [key, pieces] : pieces_)
    std::sort(pieces.begin(), pieces.end(),
              [](const auto* a, const auto* b) { return a->offset < b->offset; });
}

const std::vector<const Manifest::Piece*>& CheckpointReader::pieces(
    const std::string& parameter, const std::string& state) const {
  const auto found = pieces_.find({parameter, state});
  if (found == pieces_.end())
    throw FileError("checkpoint: " + path_ + ": has no " + state + " of '" + parameter + "'");
  return found->second;
}

void CheckpointReader::check_tiles(const std::string& parameter, const std::string& state) const {
  int64_t end = 0;
  for (const Manifest::Piece* piece : pieces(parameter, state)) {
    if (piece->offset != end)
      throw FileError("checkpoint: " + path_ + ": '" + piece->name() + "' begins at element " +
                      std::to_string(piece->offset) + "; expected " + std::to_string(end));
    end += piece->shape.numel();
  }
  const int64_t numel = manifest_.parameters.at(parameter).numel();
  if (end != numel)
    throw FileError("checkpoint: " + path_ + ": the " + state + " of '" + parameter + "' has " +
                    std::to_string(end) + " elements; expected " + std::to_string(numel));
}

const SafetensorsReader& CheckpointReader::file(const std::string& name) const {
  return files_.try_emplace(name, path_ + "/" + name).first->second;
}

std::vector<float> CheckpointReader::read(const Manifest::Piece& piece) const {
  const std::string name = piece.name();
  std::vector<float> values = file(piece.file).read_floats(name);
  if (static_cast<int64_t>(values.size()) != piece.shape.numel() ||
      checksum(std::as_bytes(std::span(values))) != piece.checksum)
    throw FileError("checkpoint: " + path_ + "/" + piece.file + ": tensor '" + name +
                    "' is damaged: its checksum differs from the manifest's");
  return values;
}

std::vector<float> CheckpointReader::read(const std::string& parameter,
                                          const std::string& state) const {
  const auto& parts = pieces(parameter, state);
  std::vector<float> values = read(*parts.front());
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<float> part = read(*parts[i]);
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

}  // namespace zg::zero
