#pragma once

#include <map>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/safetensors.h"

namespace zg {

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
