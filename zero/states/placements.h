#pragma once

#include <cstdint>
#include <span>

#include "zerograd/autograd/parameter.h"
#include "zerograd/zero/config.h"

namespace zg::zero {

/// Where each storage's values and states rest: where the config says, but for what ratio and
/// parameters_on_host leave out. Asked for one storage after the other, the same on every rank.
class Placements {
 public:
  Placements(const OffloadOptions& offload, const ParameterStore& store, int world);

  struct Placement {
    Space parameter, optimizer;
  };
  Placement next(std::span<const Parameter* const> parameters, bool stays_whole);

 private:
  const OffloadOptions& offload_;
  const int world_;
  double states_left_ = 0.0;  // elements whose states are still to go to `optimizer`
  int64_t host_left_;         // elements of this rank's values that may yet rest on the host
};

}  // namespace zg::zero
