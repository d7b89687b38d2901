#include "zerograd/runtime/storage/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors_format.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// --- reading ---

struct SafetensorsReaderState {
  File file;
  SafetensorsHeader header;
  std::string header_checksum;
};

namespace {

std::string checksum_of(uint64_t length, const std::string& header) {
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(&length, 1)));
  checksum.update(std::as_bytes(std::span(header)));
  return checksum.hex();
}

SafetensorsReaderState read_header(File file) {
  const int64_t file_bytes = file.size();
  const auto fail = [&](const std::string& what) {
    raise<FileError>("safetensors: {}: {}", file.path(), what);
  };
  if (file_bytes < safetensors_length_bytes)
    fail(fmt::format("has {} bytes; expected at least {}", file_bytes, safetensors_length_bytes));
  uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > uint64_t{safetensors_header_limit})
    fail(fmt::format("not a safetensors file: the header claims {} bytes; expected at most {}",
                     length, safetensors_header_limit));
  const int64_t data_begin = safetensors_length_bytes + static_cast<int64_t>(length);
  if (data_begin > file_bytes)
    fail(fmt::format("the header claims {} bytes of a file of {}", length, file_bytes));
  std::string text(length, '\0');
  file.read_at(safetensors_length_bytes, std::as_writable_bytes(std::span(text)));
  SafetensorsHeader header = parse_safetensors_header(file.path(), text, data_begin, file_bytes);
  return {std::move(file), std::move(header), checksum_of(length, text)};
}

template <class T>
void widen(std::span<const std::byte> bytes, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(value);
  }
}

void widen(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  if (dtype == DType::f32) return widen<float>(bytes, values);
  if (dtype == DType::f64) return widen<double>(bytes, values);
  if (dtype == DType::bf16) return widen<bf16>(bytes, values);
  return widen<f16>(bytes, values);
}

constexpr int64_t chunk_elements = int64_t{1} << 20;

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path)
    : state_(std::make_unique<SafetensorsReaderState>(read_header(File::open(path)))) {}
SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;

const std::map<std::string, SafetensorsReader::Entry>& SafetensorsReader::entries() const {
  return state_->header.entries;
}
const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return state_->header.metadata;
}
bool SafetensorsReader::contains(const std::string& name) const { return entries().contains(name); }
const std::string& SafetensorsReader::header_checksum() const { return state_->header_checksum; }

const SafetensorsReader::Entry& SafetensorsReader::floats(const std::string& name) const {
  const auto found = entries().find(name);
  if (found == entries().end())
    raise<FileError>("safetensors: {}: has no tensor '{}'", state_->file.path(), name);
  if (!is_floating(found->second.dtype))
    raise<FileError>("safetensors: {}: tensor '{}' holds {}; expected f64, f32, bf16 or f16",
                     state_->file.path(), name,
                     found->second.foreign.empty() ? name_of(found->second.dtype)
                                                   : found->second.foreign.c_str());
  return found->second;
}

void SafetensorsReader::for_floats(const std::string& name, const Visit& visit) const {
  for_floats(name, 0, floats(name).shape.numel(), visit);
}

void SafetensorsReader::for_floats(const std::string& name, int64_t begin, int64_t numel,
                                   const Visit& visit) const {
  const Entry& entry = floats(name);
  const int64_t size = size_of(entry.dtype), end = begin + numel;
  std::vector<std::byte> bytes;
  std::vector<float> values;
  for (; begin < end; begin += chunk_elements) {
    const int64_t chunk = std::min(chunk_elements, end - begin);
    bytes.resize(static_cast<size_t>(chunk * size));
    values.resize(static_cast<size_t>(chunk));
    state_->file.read_at(entry.begin + begin * size, bytes);
    widen(entry.dtype, bytes, values);
    visit(values);
  }
}

std::vector<float> SafetensorsReader::read_floats(const std::string& name) const {
  return read_floats(name, 0, floats(name).shape.numel());
}

std::vector<float> SafetensorsReader::read_floats(const std::string& name, int64_t begin,
                                                  int64_t numel) const {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(numel));
  for_floats(name, begin, numel, [&](std::span<const float> chunk) {
    values.insert(values.end(), chunk.begin(), chunk.end());
  });
  return values;
}

// --- writing ---

struct SafetensorsWriterState {
  SafetensorsWriterState(const std::string& path,
                         const std::vector<SafetensorsWriter::Entry>& entries)
      : unfinished(path), entries(entries) {}

  int64_t expected() const { return entries[next].shape.numel() * size_of(entries[next].dtype); }
  // Callers write no bytes for an empty tensor, so its entry is skipped.
  void skip_empty() {
    while (next < entries.size() && expected() == 0) ++next;
  }

  UnfinishedFile unfinished;
  File& file = unfinished.file();
  const std::string& path = unfinished.path();
  const std::vector<SafetensorsWriter::Entry> entries;
  std::string header_checksum;
  size_t next = 0;
  int64_t next_bytes = 0;  // bytes of entries[next] written so far
};

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  raise<FileError>("safetensors: writing {}: {}", path, what);
}

std::string header_text(const std::string& path,
                        const std::vector<SafetensorsWriter::Entry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names = {safetensors_metadata};
  std::string text = "{";
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    text += text.size() > 1 ? "," : "";
    try {
      text += nlohmann::json(name).dump() + ":" + value.dump();
    } catch (const nlohmann::json::exception& error) {
      refuse(path, std::string("a name is not UTF-8: ") + error.what());
    }
  };
  if (!metadata.empty()) add(safetensors_metadata, metadata);
  int64_t end = 0;
  for (const SafetensorsWriter::Entry& entry : entries) {
    if (!names.insert(entry.name).second)
      refuse(path, fmt::format("the name '{}' is taken", entry.name));
    const int64_t begin = end;
    end += entry.shape.numel() * size_of(entry.dtype);
    const auto extents = entry.shape.extents();
    add(entry.name, {{"dtype", safetensors_name(entry.dtype)},
                     {"shape", std::vector<int64_t>(extents.begin(), extents.end())},
                     {"data_offsets", {begin, end}}});
  }
  text += "}";
  while (text.size() % safetensors_alignment != 0) text += ' ';
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries,
                                     const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(path, entries, metadata);
  state_ = std::make_unique<SafetensorsWriterState>(path, entries);
  const uint64_t length = header.size();
  state_->header_checksum = checksum_of(length, header);
  int64_t bytes = safetensors_length_bytes + static_cast<int64_t>(length);
  for (const Entry& entry : entries) bytes += entry.shape.numel() * size_of(entry.dtype);
  state_->file.reserve(bytes);
  state_->file.write(std::as_bytes(std::span(&length, 1)));
  state_->file.write(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;

const std::string& SafetensorsWriter::header_checksum() const { return state_->header_checksum; }

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  SafetensorsWriterState& s = *state_;
  if (s.next == s.entries.size()) refuse(s.path, "all tensors are written already");
  const int64_t size = std::ssize(bytes);
  if (s.next_bytes != 0 || size != s.expected())
    refuse(s.path, fmt::format("tensor '{}' takes {} bytes, got {}", s.entries[s.next].name,
                               s.expected() - s.next_bytes, size));
  s.file.write(bytes);
  ++s.next;
}

void SafetensorsWriter::write_part(std::span<const std::byte> bytes) {
  SafetensorsWriterState& s = *state_;
  s.skip_empty();
  if (s.next == s.entries.size()) refuse(s.path, "all tensors are written already");
  const int64_t left = s.expected() - s.next_bytes, size = std::ssize(bytes);
  if (size > left)
    refuse(s.path, fmt::format("tensor '{}' takes {} more bytes, got {}", s.entries[s.next].name,
                               left, size));
  s.file.write(bytes);
  s.next_bytes += size;
  if (size < left) return;
  ++s.next;
  s.next_bytes = 0;
}

void SafetensorsWriter::write_floats(std::span<const float> values) {
  SafetensorsWriterState& s = *state_;
  const DType dtype = s.next < s.entries.size() ? s.entries[s.next].dtype : DType::f32;
  if (dtype == DType::f32) return write(std::as_bytes(values));
  if (dtype == DType::bf16) {
    const std::vector<bf16> rounded(values.begin(), values.end());
    return write(std::as_bytes(std::span(rounded)));
  }
  if (dtype != DType::f16)
    refuse(s.path,
           fmt::format("tensor '{}' is declared as {}, got f32", s.entries[s.next].name, dtype));
  const std::vector<f16> rounded(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && std::isinf(static_cast<float>(rounded[i])))
      refuse(s.path, fmt::format("tensor '{}' has the value {}, which f16 cannot hold; try bf16 or "
                                 "f32",
                                 s.entries[s.next].name, values[i]));
  write(std::as_bytes(std::span(rounded)));
}

void SafetensorsWriter::finish() {
  SafetensorsWriterState& s = *state_;
  s.skip_empty();
  if (s.next != s.entries.size())
    refuse(s.path, fmt::format("tensor '{}' was declared but not written", s.entries[s.next].name));
  s.unfinished.finish();
}

// --- folder ---

namespace {

using nlohmann::json;

constexpr const char* single = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};

}  // namespace

std::map<std::string, std::string> weight_map_from(const std::string& text,
                                                   const std::string& path) {
  const auto fail = [&](const std::string& what) { raise<FileError>("index: {}: {}", path, what); };
  const json root = parse_json_object(text, "index: " + path);
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object()) fail("expected an object with a weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_file_name(file.get_ref<const std::string&>()))
      fail(fmt::format("tensor '{}' is in {}; expected the name of a file beside it", tensor,
                       file.dump().substr(0, 60)));
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

SafetensorsFolder::SafetensorsFolder(const std::string& folder) : path_(folder) {
  const auto has = [&](const std::string& name) { return path_exists(path_ + "/" + name); };
  if (has(single)) {
    const SafetensorsReader& file = files_.try_emplace(single, path_ + "/" + single).first->second;
    for (const auto& entry : file.entries()) place_of_.emplace(entry.first, &file);
    return;
  }
  if (has(index_name)) {
    read_index(read_text(path_ + "/" + index_name, safetensors_header_limit));
    return;
  }
  for (const char* pickle : pickles) refuse_pickle(path_, pickle, single);
  raise<FileError>("{}: expected a folder with {} or {}", path_, single, index_name);
}

void refuse_pickle(const std::string& folder, const char* pickle, const char* expected) {
  if (path_exists(folder + "/" + pickle))
    raise<Unsupported>(
        "{}: has {}, a pickle, which can run any program when it is read; expected {}; try saving "
        "it with safe_serialization",
        folder, pickle, expected);
}

void SafetensorsFolder::read_index(const std::string& text) {
  const auto files = weight_map_from(text, path_ + "/" + index_name);
  for (const auto& [tensor, file] : files) {
    if (!files_.contains(file) && !path_exists(path_ + "/" + file))
      raise<FileError>("{}: has no {}; expected it, because {} says that it has '{}'", path_, file,
                       index_name, tensor);
    const SafetensorsReader& reader = files_.try_emplace(file, path_ + "/" + file).first->second;
    if (reader.contains(tensor))
      place_of_.emplace(tensor, &reader);
    else
      absent_.emplace(tensor, file);
  }
  for (const auto& [file, reader] : files_)
    for (const auto& entry : reader.entries())
      if (const auto place = place_of_.find(entry.first);
          place == place_of_.end() || place->second != &reader)
        unlisted_.push_back(entry.first);
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& place : place_of_) names.push_back(place.first);
  return names;
}

const Shape& SafetensorsFolder::shape(const std::string& name) const {
  return place_of_.at(name)->floats(name).shape;
}

DType SafetensorsFolder::dtype(const std::string& name) const {
  return place_of_.at(name)->entries().at(name).dtype;
}

std::vector<float> SafetensorsFolder::read_floats(const std::string& name) const {
  return place_of_.at(name)->read_floats(name);
}

std::vector<float> SafetensorsFolder::read_floats(const std::string& name, int64_t begin,
                                                  int64_t numel) const {
  return place_of_.at(name)->read_floats(name, begin, numel);
}

}  // namespace zg
