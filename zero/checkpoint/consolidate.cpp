#include "zerograd/zero/checkpoint/consolidate.h"

#include <algorithm>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/checkpoint/manifest.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

/// Converts a chunk of a tensor to `dtype` and writes it. `hash` is updated with the rounded
/// values.
void write(SafetensorsWriter& writer, DType dtype, std::span<const float> values, Checksum& hash) {
  if (dtype == DType::f32) {
    hash.update(std::as_bytes(values));
    return writer.write_part(std::as_bytes(values));
  }
  std::vector<bf16> rounded(values.size());
  std::vector<float> widened(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    rounded[i] = bf16(values[i]);
    widened[i] = static_cast<float>(rounded[i]);
  }
  hash.update(std::as_bytes(std::span(widened)));
  writer.write_part(std::as_bytes(std::span(rounded)));
}

using ForFloats = std::function<void(const std::string& name, const SafetensorsReader::Visit&)>;

std::string write_file(const std::string& file, DType dtype,
                       const std::map<std::string, Shape>& parameters, const CheckpointInfo& info,
                       const ForFloats& for_floats) {
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw DTypeError(std::string("consolidate: expected f32 or bf16, got ") + name_of(dtype));
  std::vector<SafetensorsWriter::Entry> entries;
  entries.reserve(parameters.size());
  for (const auto& [name, shape] : parameters) entries.push_back({name, dtype, shape});
  // transformers opens only files with this metadata.
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {config_metadata, info.config_json}};
  for (const auto& [name, contents] : info.files) metadata.emplace(file_metadata + name, contents);
  SafetensorsWriter writer(file, entries, metadata);
  Checksum hash;
  for (const SafetensorsWriter::Entry& entry : entries)
    for_floats(entry.name,
               [&](std::span<const float> values) { write(writer, dtype, values, hash); });
  writer.finish();
  return hash.hex();
}

/// The pieces of rank `rank`: an equal share of every parameter, in the order of names. Rank 0
/// lists empty parameters.
std::vector<Manifest::Piece> share_of(const std::map<std::string, Shape>& parameters, int rank,
                                      int ranks) {
  std::vector<Manifest::Piece> pieces;
  for (const auto& [name, shape] : parameters) {
    const int64_t whole = shape.numel(), share = whole / ranks, left = whole % ranks;
    const int64_t begin = share * rank + std::min<int64_t>(rank, left);
    const int64_t numel = share + (rank < left ? 1 : 0);
    if (numel == 0 && (whole > 0 || rank > 0)) continue;
    for (const char* state : {"master", "moment1", "moment2"})
      pieces.push_back({.parameter = name,
                        .state = state,
                        .offset = begin,
                        .shape = numel == whole ? shape : Shape{numel},
                        .file = shard_name(rank)});
  }
  return pieces;
}

void for_zeros(int64_t numel, const SafetensorsReader::Visit& visit) {
  const std::vector<float> zeros(static_cast<size_t>(std::min(numel, chunk_elements)));
  for (int64_t begin = 0; begin < numel; begin += chunk_elements)
    visit(std::span(zeros).first(static_cast<size_t>(std::min(numel - begin, chunk_elements))));
}

void write_shard(const SafetensorsReader& reader, const std::string& folder, int rank, int ranks,
                 Manifest& manifest) {
  std::vector<Manifest::Piece> pieces = share_of(manifest.parameters, rank, ranks);
  std::vector<SafetensorsWriter::Entry> entries;
  entries.reserve(pieces.size());
  for (const Manifest::Piece& piece : pieces)
    entries.push_back({piece.name(), DType::f32, piece.shape});
  SafetensorsWriter writer(folder + "/" + shard_name(rank), entries);
  for (Manifest::Piece& piece : pieces) {
    PieceChecksum sum;
    const auto visit = [&](std::span<const float> values) {
      sum.update(values);
      writer.write_part(std::as_bytes(values));
    };
    if (piece.state == "master")
      reader.for_floats(piece.parameter, piece.offset, piece.shape.numel(), visit);
    else
      for_zeros(piece.shape.numel(), visit);
    piece.checksum = sum.hex();
    piece.blocks = sum.blocks();
    manifest.pieces.push_back(piece);
  }
  writer.finish();
  manifest.headers.emplace(shard_name(rank), writer.header_checksum());
}

}  // namespace

std::string consolidate(const std::string& path, const std::string& file, DType dtype) {
  return consolidate(*open_checkpoint(path), file, dtype);
}

std::string consolidate(const CheckpointReader& reader, const std::string& file, DType dtype) {
  for (const auto& parameter : reader.manifest().parameters)
    reader.check_tiles(parameter.first, "master");
  return write_file(file, dtype, reader.manifest().parameters, reader.info(),
                    [&](const std::string& name, const SafetensorsReader::Visit& visit) {
                      reader.for_floats(name, "master", visit);
                    });
}

std::string consolidate(const WeightSource& weights, const CheckpointInfo& info,
                        const std::string& file, DType dtype) {
  return write_file(file, dtype, weights.shapes, info,
                    [&](const std::string& name, const SafetensorsReader::Visit& visit) {
                      visit(weights.read(name));
                    });
}

std::optional<CheckpointInfo> info_of(const SafetensorsReader& file) {
  const auto& metadata = file.metadata();
  const auto config = metadata.find(config_metadata);
  if (config == metadata.end()) return std::nullopt;
  CheckpointInfo info{.config_json = config->second};
  const std::string prefix = file_metadata;
  for (const auto& [key, contents] : metadata) {
    if (!key.starts_with(prefix)) continue;
    const std::string name = key.substr(prefix.size());
    if (!is_own_file_name(name))
      raise<FileError>("metadata: '{}'; expected the name of a file of a checkpoint", name);
    info.files.emplace(name, contents);
  }
  return info;
}

std::string split(const std::string& file, const std::string& directory, const CheckpointInfo& info,
                  int ranks) {
  const SafetensorsReader reader(file);
  Manifest manifest{.info = {.config_json = info.config_json, .files = info.files}};
  for (const auto& [name, entry] : reader.entries())
    if (is_floating(entry.dtype)) manifest.parameters.emplace(name, entry.shape);
  if (manifest.parameters.empty())
    raise<FileError>("split: {}: has no tensor of f64, f32, bf16 or f16", file);
  UnfinishedFolder folder(directory, 0);
  for (int rank = 0; rank < ranks; ++rank)
    write_shard(reader, folder.path(), rank, ranks, manifest);
  folder.finish(manifest);
  Checksum hash;
  for (const auto& parameter : manifest.parameters)
    reader.for_floats(parameter.first,
                      [&](std::span<const float> values) { hash.update(std::as_bytes(values)); });
  return hash.hex();
}

}  // namespace zg::zero
