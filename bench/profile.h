#pragma once

#include <string>
#include <vector>

#include "zerograd/runtime/trace.h"

namespace zg::bench {

/// A share of the time that spans named "step" cover.
struct ProfileRow {
  std::string
      part;        ///< "matmul forward", "layer_norm", ..., a kernel's own name, "between kernels"
  double seconds;  ///< total over all profiled steps
};

/// Where the steps of one rank went, the largest part first; the seconds add up to the steps'. A
/// kernel that another one calls counts as that one's. "waiting" is for peers, copies and NVMe;
/// what is in no kernel and no wait is "between kernels".
std::vector<ProfileRow> profile(const std::vector<Trace::Span>& spans, int rank);

}  // namespace zg::bench
