// Runs of the command with --reduction-groups: every mesh has the bits of one rank.
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string grouped_by_8 =
    "--data " ZG_CONFIGS
    "../../LICENSE --val-fraction 0 --block-size 16 --steps 3 --train-batch-size 16 --batch-size 2 "
    "--log-interval 0 --threads 1 --lr 3e-3 --n-layer 2 --dropout 0.1 --reduction-groups 8 ";

}  // namespace

TEST_CASE("every mesh trains the families of decoders to one hash with 8 reduction groups") {
  // Heads, widths and vocabularies that 8 does not divide, or not into powers of two.
  const char* const models[] = {
      "--n-head 8 --n-embd 24 --vocab-size 50257 --steps 1 ",
      "--n-head 24 --n-embd 48 --tied --precision bf16 ",
      "--model-type bloom --n-head 8 --n-embd 32 --vocab-size 100 --precision bf16 "
      "--grad-accum-dtype bf16 ",
      "--model-type llama --n-head 16 --num-query-groups 8 --n-embd 64 --intermediate-size 90 "
      "--rampup-batch-size 4 4 24 "};
  const char* const meshes[] = {
      "--ranks 8 --tensor-parallel 8",
      "--ranks 8 --tensor-parallel 2 --pipeline-parallel 2 --zero-stage 1",
      "--ranks 8 --tensor-parallel 4 --activation-checkpoint",
      "--ranks 8 --tensor-parallel 4 --pipeline-parallel 2 --schedule-pipeline gpipe"};
  for (size_t m = 0; m < std::size(models); ++m) {
    const std::string line = "train " + grouped_by_8 + models[m];
    const Curve one = curve_of(line);
    CHECK(one.losses.size() > 0);
    CHECK(one.last.at("reduction_groups") == 8);
    // Each mesh with two of the models.
    for (size_t i = m % 2; i < std::size(meshes); i += 2) {
      INFO(models[m], ", ", meshes[i]);
      CHECK(curve_of(line + meshes[i]) == one);
    }
  }
}

TEST_CASE("plan names the reduction groups of a run, also on one rank") {
  const TemporaryFolder folder;
  const Outcome plan = checked(
      zerograd("plan " + grouped_by_8 + "--n-head 8 --n-embd 16 --memory-json " + (folder / "m")));
  CHECK(contains(plan.out, "\nmesh: data 1 x pipeline 1 x tensor 1, 8 reduction groups\n"));
  CHECK(json_lines(folder / "m")[0].at("reduction_groups") == 8);
}

TEST_CASE("models and optimizers whose sums reduction groups do not reach are refused by name") {
  const auto refused = [](const std::string& flags, int status, const std::string& what) {
    check_refused("plan " + grouped_by_8 + flags, status, what);
  };
  refused("--n-head 12 --n-embd 48", 2,
          "reduction groups: expected a divisor of the 12 heads (1, 2, 3, 4, 6, 12), got 8");
  refused("--model-type phi3 --n-head 16 --num-query-groups 8 --n-embd 64", 6,
          "one matrix for grouped queries, keys and values with 8 reduction groups");
  refused("--model-type olmo2 --n-head 8 --n-embd 64", 6,
          "a norm of all heads' queries and keys with 8 reduction groups");
  check_refused("plan --model-type blenderbot-400m --reduction-groups 8", 6,
                "expected a decoder with it, got an encoder-decoder and 8 groups");
  for (const char* optimizer : {"muon", "adafactor"})
    refused(
        "--n-head 8 --n-embd 32 --ranks 2 --tensor-parallel 2 --optimizer " +
            std::string(optimizer),
        6,
        "the optimizer is " + std::string(optimizer) + ", and tensor ranks divide the parameter");
}

}  // namespace zg::testing
