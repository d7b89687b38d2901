#include <sys/wait.h>

#include <cstdlib>
#include <future>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/zero/states/partition.h"

namespace zg::testing {
namespace {

// A step has 8 micro-batches of 2, for any number of ranks.
const std::string sort_run =
    "train --data sort --steps 3 --train-batch-size 16 --batch-size 2 --score-samples 0 "
    "--log-interval 0 --threads 1 ";

}  // namespace

TEST_CASE("--dump-gradients writes the same bytes by four ranks at stage 3 and with NVMe") {
  const TemporaryFolder folder;
  const std::string run = sort_run + "--precision bf16 --steps 2 --dump-gradients ";
  const auto dumped = [&](const std::string& flags) {
    checked(zerograd(run + (folder / "file:1") + flags));
    return read_file(folder / "file");
  };
  const std::string expected = dumped("");
  CHECK(expected.size() > 85'000 * 4);
  for (const char* name : {"transformer.h.0.attn.c_attn.weight", "lm_head.weight"})
    CHECK(contains(expected, name));
  CHECK(dumped(" --zero-stage 3 --ranks 4") == expected);
  for (const char* ranks : {"1", "2"})
    CHECK(dumped(std::string(" --zero-stage 3 --offload-gradients nvme --nvme-path /tmp --ranks ") +
                 ranks) == expected);
}

TEST_CASE("any ranks and stage give the parameters, losses and norms of one rank") {
  const std::vector<std::string> layouts = {
      "--zero-stage 3",
      "--ranks 2 --zero-stage 0",
      "--gpus 2 --strategy deepspeed_stage_1",
      "--ranks 2 --zero-stage 3 --activation-checkpoint",
      "--num_gpus 4 --zero-stage 2",
      "--ranks 4 --zero-stage 1 --overlap-comm off",
      "--ranks 4 --zero-stage 3 --param-persistence-threshold 0 --reduce-bucket-size 999",
      "--ranks 8 --zero-stage 0",
      "--ranks 8 --zero-stage 3 --param-persistence-threshold 0 --prefetch-bucket-size 0"};
  // In f16 with a scale of 2^17 the first steps are skipped.
  const char* const precisions[] = {"f32", "bf16", "f16 --initial-scale-power 17 --steps 6"};
  for (size_t p = 0; p < 3; ++p) {
    const std::string run = sort_run + "--precision " + precisions[p] + " ";
    const Curve one = curve_of(run);
    CHECK(one.losses.size() == (p < 2 ? 3 : 6));
    CHECK((one.norms.front() == "inf") == (p == 2));
    CHECK(one.norms.back() != "inf");
    // Each layout with two precisions of three.
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (i % 3 == p) continue;
      CAPTURE(layouts[i]);
      CHECK(curve_of(run + layouts[i]) == one);
    }
  }
}

TEST_CASE("each rank says where it runs, and rank 0 alone prints results") {
  const Outcome outcome =
      checked(zerograd(sort_run + "--ranks 4 --log-interval 1 --eval-interval 1"));
  for (const char* rank : {"0", "1", "2", "3"}) {
    const std::string line = line_after(outcome.error, "rank " + std::string(rank) + "/4 pid ");
    CHECK(line.substr(line.find(' ')) == " cpu:" + std::string(rank));
  }
  CHECK(contains(outcome.error, "batch 16 = 2 x 2 micro-batches x 4 ranks; steps 0 to 3"));
  for (const char* once : {"number of parameters:", "iter 2:", "param_hash"})
    CHECK(outcome.out.find(once) == outcome.out.rfind(once));
}

TEST_CASE(
    "gradients reduced at the boundary or summed in bf16 have other bits, and bf16 sums have the "
    "same on 1 and 4 ranks") {
  // In f32, because sums of a few bf16 gradients are mostly exact in f32, in any order.
  CHECK(!(curve_of(sort_run + "--ranks 2 --reduce-at-boundary") == curve_of(sort_run)));
  const std::string run = sort_run + "--ranks 4 --precision bf16 ";
  const Curve exact = curve_of(run);
  const Curve bf16 = curve_of(run + "--grad-accum-dtype bf16 --zero-stage 2");
  CHECK(!(bf16 == exact));
  CHECK(curve_of(sort_run + "--precision bf16 --grad-accum-dtype bf16") == bf16);
}

TEST_CASE(
    "when one rank fails, all others end with an error that names the rank, the step and the "
    "operation") {
  struct Case {
    const char* fault;
    int ranks, status;
    std::string cause;  // the error that the run ends with
    int stage = 3;
    std::string waits_in = {};  // the collective that a peer names
  };
  std::vector<Case> cases = {
      {"throw", 1, 1, "error: ShapeError: inject: a fault in step 1\n"},
      {"return", 1, 4, "error: CommError: inject: a fault ended the rank in step 1\n"},
      {"stall", 1, 4, "error: CommError: inject: a fault stalled the rank in step 1\n"}};
  // The first collective of a step.
  const auto add = [&](const char* fault, int ranks, int stage) {
    const std::string rank = "rank " + std::to_string(ranks - 1),
                      error = "error: CommError: " + rank;
    const bool throws = *fault == 't', returns = *fault == 'r';
    cases.push_back({fault, ranks, throws ? 1 : 4,
                     throws ? "error: ShapeError: " + rank + "/" + std::to_string(ranks) +
                                  ": inject: a fault in "
                     : returns ? error + " returned early, in "
                               : error + " did not arrive within 10 ",
                     stage,
                     stage == 2 ? "reduce_scatter of 'head gradients' (f32, "
                                : "all_gather of 'embedding values' (f32, "});
  };
  for (const int ranks : {2, 4}) {
    add("throw", ranks, ranks == 2 ? 2 : 3);
    add("return", ranks, ranks == 2 ? 3 : 2);
    add("stall", ranks, 2);
    add("stall", ranks, 3);
  }
  const auto run = [](const Case& test_case) {
    return zerograd(sort_run + "--param-persistence-threshold 0 --comm-timeout 10 --zero-stage " +
                    std::to_string(test_case.stage) + " --ranks " +
                    std::to_string(test_case.ranks) + " --inject rank=" +
                    std::to_string(test_case.ranks - 1) + ",step=1,fault=" + test_case.fault);
  };
  // In parallel: most of the time is waiting.
  std::vector<std::future<Outcome>> outcomes;
  for (const Case& test_case : cases)
    outcomes.push_back(std::async(std::launch::async, [&] { return run(test_case); }));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& test_case = cases[i];
    const Outcome outcome = outcomes[i].get();
    INFO("fault ", test_case.fault, ", stage ", test_case.stage, ", error ", outcome.error);
    CHECK(outcome.status == test_case.status);
    CHECK(contains(outcome.error, test_case.cause));
    for (int peer = 0; peer + 1 < test_case.ranks; ++peer) {
      const std::string world = "/" + std::to_string(test_case.ranks);
      const std::string line = line_after(
          outcome.error, "rank " + std::to_string(peer) + world + " ends: CommError: rank ");
      CHECK(line.substr(0, 2) == std::to_string(test_case.ranks - 1) + " ");
      for (const char* part : {"in step 1", "collective #"}) CHECK(contains(line, part));
      CHECK(contains(line, test_case.waits_in));
    }
  }
}

// A sanitizer's address space alone exceeds the limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a run whose ranks exceed `ulimit -v` ends with an error, not with an abort") {
  // With this limit the allocation of arenas fails; with fewer ranks the creation of threads does.
  const std::string line = "ulimit -v 600000; exec '" ZG_COMMAND "' " + sort_run +
                           "--ranks 100 --train-batch-size 200 >/dev/null 2>&1";
  const int status = std::system(line.c_str());
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) < 128);
  CHECK(WEXITSTATUS(status) != 0);
}
#endif

TEST_CASE("the bytes on the wire equal the formulas at every stage and number of ranks") {
  const auto data = models::sort_dataset(3407);
  models::GPTConfig config = models::GPTConfig::preset("gpt-nano");
  config.vocabulary = data->vocabulary();
  config.block_size = data->block_size();
  ParameterStore store;
  const models::GPT model(store, config);
  const int64_t steps = 3, micro_batches = 8;
  for (const int ranks : {1, 2, 4, 8}) {
    const int64_t a = micro_batches / ranks;
    std::vector<int64_t> padded;  // by unit
    int64_t P = 0;
    for (const auto& unit : store.units()) {
      padded.push_back(
          zero::FlatUnit::of(unit->parameters, zero::FlatUnit::Part::trainable, ranks).padded);
      P += padded.back();
    }
    const auto received = [&](int64_t elements) { return elements * (ranks - 1) / ranks; };
    // i64 elements that a step all-reduces: losses, limbs of the norm, a count for each parameter,
    // and the signal that a rank received.
    const int64_t scalars = micro_batches + SumOfSquares::limb_count +
                            static_cast<int64_t>(store.parameters().size()) + 1;
    // Stage 0 gathers f32 accumulators, stages 1 and 2 bf16 values. Stage 3 gathers every unit in
    // forward and again in backward, except the head, which is still in memory, and the embedding,
    // which backward does not read. Checkpointed blocks are recomputed while backward has them
    // gathered.
    const int64_t at_stage_3 = a * received(2 * P - padded.front() - padded.back()) * 2;
    const std::pair<std::string, int64_t> gathered[] = {
        {"0", received(P) * 4},
        {"1", received(P) * 2},
        {"2", received(P) * 2},
        {"3", at_stage_3},
        {"3 --prefetch-bucket-size 0 --reduce-bucket-size 5000", at_stage_3},
        {"3 --activation-checkpoint", at_stage_3}};
    for (const auto& [stage, all_gather] : gathered) {
      INFO("ranks ", ranks, ", stage ", stage);
      const nlohmann::json wire =
          curve_of(sort_run + "--precision bf16 --param-persistence-threshold 0 --ranks " +
                   std::to_string(ranks) + " --zero-stage " + stage)
              .last.at("wire_bytes");
      CHECK(wire.at("reduce_scatter") == steps * a * received(P) * 2);
      CHECK(wire.at("all_gather") == steps * all_gather);
      CHECK(wire.at("all_reduce") == steps * scalars * 8 * (ranks - 1));
      CHECK(wire.at("broadcast") == 0);
      CHECK(wire.at("other") == 0);
    }
  }
}

}  // namespace zg::testing
