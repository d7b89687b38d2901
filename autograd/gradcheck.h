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
};

struct GradcheckResult {
  bool ok = false;
  double worst = 0.0;  ///< the largest error
  std::string report;  ///< where it was: input, element, analytic and numeric value
  explicit operator bool() const { return ok; }
};

/// Compares backward with central differences in f64, for every element of every input. The
/// function's output is contracted with fixed pseudo-random weights, so every output element
/// counts. Throws DTypeError unless all inputs are f64 on a cpu device.
ZG_API GradcheckResult gradcheck(const std::function<Var(Tape&, std::span<const Var>)>& function,
                                 const std::vector<Tensor>& inputs,
                                 const GradcheckOptions& options = {});

}  // namespace zg
