#pragma once

#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "tools/options.h"
#include "zero/checkpoint_file.h"

// GPT-2 and BLOOM in Hugging Face's folders: models/hugging_face.h says what is in them, here they
// are read and written.
namespace zg::tools {

/// Fills the model's options from DIR/config.json: all of --from-hf's model but its --block-size,
/// which may be smaller (the first positions are taken) or, with ALiBi, any, and --dropout.
/// ConfigError for flags that size it otherwise; FileError, Unsupported. Returns what a user should
/// know, a line each.
std::vector<std::string> adopt_hf(TrainOptions& options);

/// DIR's tensors by our names, [out, in], positions cut to the model's block size. FileError for
/// what is missing, of another shape or of blocks that the model has not. `note`, where given, says
/// what else is not used; empty: nothing.
zero::WeightSource hf_weights(const std::string& directory, const models::GPTConfig& model,
                              std::string* note = nullptr);

/// Writes DIR/model.safetensors (f32), DIR/config.json and, where there is one, the tokenizer's
/// files; older ones of these names stay until all are written. Returns what
/// Engine::parameter_hash() says of the weights.
std::string export_hf(const zero::WeightSource& weights, const models::GPTConfig& model,
                      const models::Tokenizer* tokenizer, const std::string& directory);

}  // namespace zg::tools
