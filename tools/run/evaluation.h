#pragma once

#include <functional>
#include <string>

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/gpt/score.h"

namespace zg::tools {

/// A model and the dataset on which it is evaluated.
struct Evaluation {
  const models::GPT& model;
  std::function<Tape()> make_tape;  ///< makes a tape that records nothing
  const models::Dataset& dataset;
  Device device;
  bool sorts = false;  ///< the sort task: mistakes are printed in the words of minGPT's demo

  /// Mean loss over the first `batches` batches of `batch` samples of the validation split; the
  /// last batch may be smaller. 0 batches: the whole split. Throws ConfigError when there is no
  /// validation split.
  double loss(int64_t batch, int64_t batches) const;

  /// Scores of both splits, computed `batch` problems at a time. Each line, "train final score:
  /// 5000/5000 = 100.00% correct", is passed to `print` after up to three mistakes. Sort and adder
  /// only.
  struct Scores {
    double train, test;  ///< fraction from 0 to 1
  };
  Scores scores(int64_t batch, int64_t samples,
                const std::function<void(const std::string&)>& print) const;

  /// Dry run of the first pass of scores(); the later passes do not need more memory.
  void plan_scores(int64_t batch, int64_t samples) const;

  /// minGPT's last lines: one problem of the test split, the model's answer, and whether it is
  /// right.
  void print_example(const std::function<void(const std::string&)>& print) const;
};

}  // namespace zg::tools
