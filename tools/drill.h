#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tools/command_line.h"

namespace zg::tools {

/// A fault on purpose, to see a run end as it should: on one rank, at the beginning of a step
/// or of several.
struct Drill {
  enum class Fault : uint8_t {
    none,
    error,    ///< "throw": a ShapeError, as a mistaken shape would
    leave,    ///< "return": the rank ends early as if it were done
    stall,    ///< the rank stays in its own code
    infinity  ///< "inf": an infinite gradient; the step is skipped on all ranks
  };
  Fault fault = Fault::none;
  int64_t rank = 0;
  std::vector<int64_t> steps;  ///< rising
  int64_t struck = 0;          ///< in earlier attempts of this run

  bool strikes(int at_rank, int64_t at_step, Fault which) const {
    if (fault != which || rank != at_rank) return false;
    // The run ends where it is struck, so that each attempt has one of the steps; inf ends nothing.
    if (fault == Fault::infinity)
      return std::find(steps.begin(), steps.end(), at_step) != steps.end();
    return struck < static_cast<int64_t>(steps.size()) &&
           steps[static_cast<size_t>(struck)] == at_step;
  }
};

/// --inject rank=R,step=S[+S...],fault=throw|return|stall|inf
Flag drill_flag(Drill& drill);

}  // namespace zg::tools
