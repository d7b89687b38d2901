#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/options.h"
#include "zerograd/models/hugging_face.h"
#include "zerograd/models/text/tokenizer.h"
#include "zerograd/runtime/file_io.h"
#include "zerograd/zero/checkpoint_file.h"

// GPT-2 and BLOOM in Hugging Face's folders: models/hugging_face.h says what is in them, here they
// are read and written.
namespace zg::tools {

/// A model in a folder as transformers writes one. config.json and generation_config.json are read
/// when it is made, the rest when it is asked for. FileError; Unsupported for a model that is none
/// of ours.
class HuggingFaceFolder {
 public:
  explicit HuggingFaceFolder(std::string path);

  /// Whether there is a folder with a config.json and no checkpoint.
  static bool is_at(const std::string& path);

  const std::string& path() const { return path_; }
  const models::HFModel& model() const { return model_; }
  /// Whether models::load_tokenizer() finds one in it.
  bool has_tokenizer() const;
  /// Its tensors by our names, [out, in], positions cut to the model's block size. FileError for
  /// what is missing, of another shape or of blocks that the model has not. `note`, where given,
  /// says what else is not used; empty: nothing.
  zero::WeightSource weights(const models::GPTConfig& model, std::string* note = nullptr) const;

 private:
  std::string path_;
  File config_;
  models::HFModel model_;
};

/// Fills the model's options from the folder of --from-hf: all of its model but --block-size, which
/// may be smaller (the first positions are taken) or, with ALiBi, any, and --dropout. ConfigError
/// for flags that size it otherwise; Unsupported for several dropouts. Returns what a user should
/// know, a line each.
std::vector<std::string> adopt_hf(const HuggingFaceFolder& folder, TrainOptions& options);

/// Writes DIR/model.safetensors (f32), config.json, generation_config.json and, where there is a
/// tokenizer, its files; older ones of these names stay until all are written. Returns what
/// Engine::parameter_hash() says of the weights.
std::string export_hf(const zero::WeightSource& weights, const models::HFModel& model,
                      const models::Tokenizer* tokenizer, const std::string& directory);

}  // namespace zg::tools
