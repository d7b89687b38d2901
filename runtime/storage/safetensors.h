#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/shape.h"

namespace zg {

/// Reads a safetensors file. The header is checked when the file is opened: offsets in bounds, no
/// overlap, sizes equal to shape times dtype, no duplicate names, header up to 100 MB. Tensors are
/// read on request. Throws FileError naming file, tensor and offset. A tensor that this library
/// cannot hold, of dtype F8_E4M3 or of seven axes for example, has an entry but cannot be read.
class ZG_API SafetensorsReader {
 public:
  struct Entry {
    DType dtype;
    Shape shape;
    int64_t begin, end;  ///< byte offsets from the start of the file
    /// "F8_E4M3 [4]": dtype and shape in the file if DType or Shape cannot express them. `dtype`
    /// and `shape` then describe the tensor's bytes, as u8. Empty for other tensors.
    std::string foreign = {};
  };

  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&& other) noexcept;

  const std::map<std::string, Entry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(const std::string& name) const;
  /// The entry of a tensor that read_floats() can read. Throws FileError for another.
  const Entry& floats(const std::string& name) const;
  /// Converts f64, f32, bf16 or f16 to f32. Throws FileError for other dtypes and unknown names.
  std::vector<float> read_floats(const std::string& name) const;
  std::vector<float> read_floats(const std::string& name, int64_t begin, int64_t numel) const;
  /// Visits the same values in order, with a few MiB in memory at a time.
  using Visit = std::function<void(std::span<const float> values)>;
  void for_floats(const std::string& name, const Visit& visit) const;
  /// Elements [begin, begin + numel), as in read_floats(). The range must be within the tensor.
  void for_floats(const std::string& name, int64_t begin, int64_t numel, const Visit& visit) const;
  /// XXH3-128 of the file's header: all bytes before the tensors.
  const std::string& header_checksum() const;

 private:
  std::unique_ptr<struct SafetensorsReaderState> state_;
};

/// Writes tensors one after another, so that only one must be in memory. Declare all entries first,
/// write their bytes in the same order, then call finish(). Until then the file is called
/// PATH.unfinished, and an older file at PATH is unchanged. Throws FileError.
class ZG_API SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
  };

  SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  ///< removes an unfinished file

  /// Writes the next entry. Throws FileError if the size is not the entry's.
  void write(std::span<const std::byte> bytes);
  /// Rounds to the entry's f32, bf16 or f16, to nearest even. Throws FileError for another dtype
  /// and for a finite value that f16 cannot hold.
  void write_floats(std::span<const float> values);
  /// Writes the next bytes of an entry that is written in several calls.
  void write_part(std::span<const std::byte> bytes);
  const std::string& header_checksum() const;  ///< the same as in SafetensorsReader
  void finish();                               ///< syncs the file to disk and renames it to PATH

 private:
  std::unique_ptr<struct SafetensorsWriterState> state_;
};

/// The tensors of a folder written by Hugging Face's transformers. They are in model.safetensors,
/// or in several files; then model.safetensors.index.json lists the file of each tensor. Throws
/// FileError naming file, tensor and offset; Unsupported if the folder has only pickles. Symbolic
/// links are followed, because a downloaded model is a folder of links. File names in the index
/// that lead out of the folder are refused.
class ZG_API SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& folder);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  ///< in byte order
  bool contains(const std::string& name) const { return place_of_.contains(name); }
  const Shape& shape(const std::string& name) const;  ///< FileError unless it can be read as floats
  DType dtype(const std::string& name) const;         ///< as stored
  /// Tensors that the index lists for a file that does not have them, each with this file.
  const std::map<std::string, std::string>& absent() const { return absent_; }
  /// Tensors of the files that the index does not list, or lists in another file.
  const std::vector<std::string>& unlisted() const { return unlisted_; }
  // As in SafetensorsReader.
  std::vector<float> read_floats(const std::string& name) const;
  std::vector<float> read_floats(const std::string& name, int64_t begin, int64_t numel) const;

 private:
  void read_index(const std::string& text);

  std::string path_;
  std::map<std::string, SafetensorsReader> files_;
  std::map<std::string, const SafetensorsReader*> place_of_;  // by tensor name
  std::map<std::string, std::string> absent_;
  std::vector<std::string> unlisted_;
};

/// Throws Unsupported if the folder has a pickle of this name. `expected` is the file that is read.
ZG_API void refuse_pickle(const std::string& folder, const char* pickle, const char* expected);

/// Parses the weight_map of an index: tensor name to file name. Throws FileError that begins with
/// `path`.
ZG_API std::map<std::string, std::string> weight_map_from(const std::string& text,
                                                          const std::string& path);

}  // namespace zg
