#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/tape.h"

namespace zg {

struct GradcheckOptions {
  double step = 1e-6;       ///< step of the central differences
  double tolerance = 1e-6;  ///< on |analytic - numeric| / max(1, |numeric|)
  int order = 1;            ///< 2: the derivatives of the gradients of grad()
};

struct GradcheckResult {
  bool ok = false;
  double worst = 0.0;  ///< the largest error
  /// Location of the largest error: input, element, analytic and numeric value.
  std::string report;
  explicit operator bool() const { return ok; }
};

/// Compares the gradients of backward with central differences in f64, for every element of every
/// input. The output is multiplied by fixed pseudo-random weights and summed, so every element of
/// the output is tested. Throws DTypeError unless all inputs are f64 on a cpu device.
ZG_API GradcheckResult gradcheck(const std::function<Var(Tape&, std::span<const Var>)>& function,
                                 const std::vector<Tensor>& inputs,
                                 const GradcheckOptions& options = {});

}  // namespace zg
