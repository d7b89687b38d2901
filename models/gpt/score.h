#pragma once

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/generate.h"

namespace zg::models {

struct Score {
  struct Mistake {
    std::vector<int32_t> question, answer, expected;
  };
  int64_t correct = 0, total = 0;
  std::vector<Mistake> mistakes;  ///< the first three
};

/// How many of the split's first `samples` questions (at most an epoch) the model answers without
/// an error, each token being the most likely one; `at_once` of them in one forward pass.
/// ConfigError when the data asks none.
ZG_API Score score(const GPT& model, const std::function<Tape()>& make_tape, const Dataset& dataset,
                   Split split, int64_t samples = 5000, int64_t at_once = 500);

/// The mean loss over the first `batches` batches of `batch` samples of a split, the last one cut
/// at the split's end; batches = 0: all of it. ConfigError when the split has no samples.
ZG_API double mean_loss(const GPT& model, const std::function<Tape()>& make_tape,
                        const Dataset& dataset, Split split, const Device& device, int64_t batch,
                        int64_t batches = 0);

}  // namespace zg::models
