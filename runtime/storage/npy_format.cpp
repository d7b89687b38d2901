#include "zerograd/runtime/storage/npy_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg {
namespace {

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | T{static_cast<unsigned char>(bytes[at + i])} << 8 * i);
  return value;
}

template <class T>
void append_number(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
}

struct NpyType {
  const char* name;
  DType dtype;
};
constexpr NpyType npy_types[] = {{"f8", DType::f64},    {"f4", DType::f32}, {"f2", DType::f16},
                                 {"i8", DType::i64},    {"i4", DType::i32}, {"u1", DType::u8},
                                 {"b1", DType::boolean}};

/// The dictionary of a header, a literal of Python, as JSON.
std::string json_of(const std::string& literal) {
  std::string text;
  for (size_t i = 0; i < literal.size(); ++i) {
    const char c = literal[i];
    const auto is = [&](const char* word) { return literal.compare(i, 4, word) == 0; };
    if (c == ')' || c == '}' || c == ']') {  // Python allows a comma before it
      const size_t last = text.find_last_not_of(' ');
      if (last != std::string::npos && text[last] == ',') text[last] = ' ';
    }
    text += c == '\''    ? '"'
            : c == '('   ? '['
            : c == ')'   ? ']'
            : is("True") ? 't'
            : is("Fals") ? 'f'
                         : c;
  }
  return text;
}

NpyHeader header_of(const std::string& name, const std::string& literal) {
  const nlohmann::json json = parse_json_object(json_of(literal), name, {.unique_keys = true});
  const JsonNode root{json, name + ": "};
  NpyHeader header;
  const std::string& type = root.at("descr").text();
  const auto* const found = std::ranges::find_if(npy_types, [&](const NpyType& candidate) {
    return type.size() == 3 && std::string_view("<>=|").find(type[0]) != std::string::npos &&
           type.substr(1) == candidate.name;
  });
  if (found == std::end(npy_types))
    root.at("descr").fail(
        "f8, f4, f2, i8, i4, u1 or b1 (f64, f32, f16, i64, i32, u8, bool; array.astype() "
        "converts)");
  header.dtype = found->dtype;
  header.big_endian = type[0] == '>';
  header.by_columns = root.at("fortran_order").flag();
  std::vector<int64_t> extents;
  for (const JsonNode& extent : root.at("shape").members()) {
    if (!extent.value.is_number_unsigned()) extent.fail("an extent of 0 or more");
    extents.push_back(extent.value.get<int64_t>());
  }
  if (extents.size() > Shape::max_rank || !checked_product(extents))
    root.at("shape").fail(fmt::format("at most {} axes and 2^60 elements", Shape::max_rank));
  header.shape = Shape(std::span<const int64_t>(extents));
  return header;
}

}  // namespace

NpyHeader parse_npy_header(const std::string& name, const ByteRange& file) {
  const auto fail = [&](const std::string& what) { raise<FileError>("npy: {}: {}", name, what); };
  if (file.bytes < 10) fail(fmt::format("has {} bytes; expected 10 or more", file.bytes));
  const std::string start = file.read(0, std::min<int64_t>(12, file.bytes));
  if (!start.starts_with("\x93NUMPY")) fail("not a .npy file: it does not begin with \\x93NUMPY");
  const int version = start[6];
  if (version < 1 || version > 3 || start[7] != 0)
    fail(fmt::format("version {}.{}; expected 1.0, 2.0 or 3.0", version, int{start[7]}));
  if (start.size() < 12) fail("ends within its header");
  const int64_t length =
      version == 1 ? number_at<uint16_t>(start, 8) : number_at<uint32_t>(start, 8);
  const int64_t begin = version == 1 ? 10 : 12;
  if (length > file.bytes - begin || length > int64_t{1} << 20)
    fail(fmt::format("the header claims {} bytes of a file of {}", length, file.bytes));
  NpyHeader header = header_of(fmt::format("npy: {}", name), file.read(begin, length));
  header.data_begin = begin + length;
  const int64_t bytes = header.shape.numel() * size_of(header.dtype);
  if (file.bytes - header.data_begin != bytes)
    fail(fmt::format("{} {} takes {} bytes behind the header, got {}", header.dtype, header.shape,
                     bytes, file.bytes - header.data_begin));
  return header;
}

std::string npy_header(DType dtype, const Shape& shape) {
  const auto* const type = std::ranges::find(npy_types, dtype, &NpyType::dtype);
  if (type == std::end(npy_types))
    raise<DTypeError>("npy: numpy has no {}; expected another dtype; try cast(x, DType::f32)",
                      dtype);
  std::string extents;
  for (const int64_t extent : shape.extents()) extents += fmt::format("{}, ", extent);
  if (shape.rank() > 1) extents.resize(extents.size() - 2);
  if (shape.rank() == 1) extents.pop_back();
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                 size_of(dtype) == 1 ? '|' : '<', type->name, extents);
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 11,
              ' ');  // the data begin at a multiple of 64
  text += '\n';
  std::string header("\x93NUMPY\1\0", 8);
  append_number(header, static_cast<uint16_t>(text.size()));
  return header + text;
}

// --- zip ---

namespace {

constexpr uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                   end64_mark = 0x06064b50, locator_mark = 0x07064b50;
constexpr size_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                 locator_bytes = 20;
constexpr uint32_t wide = 0xffffffff;  // the number is in the extra field of zip64
constexpr uint16_t date = 1 << 5 | 1;  // 1980-01-01: equal tensors give equal files

class ZipReader {
 public:
  ZipReader(const std::string& path, const ByteRange& file) : path_(path), file_(file) {}

  std::vector<ZipEntry> entries() const {
    const int64_t tail = std::min<int64_t>(file_.bytes, int64_t{end_bytes} + 0xffff);
    const std::string end = file_.read(file_.bytes - tail, tail);
    std::string mark;
    append_number(mark, end_mark);
    const size_t at =
        end.size() < end_bytes ? std::string::npos : end.rfind(mark, end.size() - end_bytes);
    if (at == std::string::npos) fail("not a zip archive: it has no end of a directory");
    uint64_t count = number_at<uint16_t>(end, at + 10);
    uint64_t bytes = number_at<uint32_t>(end, at + 12), begin = number_at<uint32_t>(end, at + 16);
    if (count == 0xffff || bytes == wide || begin == wide) {
      const int64_t end_at = file_.bytes - tail + static_cast<int64_t>(at);
      const std::string locator =
          read(end_at - int64_t{locator_bytes}, locator_bytes, locator_mark);
      const auto there = static_cast<int64_t>(number_at<uint64_t>(locator, 8));
      const std::string end64 = read(there, end64_bytes, end64_mark);
      count = number_at<uint64_t>(end64, 32);
      bytes = number_at<uint64_t>(end64, 40);
      begin = number_at<uint64_t>(end64, 48);
    }
    const auto size = static_cast<uint64_t>(file_.bytes);
    if (begin > size || bytes > size - begin || bytes > uint64_t{1} << 28)
      fail(fmt::format("the directory claims {} bytes from byte {} of {}", bytes, begin, size));
    return parse(file_.read(static_cast<int64_t>(begin), static_cast<int64_t>(bytes)), count);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    raise<FileError>("npz: {}: {}", path_, what);
  }

  std::string read(int64_t at, size_t bytes, uint32_t mark) const {
    const auto count = static_cast<int64_t>(bytes);
    if (at < 0 || count > file_.bytes || at > file_.bytes - count)
      fail(fmt::format("expected {} bytes at byte {} of {}", count, at, file_.bytes));
    std::string text = file_.read(at, count);
    if (number_at<uint32_t>(text, 0) != mark)
      fail(fmt::format("byte {}: not a part of a zip archive", at));
    return text;
  }

  std::vector<ZipEntry> parse(const std::string& directory, uint64_t count) const {
    std::vector<ZipEntry> entries;
    std::set<std::string> names;
    size_t at = 0;
    while (at < directory.size()) {
      const std::string_view rest = std::string_view(directory).substr(at);
      if (rest.size() < entry_bytes || number_at<uint32_t>(rest, 0) != entry_mark)
        fail(fmt::format("the directory is damaged at its byte {}", at));
      const size_t name = number_at<uint16_t>(rest, 28), extra = number_at<uint16_t>(rest, 30),
                   comment = number_at<uint16_t>(rest, 32);
      if (name + extra + comment > rest.size() - entry_bytes)
        fail(fmt::format("the directory ends within entry {}", entries.size()));
      entries.push_back(entry(rest, std::string(rest.substr(entry_bytes, name)),
                              rest.substr(entry_bytes + name, extra)));
      if (!names.insert(entries.back().name).second)
        fail(fmt::format("'{}' stands twice", printable(entries.back().name)));
      at += entry_bytes + name + extra + comment;
    }
    if (entries.size() != count)
      fail(fmt::format("the directory has {} entries; expected {}", entries.size(), count));
    return entries;
  }

  ZipEntry entry(std::string_view fields, const std::string& name, std::string_view extra) const {
    const auto fault = [&](const std::string& what) {
      fail(fmt::format("'{}': {}", printable(name), what));
    };
    const unsigned flags = number_at<uint16_t>(fields, 8), method = number_at<uint16_t>(fields, 10);
    if (flags & 1) fault("is encrypted");
    if (method != 0)
      fault(
          fmt::format("is compressed (method {}); expected an entry without compression; try "
                      "np.savez() in place of np.savez_compressed()",
                      method));
    uint64_t numbers[] = {number_at<uint32_t>(fields, 24), number_at<uint32_t>(fields, 20),
                          number_at<uint32_t>(fields, 42)};  // size, compressed size, offset
    while (extra.size() >= 4) {
      const size_t kind = number_at<uint16_t>(extra, 0), length = number_at<uint16_t>(extra, 2);
      if (length > extra.size() - 4) fault("its extra field is cut off");
      size_t next = 4;
      for (uint64_t& number : numbers)
        if (kind == 1 && number == wide && next + 8 <= length + 4) {
          number = number_at<uint64_t>(extra, next);
          next += 8;
        }
      extra.remove_prefix(4 + length);
    }
    if (numbers[0] != numbers[1]) fault("has two sizes");
    const int64_t begin = static_cast<int64_t>(numbers[2]);
    const std::string local = read(begin, local_bytes, local_mark);
    ZipEntry entry{.name = name,
                   .crc = number_at<uint32_t>(fields, 16),
                   .data_begin = begin + int64_t{local_bytes} + number_at<uint16_t>(local, 26) +
                                 number_at<uint16_t>(local, 28),
                   .bytes = static_cast<int64_t>(numbers[0])};
    if (entry.bytes < 0 || entry.data_begin > file_.bytes ||
        entry.bytes > file_.bytes - entry.data_begin)
      fault(fmt::format("claims {} bytes from byte {} of {}", entry.bytes, entry.data_begin,
                        file_.bytes));
    return entry;
  }

  const std::string& path_;
  const ByteRange& file_;
};

/// The fields that a local header and an entry of the directory share, without the extra field.
void append_shared_fields(std::string& text, const ZipEntry& entry, size_t extra) {
  append_number<uint16_t>(text, 45);       // version
  append_number<uint16_t>(text, 1 << 11);  // the name is UTF-8
  append_number<uint32_t>(text, 0);        // stored; time
  append_number<uint16_t>(text, date);
  append_number(text, entry.crc);
  for (int i = 0; i < 2; ++i) append_number(text, wide);
  append_number(text, static_cast<uint16_t>(entry.name.size()));
  append_number(text, static_cast<uint16_t>(extra));
}

void append_wide(std::string& text, std::initializer_list<int64_t> numbers) {
  append_number<uint16_t>(text, 1);
  append_number(text, static_cast<uint16_t>(8 * numbers.size()));
  for (const int64_t number : numbers) append_number(text, static_cast<uint64_t>(number));
}

}  // namespace

std::vector<ZipEntry> parse_zip(const std::string& path, const ByteRange& file) {
  return ZipReader(path, file).entries();
}

std::string zip_local_header(ZipEntry& entry, int64_t at) {
  std::string text;
  append_number(text, local_mark);
  append_shared_fields(text, entry, 20);
  text += entry.name;
  append_wide(text, {entry.bytes, entry.bytes});
  entry.data_begin = at + std::ssize(text);
  return text;
}

std::string zip_directory(const std::vector<ZipEntry>& entries, int64_t at) {
  std::string text;
  for (const ZipEntry& entry : entries) {
    append_number(text, entry_mark);
    append_number<uint16_t>(text, 45);
    append_shared_fields(text, entry, 28);
    text.append(10, '\0');  // comment, disk, attributes
    append_number(text, wide);
    text += entry.name;
    append_wide(text, {entry.bytes, entry.bytes,
                       entry.data_begin - int64_t{local_bytes} - std::ssize(entry.name) - 20});
  }
  const int64_t bytes = std::ssize(text), end = at + bytes;
  // numpy recognises an empty archive by its first bytes, those of the plain end record.
  if (entries.empty()) {
    append_number(text, end_mark);
    return text.append(18, '\0');
  }
  append_number(text, end64_mark);
  append_number<uint64_t>(text, end64_bytes - 12);
  append_number<uint32_t>(text, 45 << 16 | 45);
  append_number<uint64_t>(text, 0);  // disks
  for (const int64_t number : {std::ssize(entries), std::ssize(entries), bytes, at})
    append_number(text, static_cast<uint64_t>(number));
  append_number(text, locator_mark);
  append_number<uint32_t>(text, 0);
  append_number(text, static_cast<uint64_t>(end));
  append_number<uint32_t>(text, 1);
  append_number(text, end_mark);
  append_number<uint32_t>(text, 0);
  for (int i = 0; i < 2; ++i) append_number<uint16_t>(text, 0xffff);
  for (int i = 0; i < 2; ++i) append_number(text, wide);
  append_number<uint16_t>(text, 0);
  return text;
}

}  // namespace zg
