#include <doctest/doctest.h>

#include <cstdio>

#include "tests/accelerator/command_runs.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/kernels/matmul/matmul_algorithms.h"

using namespace zg::testing;

// The command on emulated CUDA devices.

TEST_CASE("the emulated command reports that its devices are emulated") {
  const Outcome info = checked(zerograd("info"));
  for (const char* part : {"emulated device, no GPU", "cuda:1", ", NCCL 2.28.9\n"})
    CHECK(contains(info.out, part));
  const Outcome run = checked(zerograd(sort_run + "--device cuda --steps 1"));
  for (const char* part : {"rank 0/1 pid ", " cuda:0", "emulated device, no GPU"})
    CHECK(contains(run.error, part));
}

TEST_CASE(
    "ranks on cuda give the same bits as processes and as threads, and use the planned memory") {
  if (skips_mpi("ranks on cuda as processes")) return;
  const TemporaryFolder folder;
  const std::string measured = folder / "measured.json", planned = folder / "planned.json";
  const std::pair<const char*, const char*> runs[] = {{"0", "direct"}, {"3", "nccl"}};
  for (const auto& [stage, way] : runs) {
    INFO("stage ", stage, ", way ", way);
    const ScopedVariable wish("ZG_CUDA_COMM", way);
    const std::string line = sort_run + "--device cuda --steps 3 --batch-size 2 --zero-stage " +
                             stage + " --param-persistence-threshold 0 --memory-json ";
    const Outcome outcome = checked(mpirun("-np 2 zerograd " + line + measured));
    for (const char* part : {"rank 1/2 pid ", " cuda:1"}) CHECK(contains(outcome.error, part));
    CHECK(contains(outcome.error,
                   std::string("ranks are connected by ") +
                       (std::string(way) == "nccl"
                            ? "NCCL 2.28.9\n"
                            : "MPI and memory of the host; not by NCCL: ZG_CUDA_COMM=direct\n")));
    CHECK(line_after(outcome.out, "param_hash ") == hash_of(line + planned + " --ranks 2"));
    CHECK(read_file(planned) == read_file(measured));
  }
}

TEST_CASE("the transport between ranks on cuda is reported, and does not change the bits") {
  const std::string line = sort_run + "--device cuda --ranks 2 --steps 2 --batch-size 2";
  const Outcome nccl = zerograd(line);
  CHECK(contains(nccl.error, "ranks are connected by NCCL 2.28.9\n"));
  const auto takes = [&](const char* variable, const char* value, const std::string& words) {
    const ScopedVariable wish(variable, value);
    const Outcome outcome = zerograd(line);
    CHECK(
        contains(outcome.error, "ranks are connected by the peers' memory; not by NCCL: " + words));
    CHECK(outcome.out == nccl.out);
  };
  takes("ZG_CUDA_COMM", "direct", "ZG_CUDA_COMM=direct\n");
  takes("ZG_EMULATOR_NCCL", "absent", "libnccl.so.2 has no double\n");
  const ScopedVariable absent("ZG_EMULATOR_NCCL", "absent");
  CHECK(contains(zerograd("info").out, ", no NCCL (libnccl.so.2 has no double)\n"));
  const ScopedVariable insists("ZG_CUDA_COMM", "nccl");
  CHECK(contains(checked(zerograd(line), 2).error,
                 "ZG_CUDA_COMM=nccl, but NCCL cannot be used: libnccl.so.2 has no double"));
}

TEST_CASE("--nccl-reduce is reported as inexact, and is refused without NCCL") {
  const TemporaryFolder folder;
  const std::string line = sort_run + "--device cuda --steps 3 --ranks 4 --batch-size 1 ";
  const std::string exact = folder / "exact", inexact = folder / "inexact";
  const std::string exact_hash = hash_of(line + "--metrics " + exact);
  const Outcome run = checked(zerograd(line + "--nccl-reduce --metrics " + inexact));
  CHECK(contains(run.error, "ranks are connected by NCCL 2.28.9, which sums gradients inexactly"));
  const std::vector<double> expected = losses_of(exact), losses = losses_of(inexact);
  CHECK(line_after(run.out, "param_hash ") != exact_hash);
  for (size_t step = 0; step < 3; ++step) CHECK(std::fabs(losses[step] - expected[step]) <= 1e-3);
  const auto refused = [](const std::string& flags, const std::string& words) {
    CHECK(contains(checked(zerograd(flags), 6).error, words));
  };
  refused(sort_run + "--ranks 2 --nccl-reduce",
          "nccl_reduce is for ranks on cuda devices; try without it");
  const ScopedVariable wish("ZG_CUDA_COMM", "direct");
  refused(line + "--nccl-reduce", "nccl_reduce: NCCL does not carry these ranks' data");
}

TEST_CASE("a rank whose thread hangs in NCCL is named, and the run ends") {
  const TemporaryFolder folder;
  const ScopedVariable messages("ZG_EMULATOR_NCCL_FOLDER", folder.path().c_str());
  const ScopedVariable plants("ZG_EMULATOR_NCCL", "1:9:block");
  const Outcome outcome = checked(
      zerograd(sort_run + "--device cuda --ranks 3 --batch-size 1 --steps 9 --comm-timeout 5"), 4);
  CHECK(contains(outcome.error, "rank 1 did not finish within 5 s: collective #"));
  CHECK(contains(outcome.error, ", in step "));
}

TEST_CASE("a step whose collective fails on the device has no loss and is in no checkpoint") {
  const TemporaryFolder folder;
  const ScopedVariable messages("ZG_EMULATOR_NCCL_FOLDER", folder.path().c_str());
  const std::string line = sort_run +
                           "--device cuda --ranks 2 --batch-size 1 --steps 3 --zero-stage 3 "
                           "--param-persistence-threshold 0 --save-interval 1 ";
  const std::string whole = folder / "whole";
  const std::string hash = hash_of(line + "--save " + whole + " --metrics " + whole + ".json");
  const std::vector<double> losses = losses_of(whole + ".json");
  REQUIRE(losses.size() == 3);
  for (const char* call : {"30", "45"}) {
    CAPTURE(call);
    const std::string saves = folder / call, metrics = saves + ".json";
    {
      const ScopedVariable plants("ZG_EMULATOR_NCCL", ("1:" + std::string(call) + ":fail").c_str());
      const Outcome failed =
          checked(zerograd(line + "--save " + saves + " --metrics " + metrics), 4);
      CHECK(contains(failed.error, "rank 1 failed in step "));
      CHECK(contains(failed.error, "NCCL: unhandled system error"));
    }
    const std::vector<double> kept = losses_of(metrics);
    REQUIRE(kept.size() > 0);
    REQUIRE(kept.size() < losses.size());
    for (size_t step = 0; step < kept.size(); ++step) CHECK(kept[step] == losses[step]);
    CHECK(hash_of(line + "--resume auto --save " + saves) == hash);
  }
}

TEST_CASE("a process that dies or hangs in NCCL is named by the others") {
  if (skips_mpi("processes that die in NCCL")) return;
  const TemporaryFolder folder;
  const ScopedVariable messages("ZG_EMULATOR_NCCL_FOLDER", folder.path().c_str());
  const auto ends = [](const char* fault, const std::string& words) {
    const ScopedVariable plants("ZG_EMULATOR_NCCL", fault);
    const Outcome outcome = mpirun("-np 3 zerograd " + sort_run +
                                   "--device cuda --batch-size 1 --steps 9 --comm-timeout 10");
    CAPTURE(outcome.error);
    CHECK(outcome.status != 0);
    CHECK(contains(outcome.error, words));
  };
  ends("1:9:exit", "rank 1 (pid ");
  ends("1:9:block", "rank 1 did not finish within 10 s: collective #");
}

TEST_CASE("benchmarks run on cuda, and an absent device is refused by name") {
  const auto refused = [](const std::string& line, const std::string& part) {
    CHECK(contains(checked(zerograd(line), 6).error, part));
  };
  const std::string small =
      " --device cuda --n-layer 1 --n-head 1 --n-embd 16 --block-size 8 --vocab-size 16 "
      "--batch-size 1";
  CHECK(contains(checked(zerograd("bench step --steps 1 --warm-up 0" + small)).out, "| step |"));
  checked(zerograd("bench generate --prompt 2 --tokens 3 --repeats 1" + small));
  const Outcome kernels = zerograd("bench kernels --device cuda --filter 704x192x48");
  CAPTURE(kernels.error);
  for (const char* row : {"| limit: matmul peak | | bf16 | 1 |", "| limit: memory, a copy |",
                          "| matmul NT | 704x192x48 | f32 |"})
    CHECK(contains(kernels.out, row));
  const Outcome offload = checked(zerograd("bench offload --device cuda --size 1MiB"));
  for (const char* row : {"| limit: copy to the host |", "| limit: copy to the device |",
                          "| adamw, states on the device |", "| adamw, states on the host |"})
    CHECK(contains(offload.out, row));
  refused("tune --data sort --device cuda", "--device cuda: tune predicts");
  refused("train --data sort --device hpu", "Level Zero");
}

namespace {

/// The text of --kernels of a command, train or plan, with the flags of a run. Unlike sort's, the
/// vocabulary of adder is not so small that the fake cuBLASLt refuses a product, which a plan
/// cannot know.
std::string kernels_of(const std::string& command, const std::string& flags) {
  const TemporaryFolder folder;
  const std::string file = folder / "kernels.json";
  checked(zerograd(command +
                   " --data adder --model-type gpt-nano --log-interval 0 --score-samples 0 "
                   "--progress off --device cuda --steps 2 " +
                   flags + " --kernels " + file));
  return read_file(file);
}

}  // namespace

TEST_CASE("plan counts the kernel launches of a step on cuda as a run does") {
  const std::string llama = "--model-type llama --n-layer 2 --n-head 2 --n-embd 32 ";
  for (const std::string& flags :
       {std::string("--batch-size 2"), std::string("--batch-size 2 --precision bf16 --tied"),
        std::string("--batch-size 1 --grad-accum 3 --precision bf16 --dropout 0"),
        std::string("--batch-size 2 --activation-checkpoint --precision f16 --clip 0"),
        llama + "--batch-size 2 --num-query-groups 1 --precision bf16",
        llama + "--batch-size 2 --optimizer muon", std::string("--batch-size 2 --optimizer lion"),
        std::string("--batch-size 1 --zero-stage 1 --ranks 2 --grad-accum 2"),
        std::string("--batch-size 1 --zero-stage 3 --ranks 2 --param-persistence-threshold 0")}) {
    CAPTURE(flags);
    const std::string ran = kernels_of("train", flags);
    CHECK(kernels_of("plan", flags) == ran);
    const auto record = nlohmann::json::parse(ran);
    CHECK(record["step"] == 1);
    for (const char* part : {"per_micro_batch", "per_step"}) {
      CHECK(record[part]["launches"] > 0);
      for (const auto& row : record[part]["kernels"]) CHECK(row["bytes"] > 0);
    }
  }
  const ScopedVariable wish("ZG_CUDA_MATMUL", "own");
  const std::string ran = kernels_of("train", "--batch-size 2 --precision bf16");
  CHECK(contains(ran, "mma_multiply"));
  CHECK(kernels_of("plan", "--batch-size 2 --precision bf16") == ran);
}

TEST_CASE("the host waits as often in a step as kernels/cuda/README.md says, in plan and run") {
  struct Waits {
    const char* flags;
    int per_micro_batch, per_step;
  };
  const TemporaryFolder disk;
  for (const auto& [flags, per_micro_batch, per_step] :
       {Waits{"", 0, 1},
        {"--precision bf16 --grad-accum 3 --tied --optimizer lion", 0, 1},
        {"--precision f16 --clip 0", 0, 1},
        {"--precision bf16 --zero-stage 3 --offload-optimizer host --offload-param host", 0, 1},
        {"--precision bf16 --offload-activations host --offload-optimizer nvme", 0, 1},
        {"--precision bf16 --zero-stage 3 --offload-optimizer nvme --offload-param nvme "
         "--offload-gradients nvme",
         41, 41},
        {"--optimizer muon", 0, 11},
        {"--optimizer adafactor", 0, 22},
        {"--zero-stage 1 --ranks 2", 0, 1},
        {"--zero-stage 3 --ranks 2 --param-persistence-threshold 0", 0, 1},
        {"--tensor-parallel 3 --ranks 3", 0, 2},
        {"--pipeline-parallel 2 --ranks 2", 0, 2}}) {
    CAPTURE(flags);
    std::string line = std::string("--batch-size 2 ") + flags;
    if (contains(line, "nvme")) line += " --nvme-path " + disk.path();
    const std::string ran = kernels_of("train", line);
    CHECK(kernels_of("plan", line) == ran);
    const auto record = nlohmann::json::parse(ran);
    CHECK(record["per_micro_batch"]["host_waits"] == per_micro_batch);
    CHECK(record["per_step"]["host_waits"] == per_step);
  }
}

TEST_CASE("--kernels of a plan for cuda without steps is refused") {
  const char* line = "plan --data sort --device cuda --steps 0 --kernels /dev/null";
  CHECK(contains(checked(zerograd(line), 2).error, "--kernels: the run has no steps left"));
}

TEST_CASE("bench matmul-algorithms finds the same products on any number of ranks, with Muon too") {
  const TemporaryFolder folder;
  const std::string file = folder / "file.json";
  const auto products_of = [&](const std::string& ranks) {
    checked(
        zerograd("bench matmul-algorithms --rounds 1 --candidates 1 --device cuda --data adder "
                 "--n-layer 2 --n-head 2 --n-embd 32 --optimizer muon --batch-size 1 " +
                 ranks + " --out " + file));
    std::string products;
    for (const auto& [problem, algorithm] : zg::MatmulAlgorithms::read(file).algorithms)
      products += sizes(problem) + "\n";
    return products;
  };
  const std::string of_one = products_of("--ranks 1 --grad-accum 2");
  CHECK(contains(of_one, "M 32, N 32, K 128"));  // of Muon's update
  CHECK(products_of("--ranks 2") == of_one);
  CHECK(products_of("--ranks 2 --zero-stage 3 --param-persistence-threshold 0") == of_one);
}

TEST_CASE("train repeats the algorithms of a file on cuda, at any stage and number of ranks") {
  const TemporaryFolder folder;
  const std::string measured = folder / "measured.json", backwards = folder / "backwards.json";
  const std::string model = "--data adder --model-type gpt-nano --device cuda ";
  const std::string run = "train --log-interval 0 --score-samples 0 --progress off " + model;
  const std::string one_rank = run + "--batch-size 2 --grad-accum 2 --steps 2 ";
  const Outcome bench = checked(zerograd(
      "bench matmul-algorithms --rounds 1 --batch-size 2 --out " + measured + " " + model));
  zg::MatmulAlgorithms algorithms = zg::MatmulAlgorithms::read(measured);
  CHECK(algorithms.library == "cuBLASLt 13.0.0");
  CHECK(algorithms.algorithms.size() > 10);
  for (const char* row : {"| product | first us | fastest us |", " of 2 |\n", "written to "})
    CHECK(contains(bench.out, row));
  // A plan does not know which sums of rows are apart, and times on a CPU mean nothing.
  for (auto& [problem, algorithm] : algorithms.algorithms) algorithm.apart = false;
  algorithms.write(measured);
  // The fake cuBLASLt's second algorithm for each product, which adds from the last term on. That
  // the run has the bits of a heuristic that names it first shows that the file has every product.
  for (auto& [problem, algorithm] : algorithms.algorithms)
    algorithm.words[7] = (uint64_t{1} << 32) + 16;
  algorithms.write(backwards);
  std::string expected;
  {
    const ScopedVariable first("ZG_EMULATOR_CUBLASLT_FIRST", "1");
    expected = hash_of(one_rank);
  }
  CHECK(hash_of(one_rank) != expected);
  const std::string two_ranks = run + "--batch-size 2 --ranks 2 --steps 2 ";
  for (const std::string& line :
       {one_rank, two_ranks, two_ranks + "--zero-stage 3 --param-persistence-threshold 0 "}) {
    CAPTURE(line);
    const Outcome outcome = zerograd(line + "--matmul-algorithms " + backwards);
    CHECK(hash_of(outcome) == expected);
    CHECK(contains(outcome.error, backwards + " has the algorithms of " +
                                      std::to_string(algorithms.algorithms.size()) +
                                      " products, checksum " + algorithms.checksum()));
  }
  const std::string with_measured = "--matmul-algorithms " + measured;
  CHECK(hash_of(one_rank + with_measured) == hash_of(two_ranks + with_measured));

  CHECK(kernels_of("train", "--batch-size 2 " + with_measured) ==
        kernels_of("plan", "--batch-size 2"));
  const std::string memory = "--steps 2 --batch-size 2 " + model + "--memory-json ";
  checked(zerograd("plan " + memory + folder / "planned.json"));
  checked(
      zerograd("train --score-samples 0 " + with_measured + " " + memory + folder / "used.json"));
  CHECK(read_file(folder / "used.json") == read_file(folder / "planned.json"));

  const std::string saved = folder / "saved";
  checked(zerograd(one_rank + "--save " + saved + " --matmul-algorithms " + backwards));
  const Outcome resumed =
      checked(zerograd("train --score-samples 0 --steps 3 --device cuda --resume " + saved));
  CHECK(contains(resumed.error, "changed: run.matmul_algorithms: \"" + algorithms.checksum() +
                                    "\" in the checkpoint, \"\" now"));
  const Outcome plan =
      checked(zerograd("plan --batch-size 2 --matmul-algorithms " + measured + " " + model));
  CHECK(contains(plan.error, "without effect: --matmul-algorithms\n"));
}

TEST_CASE("a file of algorithms that cannot be used is refused by the command") {
  const TemporaryFolder folder;
  const std::string file = folder / "file.json";
  const auto refused = [&](const std::string& line, int status, const std::string& words) {
    CAPTURE(line);
    CHECK(contains(checked(zerograd(line), status).error, words));
  };
  const std::string on_cuda = sort_run + "--device cuda --steps 1 --matmul-algorithms " + file;
  refused(on_cuda, 5, file);
  write_file(file, "{}");
  refused(on_cuda, 5, file + ": schema: expected a string, got null; try zerograd bench");
  zg::MatmulAlgorithms{.gpu = "another GPU", .library = "cuBLASLt 13.0.0"}.write(file);
  refused(on_cuda, 5, file + ": gpu: expected 'emulated device");
  for (const char* device : {"cpu", "hpu"})
    refused(sort_run + "--steps 1 --matmul-algorithms " + file + " --device " + device, 6,
            std::string("--matmul-algorithms: the algorithms are cuBLASLt's; expected --device "
                        "cuda with it, got --device ") +
                device);
  refused("bench matmul-algorithms --out " + file, 6, "expected --device cuda, got --device cpu");
  refused("bench matmul-algorithms --device cuda --model-type gpt2", 2,
          "--out: expected the file to write");
  refused("bench matmul-algorithms --device cuda --data " + file + " --out " + file, 2,
          "--data and --out: both name " + file);
  const ScopedVariable own("ZG_CUDA_MATMUL", "own");
  refused(on_cuda, 6,
          "matmul algorithms: they are for cuBLASLt, but cuda:0 multiplies by its own matmul "
          "(ZG_CUDA_MATMUL=own)");
}
