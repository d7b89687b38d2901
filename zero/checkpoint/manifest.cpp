#include "zerograd/zero/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors_format.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::zero {
namespace {

using nlohmann::json;

constexpr const char* format = "zerograd checkpoint";
constexpr int version = 1, version_with_slices = 2;
constexpr int64_t max_bytes = int64_t{1} << 30;
constexpr int64_t largest_count = int64_t{1} << 53;  // so that the sum of two does not overflow

json extents_of(const Shape& shape) {
  return std::vector<int64_t>(shape.extents().begin(), shape.extents().end());
}

// The parser's own conversion is not used, because it also accepts 1e300 and -1.
int64_t count_of(const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{largest_count})
    throw FileError("expected a count up to 2^53, got " + value.dump().substr(0, 60));
  return value.get<int64_t>();
}

Shape shape_of(const json& extents) {
  std::vector<int64_t> values;
  if (!extents.is_array()) throw FileError("expected a shape, got " + extents.dump().substr(0, 60));
  for (const json& extent : extents) values.push_back(count_of(extent));
  if (!checked_product(values))
    raise<FileError>("shape {} overflows 64 bits", extents.dump().substr(0, 60));
  return Shape(std::span<const int64_t>(values));
}

std::string checksum_of(const json& manifest) {
  const std::string text = manifest.dump();  // keys are sorted, so equal content gives equal text
  return checksum(std::as_bytes(std::span(text)));
}

std::string written_as(const json& manifest) { return manifest.dump(1) + "\n"; }

json config_of(const CheckpointInfo& info) {
  if (info.config_json.empty()) return json::object();
  try {
    return parse_json_object(info.config_json, "config_json");
  } catch (const FileError& error) {
    raise<ConfigError>("save_checkpoint: {}; config_json is '{}'; expected an object", error.what(),
                       printable(info.config_json));
  }
}

/// Parses counts that are separated by the characters of `marks`: "12x3+4" with marks "x+" gives
/// 12, 3 and 4. Empty if the text does not match.
std::vector<int64_t> counts_of(std::string_view text, std::string_view marks) {
  std::vector<int64_t> counts;
  for (size_t i = 0; i <= marks.size(); ++i) {
    int64_t count = -1;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || count < 0 || text.front() == '-') return {};
    counts.push_back(count);
    text.remove_prefix(static_cast<size_t>(rest - text.data()));
    if (i == marks.size()) break;
    if (!text.starts_with(marks[i])) return {};
    text.remove_prefix(1);
  }
  return text.empty() ? counts : std::vector<int64_t>();
}

// The parameter's name may contain any character, so the name is parsed from the right.
Manifest::Piece piece_of(const json& tensor) {
  const std::string name = tensor.at("name");
  const size_t at = name.rfind('@'), colon = name.rfind(':', at);
  std::vector<int64_t> place;
  if (at != std::string::npos && colon != std::string::npos) {
    const std::string_view text = std::string_view(name).substr(at + 1);
    place = counts_of(text, text.find('/') == std::string::npos ? "" : "/xx/+");
  }
  const std::string file = tensor.at("file");
  if (place.empty())
    raise<FileError>(
        "tensor name '{}'; expected PARAMETER:STATE@OFFSET, or that and "
        "/OUTERxEXTENTxINNER/BEGIN+ROWS",
        name);
  if (!is_file_name(file))
    raise<FileError>("tensor '{}' is in '{}'; expected a file beside it", name, file);
  Manifest::Piece piece{.parameter = name.substr(0, colon),
                        .state = name.substr(colon + 1, at - colon - 1),
                        .offset = place[0],
                        .shape = shape_of(tensor.at("shape")),
                        .file = file,
                        .checksum = tensor.at("xxh3_128")};
  if (place.size() > 1)
    piece.slice = Slice{.outer = place[1],
                        .extent = place[2],
                        .begin = place[4],
                        .rows = place[5],
                        .inner = place[3]};
  const int64_t numel = piece.shape.numel();
  if (const auto blocks = tensor.find("blocks"); blocks != tensor.end()) {
    blocks->get_to(piece.blocks);
    if (std::ssize(piece.blocks) != (numel - 1) / block_elements + 1)
      raise<FileError>(
          "tensor '{}' has checksums of {} blocks; expected one for every {} of its {} elements",
          name, piece.blocks.size(), block_elements, numel);
  }
  return piece;
}

[[noreturn]] void refuse_place(const Manifest::Piece& piece, const Shape& parameter) {
  raise<FileError>("tensor '{}' {} is not a part of its parameter {}", piece.name(), piece.shape,
                   parameter);
}

/// Throws unless the piece's elements are among the `numel` of its state, because readers use its
/// indices unchecked.
void check_place(const Manifest::Piece& piece, const Shape& parameter, int64_t numel) {
  if (!piece.slice) {
    if (piece.offset > numel || piece.shape.numel() > numel - piece.offset)
      refuse_place(piece, parameter);
    return;
  }
  const Slice& slice = *piece.slice;
  const int64_t extents[] = {slice.outer, slice.extent, slice.inner};
  if (!checked_product(extents) || slice.whole_numel() != numel || slice.begin > slice.extent ||
      slice.rows > slice.extent - slice.begin || piece.offset > slice.numel() ||
      piece.shape.numel() > slice.numel() - piece.offset)
    refuse_place(piece, parameter);
}

json tensors_of(const std::vector<Manifest::Piece>& pieces) {
  json tensors = json::array();
  for (const Manifest::Piece& piece : pieces) {
    tensors.push_back({{"name", piece.name()},
                       {"dtype", "F32"},
                       {"shape", extents_of(piece.shape)},
                       {"file", piece.file},
                       {"xxh3_128", piece.checksum}});
    if (!piece.blocks.empty()) tensors.back()["blocks"] = piece.blocks;
  }
  return tensors;
}

void add_pieces(const json& tensors, Manifest& manifest) {
  for (const json& tensor : tensors) manifest.pieces.push_back(piece_of(tensor));
}

json json_of(const std::map<std::string, Shape>& parameters) {
  json shapes = json::object();
  for (const auto& [name, shape] : parameters) shapes[name] = extents_of(shape);
  return shapes;
}

void add_parameters(const json& shapes, Manifest& manifest) {
  for (const auto& [name, extents] : shapes.items())
    manifest.parameters.emplace(name, shape_of(extents));
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

/// The states that an optimizer of the library with this number of moments has.
std::vector<std::string> moment_names(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 1; i <= count; ++i) names.push_back(fmt::format("moment{}", i));
  return names;
}

void read_optimizer(const json& optimizer, Manifest& manifest) {
  optimizer.at("rule").get_to(manifest.optimizer);
  const int64_t moments = count_of(optimizer.at("moments"));
  if (moments > 2) raise<FileError>("optimizer: expected 0 to 2 moments, got {}", optimizer.dump());
  manifest.states = moment_names(moments);
  if (const auto states = optimizer.find("states"); states != optimizer.end())
    states->get_to(manifest.states);
  manifest.shared = optimizer.value("shared", false);
  if (const auto options = optimizer.find("options"); options != optimizer.end())
    options->get_to(manifest.options);
}

Manifest parse(json object, const std::string& text) {
  if (object.value("format", "") != format)
    throw FileError(std::string("expected format '") + format + "'");
  if (object.at("version") != version && object.at("version") != version_with_slices)
    raise<FileError>("is of version {}; expected {} or {}", object.at("version").dump(), version,
                     version_with_slices);
  const std::string written = object.at("checksum");
  object.erase("checksum");
  if (checksum_of(object) != written) throw FileError("is damaged: its checksum differs");
  object["checksum"] = written;
  if (written_as(object) != text) throw FileError("is damaged: it has other text than was written");
  Manifest manifest{.checksum = written};
  if (!object.at("config").is_object()) throw FileError("config: expected an object");
  manifest.info = {.steps = count_of(object.at("steps")),
                   .skipped = count_of(object.at("skipped")),
                   .micro_batches = count_of(object.at("micro_batches")),
                   .config_json = object.at("config").dump()};
  if (manifest.info.skipped > manifest.info.steps)
    raise<FileError>("skipped: expected at most the {} steps, got {}", manifest.info.steps,
                     manifest.info.skipped);
  if (const auto scaler = object.find("loss_scaler"); scaler != object.end())
    manifest.loss_scaler = scaler_of(*scaler);
  if (const auto base = object.find("base"); base != object.end()) {
    manifest.info.base = {.path = base->at("path"), .hash = base->at("hash")};
    if (manifest.info.base.path.find('\0') != std::string::npos)
      throw FileError("base: expected a path without zero bytes");
  }
  if (const auto optimizer = object.find("optimizer"); optimizer != object.end())
    read_optimizer(*optimizer, manifest);
  add_parameters(object.at("parameters"), manifest);
  add_pieces(object.at("tensors"), manifest);
  if (manifest.pieces.empty()) throw FileError("has no tensors; expected those of a model");
  std::set<std::string> names;  // a duplicate name would be read twice
  for (const Manifest::Piece& piece : manifest.pieces) {
    const auto parameter = manifest.parameters.find(piece.parameter);
    if (parameter == manifest.parameters.end())
      raise<FileError>("tensor '{}' is of none of its parameters", piece.name());
    if (!names.insert(piece.name()).second)
      raise<FileError>("tensor '{}' is there twice", piece.name());
    check_place(piece, parameter->second, manifest.numel_of(piece.parameter, piece.state));
  }
  if (const auto headers = object.find("headers"); headers != object.end())
    headers->get_to(manifest.headers);
  if (const auto files = object.find("files"); files != object.end())
    files->get_to(manifest.file_checksums);
  for (const auto& file : manifest.file_checksums)
    if (!is_own_file_name(file.first))
      raise<FileError>("files: '{}'; expected the name of a file that it may have", file.first);
  return manifest;
}

}  // namespace

bool is_own_file_name(const std::string& name) {
  constexpr const char* letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 200 && name.front() != '.' &&
         name.find_first_not_of(letters) == std::string::npos && !name.starts_with(shard_prefix) &&
         name != manifest_name;
}

void PieceChecksum::update(std::span<const float> values) {
  whole_.update(std::as_bytes(values));
  while (!values.empty()) {
    if (filled_ == block_elements) {
      blocks_.push_back(block_->hex());
      block_ = std::make_unique<Checksum>();
      filled_ = 0;
    }
    const auto count = std::min(values.size(), static_cast<size_t>(block_elements - filled_));
    block_->update(std::as_bytes(values.first(count)));
    filled_ += static_cast<int64_t>(count);
    values = values.subspan(count);
  }
}

std::vector<std::string> PieceChecksum::blocks() {
  if (!blocks_.empty()) blocks_.push_back(block_->hex());
  return blocks_;
}

std::string Manifest::Piece::name() const {
  std::string text = fmt::format("{}:{}@{}", parameter, state, offset);
  if (slice)
    text += fmt::format("/{}x{}x{}/{}+{}", slice->outer, slice->extent, slice->inner, slice->begin,
                        slice->rows);
  return text;
}

int64_t Manifest::numel_of(const std::string& parameter, const std::string& state) const {
  if (state != "master" && std::ranges::find(states, state) == states.end())
    for (const Piece& piece : pieces)
      if (piece.parameter == parameter && piece.state == state) return piece.shape.numel();
  return parameters.at(parameter).numel();
}

std::string account_text(const Manifest& shard) {
  return json{{"headers", shard.headers},
              {"parameters", json_of(shard.parameters)},
              {"tensors", tensors_of(shard.pieces)}}
      .dump();
}

void add_account(const std::string& text, Manifest& manifest) {
  const json account = parse_json_object(text, "account of a rank");
  add_parameters(account.at("parameters"), manifest);
  add_pieces(account.at("tensors"), manifest);
  for (const auto& [file, checksum] : account.at("headers").items())
    manifest.headers.emplace(file, checksum);
}

std::string manifest_text(const Manifest& manifest) {
  const bool has_slices = std::ranges::any_of(
      manifest.pieces, [](const auto& piece) { return piece.slice.has_value(); });
  json object = {{"format", format},
                 {"version", has_slices ? version_with_slices : version},
                 {"steps", manifest.info.steps},
                 {"skipped", manifest.info.skipped},
                 {"micro_batches", manifest.info.micro_batches},
                 {"config", config_of(manifest.info)},
                 {"parameters", json_of(manifest.parameters)},
                 {"tensors", tensors_of(manifest.pieces)}};
  if (manifest.loss_scaler) object["loss_scaler"] = json_of(*manifest.loss_scaler);
  if (const Manifest usual;
      manifest.optimizer != usual.optimizer || manifest.shared || manifest.states != usual.states) {
    const std::vector<std::string>& states = manifest.states;
    const bool has_moments = states.size() <= 2 && states == moment_names(std::ssize(states));
    json& optimizer = object["optimizer"] = {{"rule", manifest.optimizer},
                                             {"moments", has_moments ? states.size() : 0}};
    if (!has_moments) optimizer["states"] = states;
    if (manifest.shared) optimizer["shared"] = true;
    if (!manifest.options.empty()) optimizer["options"] = manifest.options;
  }
  if (const CheckpointInfo::Base& base = manifest.info.base; !base.path.empty())
    object["base"] = {{"path", base.path}, {"hash", base.hash}};
  if (!manifest.headers.empty()) object["headers"] = manifest.headers;
  if (!manifest.file_checksums.empty()) object["files"] = manifest.file_checksums;
  object["checksum"] = checksum_of(object);
  return written_as(object);
}

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/" + manifest_name;
  return manifest_from(read_text(file, max_bytes), file);
}

Manifest manifest_from(const std::string& text, const std::string& file) {
  json object = parse_json_object(text, "checkpoint: " + file,
                                  {.advice = ": it was cut short or overwritten"});
  try {
    return parse(std::move(object), text);
  } catch (const json::exception& error) {
    // Skips the parser's prefix "[json.exception.out_of_range.403] ".
    const std::string what = error.what();
    raise<FileError>("checkpoint: {}: {}; expected a manifest that save_checkpoint wrote", file,
                     what.substr(what.find("] ") + 2));
  } catch (const Error& error) {
    raise<FileError>("checkpoint: {}: {}", file, error.what());
  }
}

}  // namespace zg::zero
