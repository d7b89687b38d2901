#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/accelerator/channels.h"
#include "tests/runtime/comm/mpirun.h"
#include "tests/support/error_message.h"
#include "tests/support/tested_type.h"
#include "zerograd/runtime/comm/processes.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("mpi child: channels on accelerators" * doctest::test_suite("every device") *
          doctest::skip()) {
  run_processes(
      [](Communicator& comm, const Device& device) {
        check_channels(comm, device);
        if (comm.rank() == 0) std::printf("by %s\n", comm.transport().c_str());
      },
      {.timeout_s = 240, .type = tested_type});
}

TEST_CASE("mpi: groups of processes on accelerators exchange tensors through the host or by NCCL" *
          doctest::test_suite("every device")) {
  if (skips_mpi("channels on accelerators")) return;
  std::vector<std::pair<std::string, std::string>> ways = {
      {"direct", "by MPI and memory of the h"}};
  if (tested_type == Device::Type::cuda) ways.emplace_back("nccl", "by NCCL ");
  if (tested_type == Device::Type::hpu) ways = {{"direct", "by MPI"}};
  for (const auto& [way, transport] : ways) {
    const Ended ended = mpirun(4, "mpi child: channels on accelerators", "ZG_CUDA_COMM=" + way);
    CAPTURE(ended.text);
    CHECK(ended.status == 0);
    CHECK(contains(ended.text, transport));
    CHECK(contains(ended.text, "1 passed"));
  }
}
