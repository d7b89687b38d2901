#include "zerograd/runtime/storage/tensor_files.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/npy_format.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

ByteRange range_of(const File& file, int64_t begin, int64_t bytes) {
  return {[&file, begin](int64_t offset, int64_t count) {
            std::string text(static_cast<size_t>(count), '\0');
            file.read_at(begin + offset, std::as_writable_bytes(std::span(text)));
            return text;
          },
          bytes};
}

Tensor tensor_of(std::string_view bytes, const Shape& shape, DType dtype, const Device& device) {
  const Tensor tensor = Tensor::empty(shape, dtype, device);
  if (tensor.raw() && !bytes.empty())
    device.compute().copy(tensor.raw(), bytes.data(), bytes.size());
  return tensor;
}

std::string bytes_of(const Tensor& tensor) {
  if (!tensor) throw ShapeError("save: a tensor is absent; expected one with a shape and a dtype");
  const std::vector<uint8_t> bytes =
      tensor.alias(tensor.byte_offset(), {tensor.bytes()}, DType::u8).to_host<uint8_t>();
  return {bytes.begin(), bytes.end()};
}

bool is_plan(const Tensor& tensor) { return tensor.device().type() == Device::Type::meta; }

/// Elements in columns, the first axis fastest, as rows.
std::string rows_of_columns(const std::string& columns, const Shape& shape, size_t size) {
  std::string rows(columns.size(), '\0');
  Strides strides{};
  int64_t stride = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
  for (int64_t i = 0; i < shape.numel(); ++i) {
    int64_t rest = i, from = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      from += rest % shape[axis] * strides[static_cast<size_t>(axis)];
      rest /= shape[axis];
    }
    rows.replace(static_cast<size_t>(i) * size, size, columns, static_cast<size_t>(from) * size,
                 size);
  }
  return rows;
}

Tensor read_npy(const std::string& name, const ByteRange& file, const Device& device) {
  const NpyHeader header = parse_npy_header(name, file);
  const auto size = static_cast<size_t>(size_of(header.dtype));
  std::string bytes = file.read(header.data_begin, file.bytes - header.data_begin);
  if (header.big_endian)
    for (size_t i = 0; i < bytes.size(); i += size)
      std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                   bytes.begin() + static_cast<std::ptrdiff_t>(i + size));
  if (header.by_columns) bytes = rows_of_columns(bytes, header.shape, size);
  if (header.dtype == DType::boolean)
    for (char& byte : bytes) byte = byte != 0;
  return tensor_of(bytes, header.shape, header.dtype, device);
}

void append(File& file, const std::string& text) { file.write(std::as_bytes(std::span(text))); }

}  // namespace

Tensor load_npy(const std::string& path, const Device& device) {
  const File file = File::open(path);
  return read_npy(path, range_of(file, 0, file.size()), device);
}

void save_npy(const std::string& path, const Tensor& tensor) {
  const std::string text = npy_header(tensor.dtype(), tensor.shape()) + bytes_of(tensor);
  if (!is_plan(tensor)) replace_text(path, text);
}

NamedTensors load_npz(const std::string& path, const Device& device) {
  const File file = File::open(path);
  NamedTensors tensors;
  for (const ZipEntry& entry : parse_zip(path, range_of(file, 0, file.size()))) {
    const std::string name = fmt::format("{}: '{}'", path, printable(entry.name));
    if (!entry.name.ends_with(".npy")) raise<FileError>("npz: {}: expected a name in .npy", name);
    const ByteRange range = range_of(file, entry.data_begin, entry.bytes);
    if (const uint32_t crc = crc32<zip_polynomial>(range.read(0, entry.bytes)); crc != entry.crc)
      raise<FileError>("npz: {}: is damaged: checksum {:08x}, expected {:08x}", name, crc,
                       entry.crc);
    tensors.emplace(entry.name.substr(0, entry.name.size() - 4), read_npy(name, range, device));
  }
  return tensors;
}

void save_npz(const std::string& path, const NamedTensors& tensors) {
  std::optional<UnfinishedFile> file;
  std::vector<ZipEntry> entries;
  int64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name.size() > 0xff00) raise<FileError>("npz: {}: a name has {} bytes", path, name.size());
    const std::string text = npy_header(tensor.dtype(), tensor.shape()) + bytes_of(tensor);
    if (is_plan(tensor)) continue;
    if (!file) file.emplace(path);
    ZipEntry& entry = entries.emplace_back(ZipEntry{
        .name = name + ".npy", .crc = crc32<zip_polynomial>(text), .bytes = std::ssize(text)});
    append(file->file(), zip_local_header(entry, at));
    append(file->file(), text);
    at = entry.data_begin + entry.bytes;
  }
  if (!file && !tensors.empty()) return;
  if (!file) file.emplace(path);
  append(file->file(), zip_directory(entries, at));
  file->finish();
}

NamedTensors load_safetensors(const std::string& path, const Device& device) {
  const SafetensorsReader reader(path);
  const File file = File::open(path);
  NamedTensors tensors;
  for (const auto& [name, entry] : reader.entries()) {
    if (!entry.foreign.empty())
      raise<FileError>(
          "safetensors: {}: tensor '{}' holds {}; expected another dtype and at most {} axes", path,
          printable(name), entry.foreign, Shape::max_rank);
    const std::string bytes = range_of(file, entry.begin, 0).read(0, entry.end - entry.begin);
    tensors.emplace(name, tensor_of(bytes, entry.shape, entry.dtype, device));
  }
  return tensors;
}

void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, tensor.dtype(), tensor.shape()});
  std::optional<SafetensorsWriter> writer;
  for (const auto& [name, tensor] : tensors) {
    const std::string bytes = bytes_of(tensor);
    if (is_plan(tensor)) continue;
    if (!writer) writer.emplace(path, entries, metadata);
    writer->write(std::as_bytes(std::span(bytes)));
  }
  if (!writer && !tensors.empty()) return;
  if (!writer) writer.emplace(path, entries, metadata);
  writer->finish();
}

}  // namespace zg
