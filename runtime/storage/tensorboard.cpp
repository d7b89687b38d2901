#include "zerograd/runtime/storage/tensorboard.h"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

template <class T>
void append_little_endian(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8;
}

// Protocol buffers: a field is a key (field number and wire type), followed by a value of that
// type.
enum WireType : uint8_t { varint = 0, fixed64 = 1, delimited = 2, fixed32 = 5 };

void append_varint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
}

void append_key(std::string& bytes, int field, WireType type) {
  append_varint(bytes, static_cast<uint64_t>(field) << 3 | type);
}

void append_delimited(std::string& bytes, int field, const std::string& content) {
  append_key(bytes, field, delimited);
  append_varint(bytes, content.size());
  bytes += content;
}

// Field numbers from tensorboard/compat/proto/event.proto and summary.proto.
constexpr int event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5;
constexpr int summary_value = 1;
constexpr int value_tag = 1, value_simple_value = 2;

std::string event_begin(int64_t step) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string event;
  append_key(event, event_wall_time, fixed64);
  append_little_endian(event, std::bit_cast<uint64_t>(now));
  append_key(event, event_step, varint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

void append_scalar(std::string& summary, const std::string& tag, double number) {
  std::string value;
  append_delimited(value, value_tag, tag);
  append_key(value, value_simple_value, fixed32);
  append_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
  append_delimited(summary, summary_value, value);
}

std::string event_of(int64_t step, const std::string& summary) {
  std::string event = event_begin(step);
  append_delimited(event, event_summary, summary);
  return event;
}

std::string name_of_file() {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  return fmt::format("events.out.tfevents.{:010}.{}.{}", std::time(nullptr), host, getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) { return crc32<castagnoli_polynomial>(bytes); }

std::string tf_record(const std::string& bytes) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(bytes.size()));
  append_little_endian(record, masked_crc(record));
  record += bytes;
  append_little_endian(record, masked_crc(bytes));
  return record;
}

TensorBoardWriter::TensorBoardWriter(const std::string& directory) : file_(nullptr, std::fclose) {
  make_directories(directory);
  const std::string begin = fmt::format("{}/{}.", directory, name_of_file());
  // The number makes names unique for files of one process in the same second.
  for (int number = 0; !file_ && (number == 0 || errno == EEXIST); ++number) {
    path_ = begin + std::to_string(number);
    file_.reset(std::fopen(path_.c_str(), "wx"));
  }
  if (!file_)
    raise<FileError>("{} cannot be written: {}; expected a writable folder; try another path",
                     path_, std::strerror(errno));
  std::string event = event_begin(0);
  append_delimited(event, event_file_version, "brain.Event:2");
  write_bytes(tf_record(event));
}

void TensorBoardWriter::write_bytes(const std::string& bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() &&
      std::fflush(file_.get()) == 0) {
    whole_bytes_ += std::ssize(bytes);
    return;
  }
  const std::string why = std::strerror(errno);
  // Cut off the incomplete record: a reader would report it as damaged.
  const bool cut = ftruncate(fileno(file_.get()), whole_bytes_) == 0;
  raise<FileError>("writing {} failed: {}{}", path_, why,
                   cut ? "" : "; its last record is not whole");
}

void TensorBoardWriter::write(std::span<const TensorBoardEvent> events) {
  std::string bytes;
  for (const TensorBoardEvent& event : events) {
    std::string summary;
    for (const auto& [tag, value] : event.scalars) append_scalar(summary, tag, value);
    bytes += tf_record(event_of(event.step, summary));
  }
  write_bytes(bytes);
}

}  // namespace zg
