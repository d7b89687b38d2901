#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "zerograd/runtime/comm.h"
#include "zerograd/runtime/command_line/command_line.h"

namespace zg::tools {

/// A fault on purpose, to see a run end as it should: on one rank, in one step or several.
struct Drill {
  enum class Fault : uint8_t {
    none,
    error,     ///< "throw": a ShapeError, as a mistaken shape would
    leave,     ///< "return": the rank ends early as if it were done
    stall,     ///< the rank stays in its own code
    infinity,  ///< "inf": an infinite gradient; the step is skipped on all ranks
    kill,      ///< SIGKILL: of the process, with all its ranks where they are threads
    stop,      ///< SIGSTOP: processes only
    memory,    ///< "oom": the rank asks for more than there is
    mismatch   ///< the rank calls a collective that the others do not
  };
  enum class Phase : uint8_t {
    begin,  ///< of the step, where no phase is given
    init,   ///< before step 0, or before the first after resuming: without a step
    forward,
    backward,
    step,  ///< the optimizer's
    save   ///< of what a step ends with
  };
  Fault fault = Fault::none;
  Phase phase = Phase::begin;
  int64_t rank = 0;
  std::vector<int64_t> steps;  ///< rising
  int64_t struck = 0;          ///< in earlier attempts of this run

  bool strikes(int at_rank, int64_t at_step, Phase at) const {
    if (fault == Fault::none || rank != at_rank || phase != at) return false;
    if (phase == Phase::init) return struck == 0;
    // The run ends where it is struck, so that each attempt has one of the steps; inf ends nothing.
    if (fault == Fault::infinity)
      return std::find(steps.begin(), steps.end(), at_step) != steps.end();
    return struck < static_cast<int64_t>(steps.size()) &&
           steps[static_cast<size_t>(struck)] == at_step;
  }
};

/// Thrown by "return".
struct LeftEarly {};

/// Where a rank passes a phase: what the drill asks of it then, after a line on stderr. infinity is
/// for the phase itself. On a device without memory nothing.
void strike(const Drill& drill, Drill::Phase phase, int64_t step, Communicator& ranks,
            const Device& device);

/// --inject rank=R,step=S[+S...],fault=throw|return|stall|inf|kill|stop|oom|mismatch[,phase=P]
Flag drill_flag(Drill& drill);

}  // namespace zg::tools
