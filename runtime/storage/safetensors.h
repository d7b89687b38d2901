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

/// A safetensors file, read by place: the header is checked in full when it is opened (offsets in
/// bounds, no overlap, sizes equal to shape times dtype, no duplicate names, header up to 100 MB),
/// tensors are read when asked for. Throws FileError naming file, tensor and offset.
class ZG_API SafetensorsReader {
 public:
  struct Entry {
    DType dtype;
    Shape shape;
    int64_t begin, end;  ///< bytes from the file's start
  };

  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&& other) noexcept;

  const std::map<std::string, Entry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(const std::string& name) const;
  /// Widened to f32 from f64, f32, bf16 or f16; FileError for others or an unknown name.
  std::vector<float> read_floats(const std::string& name) const;
  std::vector<float> read_floats(const std::string& name, int64_t begin, int64_t numel) const;
  /// The same a few MiB at a time, in order.
  using Visit = std::function<void(std::span<const float> values)>;
  void for_floats(const std::string& name, const Visit& visit) const;
  /// Elements [begin, begin + numel), which the tensor has; read_floats() alike.
  void for_floats(const std::string& name, int64_t begin, int64_t numel, const Visit& visit) const;
  /// XXH3-128 of the file's bytes before its tensors.
  const std::string& header_checksum() const;

 private:
  const Entry& floats(const std::string& name) const;

  std::unique_ptr<struct SafetensorsReaderState> state_;
};

/// Writes tensors one after another, so that no more than one is in memory: declare all names
/// first, then write their bytes in the same order, then finish(). Until then the file is called
/// PATH.unfinished, and PATH keeps what it held. Throws FileError.
class ZG_API SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
  };

  SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  ///< removes what is unfinished

  void write(std::span<const std::byte> bytes);  ///< FileError when the size is not the entry's
  void write_floats(std::span<const float> values);
  void write_part(std::span<const std::byte> bytes);  ///< next bytes of an entry
  const std::string& header_checksum() const;         ///< as the reader's
  void finish();  ///< fsyncs, gives the file its name and makes that durable

 private:
  std::unique_ptr<struct SafetensorsWriterState> state_;
};

/// The tensors of a folder as Hugging Face's transformers writes one: model.safetensors, or the
/// files that model.safetensors.index.json spreads them over. Throws FileError naming file, tensor
/// and place; Unsupported where there are only pickles. Links to files are followed, for a
/// downloaded model is a folder of links; names that lead out of the folder are refused.
class ZG_API SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& folder);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  ///< in byte order
  bool contains(const std::string& name) const { return place_of_.contains(name); }
  const Shape& shape(const std::string& name) const;
  // As SafetensorsReader's.
  std::vector<float> read_floats(const std::string& name) const;
  std::vector<float> read_floats(const std::string& name, int64_t begin, int64_t numel) const;

 private:
  void open(const std::string& file);
  void read_index(const std::string& text);

  std::string path_;
  std::map<std::string, SafetensorsReader> files_;
  std::map<std::string, const SafetensorsReader*> place_of_;  // by tensor name
};

/// weight_map of an index: tensor to file. FileError; `path` is for it.
ZG_API std::map<std::string, std::string> weight_map_from(const std::string& text,
                                                          const std::string& path);

}  // namespace zg
