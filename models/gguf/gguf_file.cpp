#include "zerograd/models/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr uint32_t version = 3;
constexpr int64_t alignment = 32;  // of each tensor's first byte; the format's default
// Types of values in the metadata.
constexpr uint32_t type_u32 = 4, type_i32 = 5, type_f32 = 6, type_bool = 7, type_string = 8,
                   type_array = 9;

template <class T>
void append(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

void append_text(std::string& bytes, const std::string& text) {
  append(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

template <class T>
void append_array(std::string& bytes, uint32_t type, const std::vector<T>& values) {
  append(bytes, type);
  append(bytes, static_cast<uint64_t>(values.size()));
  for (const T& value : values)
    if constexpr (std::is_same_v<T, std::string>)
      append_text(bytes, value);
    else
      append(bytes, value);
}

/// ggml's number of a type.
uint32_t ggml_type(GGUFType type) {
  constexpr uint32_t numbers[] = {0, 1, 30, 8};
  return numbers[static_cast<size_t>(type)];
}

int64_t bytes_of(const GGUFTensor& tensor) {
  const int64_t numel = tensor.shape.numel();
  if (tensor.type == GGUFType::q8_0) return numel / q8_0_block * (2 + q8_0_block);
  return numel * (tensor.type == GGUFType::f32 ? 4 : 2);
}

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// The file's bytes before the first tensor.
std::string header_of(const GGUFMetadata& metadata, const std::vector<GGUFTensor>& tensors) {
  std::string header = "GGUF";
  append(header, version);
  append(header, static_cast<uint64_t>(tensors.size()));
  append(header, metadata.count());
  header += metadata.bytes();
  int64_t offset = 0;
  for (const GGUFTensor& tensor : tensors) {
    append_text(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.rank()));
    for (int axis = tensor.shape.rank() - 1; axis >= 0; --axis)
      append(header, static_cast<uint64_t>(tensor.shape[axis]));
    append(header, ggml_type(tensor.type));
    append(header, static_cast<uint64_t>(offset));
    offset += aligned(bytes_of(tensor));
  }
  header.resize(static_cast<size_t>(aligned(std::ssize(header))));
  return header;
}

template <class T>
void append_value(std::vector<std::byte>& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

f16 to_f16(float value, float original, const std::string& where) {
  const f16 rounded(value);
  if (std::isinf(static_cast<float>(rounded)) && std::isfinite(value))
    raise<FileError>("{} has the value {}, which f16 cannot hold; try bf16 or f32", where,
                     original);
  return rounded;
}

/// One block of q8_0, as ggml's quantize_row_q8_0_ref().
void append_block(std::vector<std::byte>& bytes, std::span<const float> values,
                  const std::string& where) {
  float largest = 0.0f;
  for (const float value : values) {
    if (!std::isfinite(value))
      raise<FileError>("{} has the value {}; expected finite values for q8_0", where, value);
    largest = std::max(largest, std::fabs(value));
  }
  const float d = largest / 127.0f;
  append_value(bytes, to_f16(d, largest, where));
  float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  if (!std::isfinite(inverse)) inverse = 0.0f;  // the scale is 0 in f16
  for (const float value : values)
    append_value(bytes, static_cast<int8_t>(std::round(value * inverse)));
}

}  // namespace

const char* name_of(GGUFType type) {
  constexpr const char* names[] = {"f32", "f16", "bf16", "q8_0"};
  return names[static_cast<size_t>(type)];
}

void GGUFMetadata::begin(const std::string& key, uint32_t type) {
  append_text(bytes_, key);
  append(bytes_, type);
  ++count_;
}

void GGUFMetadata::add(const std::string& key, const std::string& value) {
  begin(key, type_string);
  append_text(bytes_, value);
}
void GGUFMetadata::add(const std::string& key, uint32_t value) {
  begin(key, type_u32);
  append(bytes_, value);
}
void GGUFMetadata::add(const std::string& key, float value) {
  begin(key, type_f32);
  append(bytes_, value);
}
void GGUFMetadata::add_flag(const std::string& key, bool value) {
  begin(key, type_bool);
  append(bytes_, static_cast<uint8_t>(value));
}
void GGUFMetadata::add(const std::string& key, const std::vector<std::string>& values) {
  begin(key, type_array);
  append_array(bytes_, type_string, values);
}
void GGUFMetadata::add(const std::string& key, const std::vector<int32_t>& values) {
  begin(key, type_array);
  append_array(bytes_, type_i32, values);
}
void GGUFMetadata::add(const std::string& key, const std::vector<float>& values) {
  begin(key, type_array);
  append_array(bytes_, type_f32, values);
}

std::vector<std::byte> gguf_values(GGUFType type, std::span<const float> values,
                                   const std::string& where) {
  std::vector<std::byte> bytes;
  bytes.reserve(values.size_bytes());
  switch (type) {
    case GGUFType::f32: {
      const auto raw = std::as_bytes(values);
      bytes.assign(raw.begin(), raw.end());
      break;
    }
    case GGUFType::f16:
      for (const float value : values) append_value(bytes, to_f16(value, value, where));
      break;
    case GGUFType::bf16:
      for (const float value : values) append_value(bytes, bf16(value));
      break;
    case GGUFType::q8_0:
      for (size_t begin = 0; begin < values.size(); begin += q8_0_block)
        append_block(bytes, values.subspan(begin, q8_0_block), where);
      break;
  }
  return bytes;
}

struct GGUFWriterState {
  File file;
  std::vector<GGUFTensor> tensors;
  size_t next = 0;      // index of the tensor to write
  int64_t written = 0;  // number of values of that tensor that are written
};

GGUFWriter::GGUFWriter(const std::string& path, const GGUFMetadata& metadata,
                       const std::vector<GGUFTensor>& tensors)
    : state_(std::make_unique<GGUFWriterState>(GGUFWriterState{File::create(path), tensors})) {
  const std::string header = header_of(metadata, tensors);
  int64_t bytes = std::ssize(header);
  for (const GGUFTensor& tensor : tensors) bytes += aligned(bytes_of(tensor));
  state_->file.reserve(bytes);
  state_->file.write(std::as_bytes(std::span(header)));
}

GGUFWriter::~GGUFWriter() = default;

void GGUFWriter::write(std::span<const float> values) {
  GGUFWriterState& s = *state_;
  const auto fail = [&](const std::string& what) {
    raise<FileError>("gguf: writing {}: {}", s.file.path(), what);
  };
  if (s.next == s.tensors.size()) fail("all tensors are written already");
  const GGUFTensor& tensor = s.tensors[s.next];
  s.written += std::ssize(values);
  if (s.written > tensor.shape.numel())
    fail(fmt::format("'{}' takes {} values, got {}", tensor.name, tensor.shape.numel(), s.written));
  s.file.write(gguf_values(tensor.type, values, "gguf: '" + tensor.name + "'"));
  if (s.written < tensor.shape.numel()) return;
  const int64_t bytes = bytes_of(tensor);
  s.file.write(std::vector<std::byte>(static_cast<size_t>(aligned(bytes) - bytes)));
  ++s.next;
  s.written = 0;
}

void GGUFWriter::finish() {
  GGUFWriterState& s = *state_;
  if (s.next != s.tensors.size())
    raise<FileError>("gguf: writing {}: '{}' was declared but not written", s.file.path(),
                     s.tensors[s.next].name);
  s.file.sync();
  s.file.close();
}

}  // namespace zg::models
