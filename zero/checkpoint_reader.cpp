#include "zero/checkpoint_reader.h"

#include <algorithm>
#include <utility>

#include "runtime/error.h"
#include "zero/checksum.h"

namespace zg::zero {

CheckpointReader::CheckpointReader(const std::string& path)
    : CheckpointReader(path, read_manifest(path)) {}

CheckpointReader::CheckpointReader(const std::string& path, Manifest manifest)
    : path_(path), manifest_(std::move(manifest)) {
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
  const int64_t numel = manifest_.parameters.at(parameter).numel();
  int64_t end = 0;
  for (const Manifest::Piece* piece : pieces(parameter, state)) {
    if (piece->offset != end)
      throw FileError("checkpoint: " + path_ + ": '" + piece->name() + "' begins at element " +
                      std::to_string(piece->offset) + "; expected " + std::to_string(end));
    end += piece->shape.numel();
    if (end > numel) break;
  }
  if (end != numel)
    throw FileError("checkpoint: " + path_ + ": the " + state + " of '" + parameter + "' has " +
                    std::to_string(end) + " elements; expected " + std::to_string(numel));
}

const SafetensorsReader& CheckpointReader::file(const std::string& name) const {
  if (const auto open = files_.find(name); open != files_.end()) return open->second;
  SafetensorsReader reader(path_ + "/" + name);
  const auto header = manifest_.headers.find(name);
  if (header != manifest_.headers.end() && header->second != reader.header_checksum())
    throw FileError("checkpoint: " + path_ + "/" + name +
                    ": its header, from byte 0 on, is damaged " +
                    "or another shard's: its checksum differs from the manifest's");
  return files_.emplace(name, std::move(reader)).first->second;
}

void CheckpointReader::for_floats(const Manifest::Piece& piece,
                                  const SafetensorsReader::Visit& visit) const {
  const std::string name = piece.name();
  const SafetensorsReader& reader = file(piece.file);
  Checksum checksum;
  int64_t numel = 0;
  reader.for_floats(name, [&](std::span<const float> values) {
    checksum.update(std::as_bytes(values));
    numel += static_cast<int64_t>(values.size());
    visit(values);
  });
  if (numel == piece.shape.numel() && checksum.hex() == piece.checksum) return;
  const SafetensorsReader::Entry& entry = reader.entries().at(name);
  throw FileError("checkpoint: " + path_ + "/" + piece.file + ": tensor '" + name +
                  "' is damaged, bytes " + std::to_string(entry.begin) + " to " +
                  std::to_string(entry.end) +
                  " of the file: its checksum differs from the manifest's");
}

void CheckpointReader::for_floats(const std::string& parameter, const std::string& state,
                                  const SafetensorsReader::Visit& visit) const {
  for (const Manifest::Piece* piece : pieces(parameter, state)) for_floats(*piece, visit);
}

std::vector<float> CheckpointReader::read(const std::string& parameter,
                                          const std::string& state) const {
  std::vector<float> values;
  for_floats(parameter, state, [&](std::span<const float> part) {
    values.insert(values.end(), part.begin(), part.end());
  });
  return values;
}

void CheckpointReader::check_bytes() const {
  for (const Manifest::Piece& piece : manifest_.pieces)
    for_floats(piece, [](std::span<const float>) {});
}

std::vector<std::string> CheckpointReader::damages() const {
  std::vector<std::string> found;
  const auto note = [&](const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      found.push_back(error.what());
      return false;
    }
    return true;
  };
  for (const auto& parameter : manifest_.parameters)
    if (!pieces_.contains({parameter.first, "master"}))
      note([&] { check_tiles(parameter.first, "master"); });
  for (const auto& state : pieces_)
    note([&] { check_tiles(state.first.first, state.first.second); });
  std::map<std::string, bool> readable;  // a bad file once, not with each of its tensors
  for (const Manifest::Piece& piece : manifest_.pieces) {
    const auto [known, is_new] = readable.try_emplace(piece.file);
    if (is_new) known->second = note([&] { file(piece.file); });
    if (known->second) note([&] { for_floats(piece, [](std::span<const float>) {}); });
  }
  return found;
}

}  // namespace zg::zero
