#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"

namespace zg::tools {

/// Fault injection: one fault on one rank, in one step or several, to check how a run ends.
struct FaultInjection {
  enum class Fault : uint8_t {
    none,
    error,     ///< "throw": a ShapeError, as for an argument of the wrong shape
    leave,     ///< "return": the rank ends early, without an error
    stall,     ///< the rank hangs outside any collective
    infinity,  ///< "inf": an infinite gradient; the step is skipped on all ranks
    kill,      ///< SIGKILL for the process, with all its ranks if they are threads
    stop,      ///< SIGSTOP: processes only
    memory,    ///< "oom": the rank allocates more memory than exists
    mismatch   ///< the rank calls a collective that the other ranks do not call
  };
  enum class Phase : uint8_t {
    begin,  ///< start of the step; the default phase
    init,   ///< before step 0 or before the first resumed step; has no step number
    forward,
    backward,
    step,  ///< the optimizer update
    save   ///< the save at the end of a step
  };
  Fault fault = Fault::none;
  Phase phase = Phase::begin;
  int64_t rank = 0;
  std::vector<int64_t> steps;   ///< ascending
  int64_t injected_before = 0;  ///< faults injected in earlier attempts of this run

  bool applies(int at_rank, int64_t at_step, Phase at) const {
    if (fault == Fault::none || rank != at_rank || phase != at) return false;
    if (phase == Phase::init) return injected_before == 0;
    // Each attempt of a run ends at its fault, so each attempt uses one of the steps. inf does not
    // end a run.
    if (fault == Fault::infinity)
      return std::find(steps.begin(), steps.end(), at_step) != steps.end();
    return injected_before < static_cast<int64_t>(steps.size()) &&
           steps[static_cast<size_t>(injected_before)] == at_step;
  }
};

/// The words of --inject in the order of the enumerators, without none and begin, which have no
/// word.
inline const std::vector<std::string> fault_words = {"throw", "return", "stall", "inf",
                                                     "kill",  "stop",   "oom",   "mismatch"};
inline const std::vector<std::string> phase_words = {"init", "forward", "backward", "step", "save"};

/// Thrown for the fault "return".
struct LeftEarly {};

/// Called when a rank enters a phase. If the injection requests a fault there, prints a line on
/// stderr and injects the fault. (Fault::infinity is implemented in the forward pass instead.) Does
/// nothing on a device without memory.
void inject(const FaultInjection& injection, FaultInjection::Phase phase, int64_t step,
            Communicator& ranks, const Device& device);

}  // namespace zg::tools
