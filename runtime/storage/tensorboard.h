#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg {

/// Scalars of one step, by tag.
struct TensorBoardEvent {
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> scalars;
};

/// Writes a file of events for TensorBoard. A resumed run writes another file in the same folder;
/// TensorBoard shows both as one run.
///
///   TensorBoardWriter board("runs/a/board");
///   board.write({{{.step = step, .scalars = {{"loss", loss}, {"rate", rate}}}}});
///
/// Its records are TFRecords: a length of 8 bytes, the masked CRC-32C of the length, an Event in
/// the encoding of protocol buffers, and the masked CRC-32C of the event.
class ZG_API TensorBoardWriter {
 public:
  /// Creates DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.N and, if necessary, the directory.
  /// Throws FileError.
  explicit TensorBoardWriter(const std::string& directory);

  /// Writes all events in one system call, so a killed process leaves only complete records. After
  /// a FileError none of them is in the file.
  void write(std::span<const TensorBoardEvent> events);
  const std::string& path() const { return path_; }

 private:
  void write_bytes(const std::string& bytes);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int64_t whole_bytes_ = 0;  // size of all complete records
};

/// Encodes the bytes as a TFRecord.
ZG_API std::string tf_record(const std::string& bytes);
/// CRC-32C with Castagnoli's polynomial: RFC 3720, B.4.
ZG_API uint32_t crc32c(std::string_view bytes);

}  // namespace zg
