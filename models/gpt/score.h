#pragma once

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/runtime/comm/communicator.h"

namespace zg::models {

struct Score {
  struct Mistake {
    std::vector<int32_t> question, answer, expected;
  };
  int64_t correct = 0, total = 0;
  std::vector<Mistake> mistakes;  ///< the first three
};

/// Counts how many of the split's first `samples` questions (at most one epoch) the model answers
/// without an error. Answers are generated greedily, for `at_once` questions in one forward pass.
/// `ranks` share the questions and get the same score: each answers every size()-th batch, in as
/// many forward passes as the others. Throws ConfigError if the data set has no questions, and on
/// all ranks if logits of one are not finite.
ZG_API Score score(const GPT& model, const std::function<Tape()>& make_tape, const Dataset& dataset,
                   Split split, int64_t samples = 5000, int64_t at_once = 500,
                   Communicator* ranks = nullptr);

/// The mean loss of a target over the first `batches` batches of `batch` samples of a split.
/// `batches` = 0: the whole split. The last batch may be smaller. Throws ConfigError if the split
/// has no samples, or these samples no targets.
ZG_API double mean_loss(const GPT& model, const std::function<Tape()>& make_tape,
                        const Dataset& dataset, Split split, const Device& device, int64_t batch,
                        int64_t batches = 0);

}  // namespace zg::models
