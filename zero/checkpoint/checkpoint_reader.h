#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/manifest.h"

namespace zg::zero {

/// A step_N with all its files open. It can be read even after the folder was removed or replaced.
/// Each read verifies what it reads: the header of a shard and the blocks of a tensor are compared
/// with their checksums. Several threads may read at the same time. Throws FileError.
class ZG_API CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& path);
  CheckpointReader(const std::string& path, Manifest manifest);  ///< expected contents
  /// Null: there is no such folder, or it was removed or replaced while it was opened.
  static std::shared_ptr<CheckpointReader> open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// Closes the files; only then is the disk space of a removed checkpoint free. Afterwards only
  /// the manifest can be read.
  void close();
  /// The info from the manifest, with the verified contents of its files.
  CheckpointInfo info() const;

  /// Throws unless the pieces of a state cover the parameter exactly. The caller has checked the
  /// parameter's shape.
  void check_tiles(const std::string& parameter, const std::string& state) const;
  /// Returns elements [begin, end) of the slice. Reads and verifies only the pieces that contain
  /// some of them; of a long piece, only the blocks.
  std::vector<float> read(const std::string& parameter, const std::string& state, const Slice& part,
                          int64_t begin, int64_t end) const;
  std::vector<float> read(const std::string& parameter, const std::string& state,
                          const Slice& part) const;
  std::vector<float> read(const std::string& parameter, const std::string& state) const;
  /// True if read() of a range reads little more than the range: every long piece has checksums of
  /// its blocks, and no piece is a slice.
  bool reads_ranges(const std::string& parameter, const std::string& state) const;
  /// Visits all elements in order, a few MiB at a time. After an error, elements visited before may
  /// be damaged.
  void for_floats(const std::string& parameter, const std::string& state,
                  const SafetensorsReader::Visit& visit) const;

  /// Throws FileError for the first file or tensor that differs from the manifest.
  void check_bytes() const;
  /// Reads every byte and returns an entry for each missing or damaged item, with file, tensor and
  /// offset.
  std::vector<std::string> damages() const;

 private:
  using Pieces = std::vector<const Manifest::Piece*>;
  void for_floats(const Manifest::Piece& piece, const SafetensorsReader::Visit& visit) const;
  void for_floats(const Manifest::Piece& piece, size_t block,
                  const SafetensorsReader::Visit& visit) const;
  /// Visits elements in the order of the whole parameter, from pieces of several slices.
  void merge(const Pieces& pieces, const SafetensorsReader::Visit& visit) const;
  void check_tiles(const Pieces& pieces, int64_t numel, const std::string& what) const;
  std::string read_own_file(const std::string& name) const;
  [[noreturn]] void refuse(const Manifest::Piece& piece, int64_t begin, int64_t end) const;
  const SafetensorsReader& open(const Manifest::Piece& piece) const;
  const SafetensorsReader& file(const std::string& name) const;
  const Pieces& pieces(const std::string& parameter, const std::string& state) const;

  /// An open file, or the reason why it could not be opened.
  template <class T>
  struct Opened {
    std::optional<T> file;
    std::string failure;
  };
  template <class T, class Open>
  static Opened<T> opened(const Open& open);
  SafetensorsReader open_shard(const std::string& name) const;

  std::string path_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, Pieces> pieces_;  // in order
  std::map<std::string, Opened<SafetensorsReader>> shards_;
  std::map<std::string, Opened<File>> own_files_;
};

}  // namespace zg::zero
