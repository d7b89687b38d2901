#include "zerograd/runtime/storage/safetensors_format.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg {
namespace {

using nlohmann::json;
using Entry = SafetensorsReader::Entry;

struct TypeName {
  DType dtype;
  const char* name;
};
constexpr TypeName type_names[] = {
    {DType::f64, "F64"}, {DType::f32, "F32"}, {DType::bf16, "BF16"}, {DType::f16, "F16"},
    {DType::i32, "I32"}, {DType::i64, "I64"}, {DType::u8, "U8"},     {DType::boolean, "BOOL"}};

// Other types of the format: they are skipped, not read.
struct ForeignType {
  const char* name;
  int64_t bits;  // of an element
};
constexpr ForeignType foreign_types[] = {
    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"I8", 8},          {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"U32", 32},    {"U64", 64},        {"C64", 64}};

constexpr int max_header_depth = 3;  // the header, a tensor, its shape

bool is_count(const json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

std::string range_of(const Entry& entry) {
  return fmt::format("bytes {} to {} of the file", entry.begin, entry.end);
}

class HeaderParser {
 public:
  HeaderParser(const std::string& path, int64_t data_begin, int64_t file_bytes)
      : path_(path), data_begin_(data_begin), file_bytes_(file_bytes) {}

  SafetensorsHeader parse(const std::string& text) const {
    SafetensorsHeader header;
    const json root = parse_json_object(text, fmt::format("safetensors: {}: header", path_),
                                        {.max_depth = max_header_depth, .unique_keys = true});
    for (const auto& [name, value] : root.items()) {
      if (name == safetensors_metadata)
        header.metadata = metadata(value);
      else
        header.entries.emplace(name, entry(name, value));
    }
    check_tiling(header.entries);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    raise<FileError>("safetensors: {}: {}", path_, what);
  }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    fail(fmt::format("tensor '{}': {}", tensor, what));
  }

  std::map<std::string, std::string> metadata(const json& object) const {
    std::map<std::string, std::string> result;
    if (!object.is_object()) fail("expected __metadata__ to be an object");
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string()) fail(fmt::format("expected __metadata__ '{}' to be a string", key));
      result.emplace(key, value.get<std::string>());
    }
    return result;
  }

  Entry entry(const std::string& name, const json& object) const {
    if (!object.is_object()) fail(name, "expected an object, got " + brief(object));
    for (const char* field : {"dtype", "shape", "data_offsets"})
      if (!object.contains(field)) fail(name, std::string("has no ") + field);
    if (object.size() != 3) fail(name, "has fields besides dtype, shape and data_offsets");
    const int64_t bits = bits_of(name, object["dtype"]);
    const std::vector<int64_t> extents = extents_of(name, object["shape"]);
    const json& offsets = object["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) ||
        !is_count(offsets[1]))
      fail(name, "expected data_offsets to be two counts of bytes, got " + brief(offsets));
    const int64_t begin = offsets[0].get<int64_t>(), end = offsets[1].get<int64_t>();
    if (begin > end || end > file_bytes_ - data_begin_)
      fail(name, fmt::format("data_offsets {} are outside the {} bytes after the header",
                             brief(offsets), file_bytes_ - data_begin_));
    Entry entry{
        .dtype = DType::u8, .shape = {}, .begin = data_begin_ + begin, .end = data_begin_ + end};
    const int64_t numel = *checked_product(extents);
    const int64_t bytes = numel / 8 * bits + numel % 8 * bits / 8;  // does not overflow
    const std::string& type = object["dtype"].get_ref<const std::string&>();
    const std::string text = fmt::format("{} {}", type, brief(object["shape"]));
    if (end - begin != bytes)
      fail(name, fmt::format("{} takes {} bytes, got {}", text, bytes, range_of(entry)));
    const std::optional<DType> dtype = safetensors_dtype(type);
    if (dtype && std::ssize(extents) <= Shape::max_rank) {
      entry.dtype = *dtype;
      entry.shape = Shape(std::span<const int64_t>(extents));
    } else {
      entry.shape = {bytes};
      entry.foreign = text;
    }
    return entry;
  }

  int64_t bits_of(const std::string& name, const json& value) const {
    if (value.is_string()) {
      const std::string& type = value.get_ref<const std::string&>();
      if (const auto dtype = safetensors_dtype(type)) return 8 * size_of(*dtype);
      for (const ForeignType& foreign : foreign_types)
        if (type == foreign.name) return foreign.bits;
    }
    fail(name, fmt::format("dtype is {}; expected F64, F32, BF16, F16, I32, I64, U8, BOOL or "
                           "another of the format",
                           brief(value)));
  }

  std::vector<int64_t> extents_of(const std::string& name, const json& value) const {
    if (!value.is_array())
      fail(name, fmt::format("shape is {}; expected an array of extents", brief(value)));
    std::vector<int64_t> extents;
    for (const json& extent : value) {
      if (!is_count(extent)) fail(name, fmt::format("shape is {}; expected counts", brief(value)));
      extents.push_back(extent.get<int64_t>());
    }
    if (!checked_product(extents))
      fail(name, fmt::format("shape {} overflows 64 bits", brief(value)));
    return extents;
  }

  // Throws unless the tensors, sorted by offset, follow one another without gap and overlap.
  void check_tiling(const std::map<std::string, Entry>& entries) const {
    std::vector<const std::pair<const std::string, Entry>*> order;
    order.reserve(entries.size());
    for (const auto& item : entries) order.push_back(&item);
    std::ranges::sort(order, [](const auto* a, const auto* b) {
      return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
    });
    int64_t end = data_begin_;
    for (const auto* item : order) {
      const Entry& entry = item->second;
      if (entry.begin != end)
        fail(item->first,
             fmt::format("{}{} {}", range_of(entry),
                         entry.begin < end ? " overlap bytes before" : " leave a hole after byte",
                         end));
      end = entry.end;
    }
    if (end != file_bytes_) fail(fmt::format("the tensors end at byte {} of {}", end, file_bytes_));
  }

  const std::string& path_;
  const int64_t data_begin_, file_bytes_;
};

}  // namespace

const char* safetensors_name(DType dtype) {
  for (const TypeName& type : type_names)
    if (type.dtype == dtype) return type.name;
  return "";
}

std::optional<DType> safetensors_dtype(const std::string& name) {
  for (const TypeName& type : type_names)
    if (name == type.name) return type.dtype;
  return std::nullopt;
}

SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text,
                                           int64_t data_begin, int64_t file_bytes) {
  return HeaderParser(path, data_begin, file_bytes).parse(text);
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

}  // namespace zg
