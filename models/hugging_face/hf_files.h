#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/file_set.h"
#include "zerograd/runtime/storage/safetensors.h"

// Folders in Hugging Face's format, for every kind of model.
namespace zg::models {

inline constexpr const char *hf_config_name = "config.json",
                            *hf_generation_name = "generation_config.json";

/// Opens DIR/config.json. FileError if there is no such folder or file.
File open_hf_config(const std::string& directory);
/// The text of a config; FileError above 1 MiB.
std::string read_hf_text(const File& file);

/// A folder's open config.json, and the model that it and generation_config.json describe. `read`
/// parses the text of a config.json.
template <class Model>
struct HFFolderState {
  HFFolderState(std::string folder, Model (*read)(const std::string& text, const std::string& path))
      : path(std::move(folder)),
        config(open_hf_config(path)),
        model(read(read_hf_text(config), config.path())) {
    const std::string generation = path + "/" + hf_generation_name;
    if (path_exists(generation))
      read_hf_generation(read_hf_text(File::open(generation)), generation, model);
  }
  const std::string path;
  const File config;
  Model model;
};

/// Tensors of a folder that become the parameters of a model.
struct HFRequest {
  std::vector<HFTensor> tensors;  ///< as the folder should have them
  /// Shapes of the parameters that have only the first rows of their tensors.
  std::map<std::string, Shape> shortened = {};
  std::set<std::string> optional = {};  ///< tensors that are zeros where the folder has none
  /// Names of the tensors that config.json ties; the first is the parameter's name. The folder must
  /// have one of them, or several with equal values. (If the values differ, transformers 4 uses the
  /// first tensor for all, and transformers 5 does not tie them.)
  std::vector<std::string> tied = {};
  /// A prefix that the folder's names may lack.
  std::string prefix = {};

  /// A name without the prefix.
  std::string short_name(const std::string& name) const;
};

/// Throws FileError if a model has more blocks than the folder has tensors. Without this check, a
/// list of the blocks' parameters could take all memory.
void require_tensors_of_blocks(const SafetensorsFolder& folder, int64_t blocks);
/// The parameters' values, read on request. FileError for a missing tensor, another shape, a dtype
/// that is not floating-point, or tied tensors with different values.
WeightSource hf_weights(const std::shared_ptr<const SafetensorsFolder>& folder,
                        const HFRequest& request);

/// Tensors of a folder that are not parameters.
struct HFUnused {
  std::function<bool(const std::string& short_name)> ignored;  ///< true: not in the note
  std::vector<std::string> blocks;  ///< short names of parameters of blocks begin with one of these
  std::string model;                ///< for errors: "GPT-2 of 2 blocks"
};
/// A note that lists the tensors that the model does not use; empty if there are none. Throws
/// FileError if the folder has more blocks than the model.
std::string unused_hf_tensors(const SafetensorsFolder& folder, const HFRequest& request,
                              const HFUnused& unused);

/// Writes DIR/model.safetensors with these tensors, config.json and generation_config.json, and
/// returns the hash of the weights, as export_hugging_face() does.
std::string write_hf_folder(const WeightSource& weights, const std::vector<HFTensor>& tensors,
                            const std::string& config, const std::string& generation,
                            const std::string& directory,
                            const std::function<void(FileSet& files)>& add, DType dtype);
/// Throws FileError unless the weights have every tensor, in its shape.
void require_weights(const WeightSource& weights, const std::vector<HFTensor>& tensors);

}  // namespace zg::models
