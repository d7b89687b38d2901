#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "tools/run/setup.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/tokenizer/text_stream.h"

namespace zg::tools {

/// A trained model for inference, with its weights on a device.
struct TrainedModel {
  SavedModel saved_model;
  Device device;
  ParameterStore store;
  std::unique_ptr<models::GPT> model;        ///< null: an encoder-decoder
  std::unique_ptr<models::Seq2Seq> seq2seq;  ///< null: a decoder
  std::unique_ptr<Values> values;

  TrainedModel(SavedModel saved, Device where)
      : saved_model(std::move(saved)), device(std::move(where)) {}
  std::function<Tape()> make_tape() const {
    return [this] { return values->inference_tape(); };
  }
};

/// open_saved_model(); a decoder has the block size of the options, if its positions allow it.
SavedModel open_for_inference(const std::string& path, const ModelOptions& options,
                              const AdapterPaths& paths);

/// Why the work of a command is called.
enum class InferenceMode : uint8_t {
  run,
  plan,   ///< on a device without memory: all of it, without output
  budget  ///< the same for the part that takes the most memory, before a run
};
using InferenceWork = std::function<void(const TrainedModel& model, InferenceMode mode)>;

/// Plans the work, and then, unless `only_planned`, reads the weights and does it. Both execute the
/// same code, so the bytes are the same. Throws OutOfMemory before weights are read if the plan
/// needs more than --device-memory, --host-memory or the memory that this machine has available.
/// Writes --memory-json. Returns the exit status: 3 for a plan that exceeds a flag's limit.
int run_inference(const SavedModel& saved_model, const InferenceOptions& options,
                  const InferenceWork& work);

/// Throws ConfigError that begins with `flag` for a token that a model does not know.
void check_prompt(const char* flag, std::span<const int32_t> prompt, int64_t vocabulary);
void print_text(const std::string& text);  ///< to stdout, flushed
/// Continues the prompt with a decoder by `length` tokens, or until one of sampling.ends. Writes
/// the text as it comes, and a new line, with `words`; null, or in a plan: writes nothing. Returns
/// the text.
std::string write_continuation(const TrainedModel& trained, const std::vector<int32_t>& prompt,
                               int64_t length, models::SamplingOptions sampling,
                               models::TextStream* words, InferenceMode mode);

}  // namespace zg::tools
