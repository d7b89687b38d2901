#include "zero/manifest.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/file_io.h"
#include "zero/checkpoint_layout.h"
#include "zero/checksum.h"
#include "zero/safetensors_format.h"

namespace zg::zero {
namespace {

using nlohmann::json;

constexpr const char* format = "zerograd checkpoint";
constexpr int version = 1;
constexpr int deepest = 64;  // of a caller's config; what writes JSON follows its depth
constexpr int64_t most_bytes = int64_t{1} << 30;

json extents_of(const Shape& shape) {
  return std::vector<int64_t>(shape.extents().begin(), shape.extents().end());
}

// The parser's own conversion takes 1e300 and -1 too.
int64_t count_of(const json& value) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    throw FileError("expected a count, got " + value.dump().substr(0, 60));
  return value.get<int64_t>();
}

Shape shape_of(const json& extents) {
  std::vector<int64_t> values;
  if (!extents.is_array()) throw FileError("expected a shape, got " + extents.dump().substr(0, 60));
  for (const json& extent : extents) values.push_back(count_of(extent));
  if (!is_addressable(values))
    throw FileError("shape " + extents.dump().substr(0, 60) + " overflows 64 bits");
  return Shape(std::span<const int64_t>(values));
}

std::string checksum_of(const json& manifest) {
  const std::string text = manifest.dump();  // keys in order, so equal content is equal text
  return checksum(std::as_bytes(std::span(text)));
}

std::string written_as(const json& manifest) { return manifest.dump(1) + "\n"; }

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
  const char* end = name.data() + name.size();
  bool whole = false;
  if (at != std::string::npos && colon != std::string::npos)
    whole = std::from_chars(name.data() + at + 1, end, offset).ptr == end;
  const std::string file = tensor.at("file");
  if (!whole || offset < 0)
    throw FileError("tensor name '" + name + "'; expected PARAMETER:STATE@OFFSET");
  if (!is_file_name(file))
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

void add_pieces(const json& tensors, Manifest& manifest) {
  for (const json& tensor : tensors) manifest.pieces.push_back(piece_of(tensor));
}

json json_of(const LossScaler::State& state) {
  return {{"scale", state.scale},
          {"hysteresis", state.hysteresis},
          {"iteration", state.iteration},
          {"last_overflow", state.last_overflow}};
}

LossScaler::State scaler_of(const json& object) {
  const bool never = object.at("last_overflow") == -1;
  return {.scale = object.at("scale"),
          .hysteresis = count_of(object.at("hysteresis")),
          .iteration = count_of(object.at("iteration")),
          .last_overflow = never ? -1 : count_of(object.at("last_overflow"))};
}

json parse_json(const std::string& text) {
  return json::parse(text, [](int depth, json::parse_event_t, json&) {
    if (depth > deepest)
      throw FileError("is nested deeper than " + std::to_string(deepest) + " levels");
    return true;
  });
}

Manifest parse(const std::string& text) {
  json object = parse_json(text);
  if (object.value("format", "") != format)
    throw FileError(std::string("expected format '") + format + "'");
  if (object.at("version") != version)
    throw FileError("is of version " + object.at("version").dump() + "; expected " +
                    std::to_string(version));
  const std::string written = object.at("checksum");
  object.erase("checksum");
  if (checksum_of(object) != written) throw FileError("is damaged: its checksum differs");
  object["checksum"] = written;
  if (written_as(object) != text)
    throw FileError("is damaged: between its values stands something else than was written");
  Manifest manifest;
  if (!object.at("config").is_object()) throw FileError("config: expected an object");
  manifest.info = {.steps = count_of(object.at("steps")),
                   .skipped = count_of(object.at("skipped")),
                   .micro_batches = count_of(object.at("micro_batches")),
                   .config_json = object.at("config").dump()};
  if (const auto scaler = object.find("loss_scaler"); scaler != object.end())
    manifest.loss_scaler = scaler_of(*scaler);
  for (const auto& [name, extents] : object.at("parameters").items())
    manifest.parameters.emplace(name, shape_of(extents));
  add_pieces(object.at("tensors"), manifest);
  for (const Manifest::Piece& piece : manifest.pieces)
    if (!manifest.parameters.contains(piece.parameter))
      throw FileError("tensor '" + piece.name() + "' is of none of its parameters");
  if (const auto headers = object.find("headers"); headers != object.end())
    headers->get_to(manifest.headers);
  return manifest;
}

}  // namespace

std::string Manifest::Piece::name() const {
  return parameter + ":" + state + "@" + std::to_string(offset);
}

std::string account_text(const Manifest& shard) {
  return json{{"headers", shard.headers}, {"tensors", tensors_of(shard.pieces)}}.dump();
}

void add_account(const std::string& text, Manifest& manifest) {
  const json account = json::parse(text);
  add_pieces(account.at("tensors"), manifest);
  for (const auto& [file, checksum] : account.at("headers").items())
    manifest.headers.emplace(file, checksum);
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
  if (!manifest.headers.empty()) object["headers"] = manifest.headers;
  object["checksum"] = checksum_of(object);
  return written_as(object);
}

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/" + manifest_name;
  return manifest_from(read_text(file, most_bytes), file);
}

Manifest manifest_from(const std::string& text, const std::string& file) {
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
