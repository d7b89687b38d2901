#include "zerograd/runtime/plan.h"

#include <cstdio>
#include <cstdlib>

#include "tests/runtime/comm/mpirun.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/comm/processes.h"

// Programs of tensors and collectives; those with an engine are in tests/zero/plan_test.cpp.
using namespace zg;
using namespace zg::testing;

namespace {

/// Ranks that allocate and exchange differently; rank 1 allocates more where `extra` says so.
Program exchange(bool extra = false) {
  return [extra](Communicator& ranks, const Device& device) {
    const Tensor own = Tensor::zeros({300 * (ranks.rank() + 1)}, DType::f32, device);
    const PhaseScope phase(device, "exchange");
    const Tensor shard = Tensor::zeros({64}, DType::f32, device);
    const Tensor full = Tensor::empty({64 * ranks.size()}, DType::f32, device);
    ranks.wait(ranks.all_gather(shard, full, "all"));
    const NameScope name(device, "surplus");
    if (extra && ranks.rank() == 1) const Tensor more = Tensor::empty({777}, DType::f32, device);
    count_step(device);
  };
}

}  // namespace

TEST_CASE("mpi child: planned ranks" * doctest::skip()) {
  const std::string want = std::getenv("ZG_TEST_MPI");
  const Plan plan = plan_ranks(3, exchange());
  try {
    const MemoryReport run = run_ranks(3, exchange(want == "surplus"), {.expect = &plan});
    std::fprintf(stderr, "rank %d: %zu ranks, %s\n", process_rank()->rank, run.ranks.size(),
                 run == plan && run.json() == plan.json() ? "as planned" : run.json().c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", process_rank()->rank, error.what());
    std::_Exit(1);
  }
}

TEST_CASE("mpi: each process gets the memory report of all ranks, and it equals the plan") {
  if (skips_mpi("planned ranks")) return;
  const Ended ended = mpirun(3, "mpi child: planned ranks", "ZG_TEST_MPI=same", "");
  CAPTURE(ended.text);
  CHECK(ended.status == 0);
  for (const int rank : {0, 1, 2})
    CHECK(contains(ended.text, "rank " + std::to_string(rank) + ": 3 ranks, as planned"));
}

TEST_CASE(
    "mpi: an error names the process that differs from its plan, and its unplanned allocation") {
  if (skips_mpi("planned ranks")) return;
  const Ended ended = mpirun(3, "mpi child: planned ranks", "ZG_TEST_MPI=surplus", "");
  CAPTURE(ended.text);
  CHECK(ended.status != 0);
  CHECK(contains(ended.text,
                 "rank 1/3: plan: expected the end after event 4, got an allocation of 3328 bytes "
                 "of activation (device) for 'surplus' in step 0, phase exchange"));
}

TEST_CASE("memory reports of equal programs are equal, and one different byte makes them unequal") {
  const Plan plan = plan_ranks(2, exchange());
  CHECK((plan == plan_ranks(2, exchange())));
  CHECK((plan != plan_ranks(2, exchange(true))));
  CHECK(plan.ranks[0].steps == 1);
  CHECK(plan.ranks[0].phases.size() == 2);
  CHECK(plan.peaks().size() == 2);
  CHECK(plan.ranks[1].peak[0] > plan.ranks[0].peak[0]);
  MemoryReport other = plan;
  CHECK((other == plan));
  other.ranks[1].wire[0].bytes += 1;
  CHECK((other != plan));
  CHECK(contains(plan.json(), R"({"schema":"zerograd.memory/1","world":2,)"));
  CHECK(contains(plan.table(), "| exchange | device |"));
}

TEST_CASE("a program that catches OutOfMemory has the same memory in its plan and its run") {
  const Program program = [](Communicator&, const Device& device) {
    try {
      Tensor::zeros({4 << 20}, DType::f32, device);
    } catch (const OutOfMemory&) {
    }
    const Tensor small = Tensor::zeros({100}, DType::f32, device);
  };
  const DeviceOptions device = {.threads = 1, .memory_limit = 6 << 20};
  const Plan plan = plan_ranks(1, program, {.device = device});
  CHECK_FALSE(plan.ranks[0].refused);
  CHECK((run_ranks(1, program, {.local = {.device = device}, .expect = &plan}) == plan));
}

TEST_CASE(
    "run_ranks reports peaks and step counts that differ from the plan due to a tensor's value") {
  const auto differs = [](const Program& program) {
    const Plan plan = plan_ranks(1, program);
    return message_of<PlanError>([&] { run_ranks(1, program, {.expect = &plan}); });
  };
  const std::string freed = differs([](Communicator&, const Device& device) {
    Tensor a = Tensor::full({5000}, 1.0, DType::f32, device);
    const Tensor one = Tensor::full({1}, 1.0, DType::f32, device);
    if (one.item() > 0) a = {};
    const Tensor b = Tensor::zeros({5000}, DType::f32, device);
  });
  CHECK(contains(freed, "of bytes at the peak in phase outside (device) 40704 were planned and "));
  const std::string counted = differs([](Communicator&, const Device& device) {
    const Tensor one = Tensor::full({1}, 1.0, DType::f32, device);
    if (one.item() > 0) count_step(device);
  });
  CHECK(contains(counted, "of steps 0 were planned and 1 taken"));
}

TEST_CASE("a plan of another machine, an empty program and negative limits are refused") {
  PlanOptions options;
  options.device.threads = 1;
  const Plan plan = plan_ranks(2, exchange(), options);
  RunOptions run = {.expect = &plan};
  run.local.device.threads = 2;
  CHECK_ERROR(PlanError, "1 threads, the run has ", run_ranks(2, exchange(), run));
  CHECK_THROWS_AS(plan_ranks(1, Program()), ConfigError);
  CHECK_THROWS_AS(run_ranks(1, Program()), ConfigError);
  options.steps = -1;
  CHECK_THROWS_AS(plan_ranks(1, exchange(), options), ConfigError);
}
