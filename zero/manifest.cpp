#include "zero/manifest.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/file_io.h"
#include "zero/checksum.h"

namespace zg::zero {
namespace {

using nlohmann::json;

constexpr const char* format = "zerograd checkpoint";
constexpr int version = 1;

json extents_of(const Shape& shape) {
  return std::vector<int64_t>(shape.extents().begin(), shape.extents().end());
}

Shape shape_of(const json& extents) {
  const auto values = extents.get<std::vector<int64_t>>();
  return Shape(std::span<const int64_t>(values));
}

std::string checksum_of(const json& manifest) {
  const std::string text = manifest.dump();  // keys in order, so equal content is equal text
  return checksum(std::as_bytes(std::span(text)));
}

json config_of(const CheckpointInfo& info) {
  if (info.config_json.empty()) return json::object();
  try {
    json config = json::parse(info.config_json);
    if (config.is_object()) return config;
  } catch (const json::exception&) {
  }
  throw ConfigError("save_checkpoint: config_json is '" + info.config_json.substr(0, 40) +
                    "'; expected a JSON object");
}

// The parameter's own name may hold any character: what follows is read from the right.
Manifest::Piece piece_of(const json& tensor) {
  const std::string name = tensor.at("name");
  const size_t at = name.rfind('@'), colon = name.rfind(':', at);
  int64_t offset = -1;
  if (at != std::string::npos && colon != std::string::npos)
    std::from_chars(name.data() + at + 1, name.data() + name.size(), offset);
  const std::string file = tensor.at("file");
  if (offset < 0) throw FileError("tensor name '" + name + "'; expected PARAMETER:STATE@OFFSET");
  if (file.find('/') != std::string::npos)
    throw FileError("tensor '" + name + "' is in '" + file + "'; expected a file beside it");
  return {.parameter = name.substr(0, colon),
          .state = name.substr(colon + 1, at - colon - 1),
          .offset = offset,
          .shape = shape_of(tensor.at("shape")),
          .file = file,
          .checksum = tensor.at("xxh3_128")};
}

json tensors_of(const std::vector<Manifest::Piece>& pieces) {
  json tensors = json::array();
  for (const Manifest::Piece& piece : pieces)
    tensors.push_back({{"name", piece.name()},
                       {"dtype", "F32"},
                       {"shape", extents_of(piece.shape)},
                       {"file", piece.file},
                       {"xxh3_128", piece.checksum}});
  return tensors;
}

std::vector<Manifest::Piece> pieces_of(const json& tensors) {
  std::vector<Manifest::Piece> pieces;
  for (const json& tensor : tensors) pieces.push_back(piece_of(tensor));
  return pieces;
}

json json_of(const LossScaler::State& state) {
  return {{"scale", state.scale},
          {"hysteresis", state.hysteresis},
          {"iteration", state.iteration},
          {"last_overflow", state.last_overflow}};
}

LossScaler::State scaler_of(const json& object) {
  return {.scale = object.at("scale"),
          .hysteresis = object.at("hysteresis"),
          .iteration = object.at("iteration"),
          .last_overflow = object.at("last_overflow")};
}

Manifest parse(const std::string& text) {
  json object = json::parse(text);
  if (object.value("format", "") != format)
    throw FileError(std::string("expected format '") + format + "'");
  if (object.at("version") != version)
    throw FileError("is of version " + object.at("version").dump() + "; expected " +
                    std::to_string(version));
  const std::string written = object.at("checksum");
  object.erase("checksum");
  if (checksum_of(object) != written) throw FileError("is damaged: its checksum differs");
  Manifest manifest;
  manifest.info = {.steps = object.at("steps"),
                   .skipped = object.at("skipped"),
                   .micro_batches = object.at("micro_batches"),
                   .config_json = object.at("config").dump()};
  if (const auto scaler = object.find("loss_scaler"); scaler != object.end())
    manifest.loss_scaler = scaler_of(*scaler);
  for (const auto& [name, extents] : object.at("parameters").items())
    manifest.parameters.emplace(name, shape_of(extents));
  manifest.pieces = pieces_of(object.at("tensors"));
  return manifest;
}

}  // namespace

std::string Manifest::Piece::name() const {
  return parameter + ":" + state + "@" + std::to_string(offset);
}

std::string pieces_text(const std::vector<Manifest::Piece>& pieces) {
  return tensors_of(pieces).dump();
}

std::vector<Manifest::Piece> pieces_from(const std::string& text) {
  return pieces_of(json::parse(text));
}

std::string manifest_text(const Manifest& manifest) {
  json parameters = json::object();
  for (const auto& [name, shape] : manifest.parameters) parameters[name] = extents_of(shape);
  json object = {{"format", format},
                 {"version", version},
                 {"steps", manifest.info.steps},
                 {"skipped", manifest.info.skipped},
                 {"micro_batches", manifest.info.micro_batches},
                 {"config", config_of(manifest.info)},
                 {"parameters", parameters},
                 {"tensors", tensors_of(manifest.pieces)}};
  if (manifest.loss_scaler) object["loss_scaler"] = json_of(*manifest.loss_scaler);
  object["checksum"] = checksum_of(object);
  return object.dump(1) + "\n";
}

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/" + manifest_name;
  const std::string text = read_text(file);
  try {
    return parse(text);
  } catch (const json::parse_error& error) {
    throw FileError("checkpoint: " + file + ": is not JSON from byte " +
                    std::to_string(error.byte) + " of " + std::to_string(text.size()) +
                    " on: it was cut short or overwritten");
  } catch (const json::exception& error) {
    // Behind the parser's own "[json.exception.out_of_range.403] ".
    const std::string what = error.what();
    throw FileError("checkpoint: " + file + ": " + what.substr(what.find("] ") + 2) +
                    "; expected a manifest that save_checkpoint wrote");
  } catch (const Error& error) {
    throw FileError("checkpoint: " + file + ": " + error.what());
  }
}

}  // namespace zg::zero
