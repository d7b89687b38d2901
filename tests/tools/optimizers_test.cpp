#include <doctest/doctest.h>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

// The optimizers by the command: one hash however the work is divided, exact plans, and a
// checkpoint that says which optimizer it is from.
using namespace zg;
using namespace zg::testing;

namespace {

const std::string optimizer_run =
    " --data sort --model-type gpt-nano --steps 3 --batch-size 2 --threads 1 --score-samples 0 "
    "--log-interval 0 --optimizer ";

std::string optimizer_hash(const std::string& line) {
  const Outcome outcome = zerograd(line);
  CAPTURE(outcome.error);
  CHECK(outcome.status == 0);
  return line_after(outcome.out, "param_hash ");
}

}  // namespace

TEST_CASE("each optimizer has one hash over ranks, stages, offload and restarts of the command") {
  const TemporaryFolder folder;
  std::string last = optimizer_hash("train" + optimizer_run + "adamw --grad-accum 4");
  for (const std::string optimizer :
       {"adam", "lion", "sgd", "sgd --momentum 0.9", "sgd --momentum 0.9 --nesterov"}) {
    CAPTURE(optimizer);
    const std::string run = "train" + optimizer_run + optimizer;
    const std::string alone = optimizer_hash(run + " --grad-accum 4");
    CHECK(alone.size() == 32);
    CHECK(alone != last);
    last = alone;
    for (const std::string layout :
         {" --ranks 2 --zero-stage 3 --grad-accum 2", " --ranks 4 --zero-stage 1",
          " --ranks 4 --pipeline-parallel 2 --zero-stage 3 --grad-accum 2",
          " --zero-stage 3 --offload-optimizer nvme --grad-accum 4 --nvme-path "})
      CHECK(optimizer_hash(run + layout + (layout.back() == ' ' ? folder.path() : "")) == alone);
    const std::string save = folder / alone;
    optimizer_hash(run + " --grad-accum 4 --steps 2 --save " + save);
    CHECK(optimizer_hash("train --resume " + save +
                         " --steps 3 --ranks 2 --threads 1 --score-samples 0 --log-interval 0") ==
          alone);
  }
}

TEST_CASE("a plan of each optimizer has the bytes of its run") {
  const TemporaryFolder folder;
  for (const std::string optimizer : {"lion", "sgd", "sgd --momentum 0.9"}) {
    CAPTURE(optimizer);
    const std::string flags = optimizer_run + optimizer +
                              " --ranks 2 --zero-stage 2 --precision bf16 --cpu-offload "
                              "--memory-json ";
    CHECK(zerograd("train" + flags + folder / "run").status == 0);
    CHECK(zerograd("plan" + flags + folder / "plan").status == 0);
    CHECK(read_file(folder / "run") == read_file(folder / "plan"));
  }
}

TEST_CASE("a checkpoint goes on with its optimizer, or is refused by name") {
  const TemporaryFolder folder;
  const std::string resume =
      "train --score-samples 0 --log-interval 0 --threads 1 --steps 4 --resume " + folder.path() +
      " --optimizer ";
  CHECK(zerograd("train" + optimizer_run + "lion --save " + folder.path()).status == 0);
  const Outcome other = zerograd(resume + "adamw");
  CHECK(other.status == 2);
  CHECK(contains(other.error,
                 "has moment1, which another optimizer saved; expected moment1 and "
                 "moment2, as adam keeps; try the optimizer that saved it"));
  CHECK(zerograd(resume + "lion").status == 0);
  const Outcome momentum = zerograd("train" + optimizer_run + "adamw --momentum 0.5");
  CHECK(momentum.status == 2);
  CHECK(contains(momentum.error, "update.momentum is 0.500000, the optimizer is adam"));
}
