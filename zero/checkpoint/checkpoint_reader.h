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

/// One step_N with all its files open, so that it can be read also when it was removed or replaced
/// meanwhile. What is wrong with a shard is told by what reads it: headers are compared with their
/// checksums, and every tensor as it is read. Several threads may read at the same time. Throws
/// FileError.
class ZG_API CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& path);
  CheckpointReader(const std::string& path, Manifest manifest);  ///< expected contents
  /// Null: there is no such folder, or it was removed or replaced while it was opened.
  static std::shared_ptr<CheckpointReader> open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// Lets go of the files, whose space a removed checkpoint keeps until then. Nothing but the
  /// manifest can be read from then on.
  void close();
  /// The manifest's, with the contents of its files, which are verified.
  CheckpointInfo info() const;

  /// That the pieces of a state tile the parameter, whose shape the caller has checked.
  void check_tiles(const std::string& parameter, const std::string& state) const;
  /// Elements [begin, end) of a part of it: those pieces, and of long ones those blocks, are read
  /// and verified that have some of them.
  std::vector<float> read(const std::string& parameter, const std::string& state, const Slice& part,
                          int64_t begin, int64_t end) const;
  std::vector<float> read(const std::string& parameter, const std::string& state,
                          const Slice& part) const;
  std::vector<float> read(const std::string& parameter, const std::string& state) const;
  /// Whether read() of a range costs little more than the range: no long piece lacks the checksums
  /// of its blocks, and none is a slice.
  bool reads_ranges(const std::string& parameter, const std::string& state) const;
  /// All of it a few MiB at a time, in order; what was visited before an error may be damaged.
  void for_floats(const std::string& parameter, const std::string& state,
                  const SafetensorsReader::Visit& visit) const;

  /// The first of its files and tensors that is not what the manifest says, as a FileError.
  void check_bytes() const;
  /// Everything that is missing or damaged, an entry each with file, tensor and place, after
  /// reading every byte.
  std::vector<std::string> damages() const;

 private:
  using Pieces = std::vector<const Manifest::Piece*>;
  void for_floats(const Manifest::Piece& piece, const SafetensorsReader::Visit& visit) const;
  void for_floats(const Manifest::Piece& piece, size_t block,
                  const SafetensorsReader::Visit& visit) const;
  /// In the whole's order, of pieces of slices.
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
