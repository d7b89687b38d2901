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
  bool is_sort_task = false;  ///< false: the adder. Chooses the printed wording

  /// Mean loss over the first `batches` batches of `batch` samples of the validation split; the
  /// last batch may be smaller. 0 batches: the whole split. Throws ConfigError when there is no
  /// validation split.
  double loss(int64_t batch, int64_t batches) const;

  /// Scores of the training and the validation split, computed `batch` problems at a time. minGPT
  /// calls the validation split test. For each split, `print` gets a line for each of the first
  /// three mistakes, then the score: "train final score: 5000/5000 = 100.00% correct". Sort and
  /// adder only.
  struct Scores {
    double train, test;  ///< fraction from 0 to 1
  };
  Scores scores(int64_t batch, int64_t samples,
                const std::function<void(const std::string&)>& print) const;

  /// Dry run of the first forward pass of scores(), on the questions of one batch. The later passes
  /// do not need more memory.
  void plan_scores(int64_t batch, int64_t samples) const;

  /// Sort only. Prints the lines that minGPT's demo prints at its end: one problem of the
  /// validation split, the model's answer, the expected answer, and whether they are equal.
  void print_example(const std::function<void(const std::string&)>& print) const;
};

}  // namespace zg::tools
