#pragma once

#include <functional>
#include <optional>
#include <string>

#include "zerograd/models/data.h"
#include "zerograd/models/gpt.h"
#include "zerograd/models/score.h"

namespace zg::tools {

/// A model with the data it is measured on.
struct Evaluation {
  const models::GPT& model;
  std::function<Tape()> make_tape;  ///< that records nothing
  const models::Dataset& dataset;
  Device device;
  bool sorts = false;  ///< the sort task: mistakes are worded as minGPT's demo does

  /// Mean loss over the first `batches` batches of `batch` samples of the validation split, the
  /// last one cut at the split's end; 0: all of it. ConfigError when there is no validation split.
  double loss(int64_t batch, int64_t batches) const;

  /// Both splits' scores, `batch` problems at a time, as `print` is given them: "train final score:
  /// 5000/5000 = 100.00% correct", after up to three mistakes each. Sort and adder only.
  struct Scores {
    double train, test;  ///< of 1
  };
  Scores scores(int64_t batch, int64_t samples,
                const std::function<void(const std::string&)>& print) const;

  /// The first pass of scores(), on a device without memory: none of the others takes more.
  void walk_scores(int64_t batch, int64_t samples) const;

  /// minGPT's last lines: one problem of the test split, what the model makes of it, and whether it
  /// is right.
  void print_example(const std::function<void(const std::string&)>& print) const;
};

}  // namespace zg::tools
