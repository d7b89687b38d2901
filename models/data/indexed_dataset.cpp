#include "zerograd/models/data/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "zerograd/runtime/random.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

static_assert(std::endian::native == std::endian::little,
              "datasets are little-endian and are read without swapping bytes");

[[noreturn]] void refuse(const File& file, const std::string& field, const std::string& expected,
                         const std::string& got) {
  raise<FileError>("{}: {}: expected {}, got {}", file.path(), field, expected, got);
}

std::string in_hex(std::span<const char> bytes) {
  std::string text;
  for (char byte : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

/// Calls f(index, value) for each int64 of an array; reads a chunk at a time.
template <class F>
void for_each_in(const File& file, int64_t offset, int64_t count, const F& f) {
  constexpr int64_t chunk = 1 << 16;
  std::vector<int64_t> piece;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    piece.resize(static_cast<size_t>(std::min(chunk, count - begin)));
    file.read_at(offset + begin * 8, std::as_writable_bytes(std::span(piece)));
    for (size_t i = 0; i < piece.size(); ++i) f(begin + static_cast<int64_t>(i), piece[i]);
  }
}

/// Widens tokens up to the first invalid one; returns its index, or the number of tokens.
template <class T>
size_t widen(const std::vector<std::byte>& bytes, std::span<int32_t> tokens, int64_t& stray) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if (std::cmp_less(value, 0) || !std::in_range<int32_t>(value)) {
      stray = static_cast<int64_t>(value);  // NOLINT: an int8_t is a number here
      return i;
    }
    tokens[i] = static_cast<int32_t>(value);  // NOLINT: an int8_t is a number here
  }
  return tokens.size();
}

size_t widen(uint8_t dtype, const std::vector<std::byte>& bytes, std::span<int32_t> tokens,
             int64_t& stray) {
  if (dtype == 1) return widen<uint8_t>(bytes, tokens, stray);
  if (dtype == 2) return widen<int8_t>(bytes, tokens, stray);
  if (dtype == 3) return widen<int16_t>(bytes, tokens, stray);
  if (dtype == 4) return widen<int32_t>(bytes, tokens, stray);
  if (dtype == 5) return widen<int64_t>(bytes, tokens, stray);
  return widen<uint16_t>(bytes, tokens, stray);
}

int64_t bytes_of(const File& file, uint8_t dtype) {
  constexpr int64_t bytes[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
  if (dtype == 6 || dtype == 7)
    refuse(file, "dtype", "integer tokens", fmt::format("floating ones ({})", dtype));
  if (dtype == 0 || dtype > 8) refuse(file, "dtype", "1 to 5 or 8", std::to_string(dtype));
  return bytes[dtype];
}

/// Opens an index and a data file that belong together, also while another process replaces both:
/// the index must be the same file before and after the data was opened.
std::pair<File, File> open_pair(const IndexedFiles& files) {
  constexpr int max_attempts = 100;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    File index = File::open(files.index);
    File data = File::open(files.data);
    if (index.has_its_path()) return {std::move(index), std::move(data)};
  }
  raise<FileError>(
      "{}: was replaced {} times while it was opened; try again when nothing writes there",
      files.index, max_attempts);
}

}  // namespace

IndexedFiles indexed_files(const std::string& prefix) { return {prefix + ".idx", prefix + ".bin"}; }

IndexedDataset::IndexedDataset(const IndexedFiles& files) : IndexedDataset(open_pair(files)) {}

IndexedDataset::IndexedDataset(std::pair<File, File> pair)
    : index_(std::move(pair.first)), data_(std::move(pair.second)), data_bytes_(data_.size()) {
  const int64_t entries = read_header();
  read_sizes();
  check_pointers();
  check_documents(entries);
}

int64_t IndexedDataset::read_header() {
  const int64_t file_bytes = index_.size();
  if (file_bytes < indexed_header_bytes)
    refuse(index_, "bytes", fmt::format("at least {}", indexed_header_bytes),
           std::to_string(file_bytes));
  IndexedHeader header;
  std::byte bytes[indexed_header_bytes];
  index_.read_at(0, bytes);
  const std::byte* at = bytes;
  const auto take = [&at](auto& field) {
    std::memcpy(&field, at, sizeof field);
    at += sizeof field;
  };
  take(header.magic);
  take(header.version);
  take(header.dtype);
  take(header.sequences);
  take(header.documents);
  if (std::memcmp(header.magic, indexed_magic, sizeof header.magic) != 0)
    refuse(index_, "magic", in_hex(indexed_magic) + " (MMIDIDX, of Megatron's mmap datasets)",
           in_hex(header.magic));
  if (header.version != 1) refuse(index_, "version", "1", std::to_string(header.version));
  token_bytes_ = bytes_of(index_, header.dtype);
  dtype_ = header.dtype;
  // Counts that are impossible for the file's size are rejected before they are multiplied.
  const auto left = static_cast<uint64_t>(file_bytes - indexed_header_bytes);
  if (header.sequences > left / 12)
    refuse(index_, "sequences", fmt::format("at most {} in its bytes", left / 12),
           std::to_string(header.sequences));
  const uint64_t rest = left - 12 * header.sequences;
  if (header.documents > rest / 8)
    refuse(index_, "documents", fmt::format("at most {} in its bytes", rest / 8),
           std::to_string(header.documents));
  if (8 * header.documents != rest)
    refuse(index_, "bytes",
           fmt::format("{} by its counts", file_bytes - static_cast<int64_t>(rest) +
                                               static_cast<int64_t>(8 * header.documents)),
           std::to_string(file_bytes));
  sizes_.resize(header.sequences);
  return static_cast<int64_t>(header.documents);
}

void IndexedDataset::read_sizes() {
  index_.read_at(indexed_header_bytes, std::as_writable_bytes(std::span(sizes_)));
  int64_t tokens = 0;
  for (int64_t i = 0; i < sequences(); ++i) {
    if (size(i) < 0)
      refuse(index_, fmt::format("size of sequence {}", i), "0 or more tokens",
             std::to_string(size(i)));
    if (__builtin_add_overflow(tokens, size(i), &tokens))
      refuse(index_, "sizes", "less than 2^63 tokens in all", "more");
  }
}

void IndexedDataset::check_pointer(int64_t sequence, int64_t pointer) const {
  // A size is an int32 and a token 8 bytes at most: no product here overflows.
  const int64_t last = data_bytes_ - size(sequence) * token_bytes_;
  if (pointer < 0 || pointer > last)
    refuse(index_, fmt::format("pointer of sequence {}", sequence),
           last < 0
               ? fmt::format("at least {} bytes in {}", size(sequence) * token_bytes_, data_.path())
               : fmt::format("0 to {}, so that its {} tokens lie in {}", last, size(sequence),
                             data_.path()),
           last < 0 ? std::to_string(data_bytes_) : std::to_string(pointer));
}

void IndexedDataset::check_pointers() const {
  for_each_in(index_, indexed_header_bytes + 4 * sequences(), sequences(),
              [&](int64_t sequence, int64_t pointer) { check_pointer(sequence, pointer); });
}

void IndexedDataset::check_documents(int64_t entries) const {
  int64_t minimum = 0;
  for_each_in(index_, indexed_header_bytes + 12 * sequences(), entries,
              [&](int64_t entry, int64_t first) {
                if (first < minimum || first > sequences())
                  refuse(index_, fmt::format("entry {} of the documents", entry),
                         fmt::format("{} to {}", minimum, sequences()), std::to_string(first));
                minimum = first;
              });
}

void IndexedDataset::read(int64_t sequence, int64_t begin, std::span<int32_t> tokens) const {
  int64_t pointer = 0;
  index_.read_at(indexed_header_bytes + 4 * sequences() + 8 * sequence,
                 std::as_writable_bytes(std::span(&pointer, 1)));
  check_pointer(sequence, pointer);  // checked again, because the file may have changed
  std::vector<std::byte> bytes(tokens.size() * static_cast<size_t>(token_bytes_));
  data_.read_at(pointer + begin * token_bytes_, bytes);
  int64_t stray = 0;
  const size_t read = widen(dtype_, bytes, tokens, stray);
  if (read < tokens.size())
    refuse(data_,
           fmt::format("token {} of sequence {}", begin + static_cast<int64_t>(read), sequence),
           fmt::format("an id from 0 to {}", INT32_MAX), std::to_string(stray));
}

Permutation::Permutation(uint64_t seed, const char* purpose, uint64_t index, int64_t n)
    : seed_(seed),
      purpose_(static_cast<uint32_t>(hash_name(purpose))),
      index_(static_cast<uint32_t>(index)),
      n_(static_cast<uint64_t>(n)) {
  // The smallest pair of digits with high * low >= n: the product exceeds n by less than sqrt(n) +
  // 1.
  high_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (high_ * high_ < n_) ++high_;
  low_ = (n_ + high_ - 1) / high_;
}

int64_t Permutation::operator()(int64_t place) const {
  const auto word = [&](uint32_t round, uint64_t digit) {
    const Philox::Block block =
        Philox::block({static_cast<uint32_t>(digit), index_, round, purpose_}, seed_);
    return block[0] | uint64_t{block[1]} << 32;
  };
  auto visited = static_cast<uint64_t>(place);
  do {
    uint64_t high = visited / low_, low = visited % low_;
    for (uint32_t round = 0; round < 8; round += 2) {
      high = (high + word(round, low) % high_) % high_;
      low = (low + word(round + 1, high) % low_) % low_;
    }
    visited = high * low_ + low;
  } while (visited >= n_);
  return static_cast<int64_t>(visited);
}

namespace {

// A search scans half a stride, which takes one or two microseconds: less than a read.
constexpr int64_t stride = 64;

}  // namespace

DocumentStream::DocumentStream(const IndexedDataset& data, int64_t first, int64_t count,
                               std::optional<Permutation> order)
    : data_(&data), first_(first), count_(count), order_(order) {
  starts_.reserve(static_cast<size_t>(count / stride + 2));
  int64_t tokens = 0;
  for (int64_t place = 0; place < count; ++place) {
    if (place % stride == 0) starts_.push_back(tokens);
    tokens += data.size(sequence(place));
  }
  starts_.push_back(tokens);
}

void DocumentStream::read(int64_t begin, std::span<int32_t> tokens) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end() - 1, begin);
  int64_t place = (after - starts_.begin() - 1) * stride, start = *(after - 1);
  while (!tokens.empty()) {
    const int64_t document = sequence(place++), size = data_->size(document);
    if (begin < start + size) {
      const int64_t skipped = begin - start;
      const auto here = std::min(static_cast<size_t>(size - skipped), tokens.size());
      data_->read(document, skipped, tokens.first(here));
      tokens = tokens.subspan(here);
      begin += static_cast<int64_t>(here);
    }
    start += size;
  }
}

}  // namespace zg::models
