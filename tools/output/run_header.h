#pragma once

#include <string>

#include "tools/options/batch_rampup.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/schedule.h"

// Lines printed at the start of a run.
namespace zg::tools {

std::string described(const zero::ScheduleOptions& schedule);
/// ", optimizer on the host"; empty if all states are on the device.
std::string described(const zero::OffloadOptions& offload);
std::string described(const BatchRampup& rampup, int64_t whole);

}  // namespace zg::tools
