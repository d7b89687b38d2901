#pragma once

#include "zerograd/runtime/plan.h"

namespace zg::testing {

/// Plans a program, then runs it with RunOptions::expect, which names the first difference, and
/// checks that both reports are equal.
inline Plan check_planned(int ranks, const Program& program, const DeviceOptions& device = {}) {
  const Plan plan = plan_ranks(ranks, program, {.device = device});
  CHECK(plan.complete);
  const MemoryReport run =
      run_ranks(ranks, program, {.local = {.device = device}, .expect = &plan});
  CHECK(run.json() == plan.json());
  CHECK(run.table() == plan.table());
  CHECK((run == plan));
  return plan;
}

}  // namespace zg::testing
