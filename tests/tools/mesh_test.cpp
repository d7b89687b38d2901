#include <future>
#include <map>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

// A step is 8 micro-batches of 2, whoever takes them, of a model of four layers.
const std::string mesh_model =
    "--steps 4 --train-batch-size 16 --batch-size 2 --log-interval 0 --threads 1 --lr 3e-3 "
    "--n-layer 4 --n-head 4 --n-embd 16 ";
const std::string mesh_run = "train --data sort --score-samples 0 " + mesh_model;
/// Its groups divide the block size.
const std::string grouped_run = "train --data " ZG_CONFIGS
                                "../../LICENSE --val-fraction 0 --block-size 16 "
                                "--reduction-groups 4 " +
                                mesh_model;

struct Share {
  int data, pipeline, tensor;
  const char* flags;

  std::string str() const {
    return "--ranks " + std::to_string(data * pipeline * tensor) + " --pipeline-parallel " +
           std::to_string(pipeline) + " --tensor-parallel " + std::to_string(tensor) + " " + flags;
  }
};

}  // namespace

TEST_CASE("data and pipeline axes, schedules and stages change no bit") {
  const std::vector<Share> shares = {
      {1, 2, 1, ""},
      {1, 4, 1, "--schedule-pipeline gpipe"},
      {2, 2, 1, "--zero-stage 1"},
      {4, 2, 1, "--schedule-pipeline gpipe --zero-stage 1"},
      {2, 4, 1, "--zero-stage 2"},
      {2, 2, 1, "--zero-stage 3 --param-persistence-threshold 0"},
      {1, 2, 1, "--activation-checkpoint"},
      {2, 2, 1, "--zero-stage 3 --cpu-offload --schedule-pipeline gpipe"},
  };
  const char* const models[] = {"--untied ", "--tied ", "--tied --precision bf16 ",
                                "--tied --precision 16 --initial-scale-power 30 "};
  for (size_t m = 0; m < std::size(models); ++m) {
    CAPTURE(models[m]);
    const Curve one = curve_of(mesh_run + models[m]);
    REQUIRE(one.losses.size() == 4);
    // Each share with one tied and one other model.
    for (size_t i = m % 2; i < shares.size(); i += 2) {
      CAPTURE(shares[i].str());
      CHECK(curve_of(mesh_run + models[m] + shares[i].str()) == one);
    }
  }
}

TEST_CASE(
    "tensor parallelism, with or without sequence parallelism, gives the losses of one rank") {
  const char* const two = "--ranks 2 --tensor-parallel 2";
  const char* const four = "--ranks 4 --tensor-parallel 4";
  const char* const sequence =
      "--ranks 4 --tensor-parallel 2 --pipeline-parallel 2 --sequence-parallel";
  const struct {
    const char* flags;
    double most;
    std::vector<const char*> shares;
  } cases[] = {{"--untied ", 1e-5, {two, sequence}},
               {"--tied ", 1e-5, {four, sequence}},
               {"--tied --precision bf16 ", 2e-2, {two, sequence}}};
  for (const auto& [flags, most, shares] : cases) {
    const std::string adder = mesh_run + "--data adder --steps 8 ";  // its block size is even
    const Curve one = curve_of(adder + flags);
    for (const char* share : shares) {
      const Curve shared = curve_of(adder + flags + share);
      INFO("flags ", flags, ", share ", share);
      REQUIRE(shared.losses.size() == 8);
      for (size_t step = 0; step < 8; ++step) {
        CHECK(shared.losses[step].get<double>() ==
              doctest::Approx(one.losses[step].get<double>()).epsilon(most));
        CHECK(shared.norms[step].get<double>() ==
              doctest::Approx(one.norms[step].get<double>()).epsilon(10 * most));
      }
    }
  }
}

TEST_CASE("at an equal number of tensor ranks the other axes change no bit") {
  const Curve one = curve_of(mesh_run + "--tied --ranks 2 --tensor-parallel 2");
  for (const Share& share : std::vector<Share>{{2, 1, 2, "--zero-stage 1"},
                                               {1, 2, 2, "--schedule-pipeline gpipe"},
                                               {2, 2, 2, "--zero-stage 3"}}) {
    CAPTURE(share.str());
    CHECK(curve_of(mesh_run + "--tied " + share.str()) == one);
  }
}

TEST_CASE("with reduction groups tensor ranks change no bit of weights, losses and norms") {
  for (const char* model : {"--untied ", "--tied --precision bf16 ",
                            "--tied --precision 16 --initial-scale-power 30 "}) {
    const Curve one = curve_of(grouped_run + model);
    REQUIRE(one.losses.size() == 4);
    for (const Share& share :
         std::vector<Share>{{1, 1, 2, ""},
                            {1, 1, 4, "--activation-checkpoint --sequence-parallel"},
                            {2, 2, 2, "--zero-stage 1 --sequence-parallel"},
                            {1, 2, 4, "--schedule-pipeline gpipe"}}) {
      INFO("model ", model, ", share ", share.str());
      CHECK(curve_of(grouped_run + model + share.str()) == one);
    }
  }
}

TEST_CASE("a run resumes with the reduction groups of its checkpoint on other tensor ranks") {
  const TemporaryFolder folder;
  const std::string run = grouped_run + "--vocab-size 101 ";  // 26 rows, the last group 23
  const Curve one = curve_of(run);
  checked(zerograd(run + "--ranks 4 --tensor-parallel 4 --sequence-parallel --steps 2 --save " +
                   (folder / "run")));
  const std::string resumed =
      run + "--resume " + (folder / "run") + " --ranks 2 --tensor-parallel 2 ";
  CHECK(curve_of(resumed).hash == one.hash);
  const std::string changed = "changed: run.tensor_parallel: ";
  CHECK(contains(checked(zerograd(resumed)).error, changed + "4 in the checkpoint, 2 now\n"));
  const std::string plain = mesh_run + "--tied ";
  checked(zerograd(plain + "--steps 2 --save " + (folder / "plain")));
  const Outcome divided = checked(
      zerograd(plain + "--resume " + (folder / "plain") + " --ranks 2 --tensor-parallel 2"));
  CHECK(contains(divided.error, changed +
                                    "1 in the checkpoint, 2 now; without --reduction-groups this "
                                    "changes bits\n"));
  const Outcome other = zerograd(resumed + "--reduction-groups 2");
  CHECK(other.status == 2);
  CHECK(contains(other.error,
                 "run.reduction_groups: expected 4 as in the checkpoint, got 2; try without "
                 "--reduction-groups"));
}

TEST_CASE("plan predicts the memory of a mesh's ranks to the byte") {
  for (const Share& share : std::vector<Share>{
           {1, 2, 1, "--tied"},
           {2, 2, 2, "--tied --zero-stage 1 --precision bf16"},
           {1, 4, 2, "--untied --schedule-pipeline gpipe --activation-checkpoint"},
           {1, 2, 2, "--tied --data adder --sequence-parallel --zero-stage 3 --precision bf16"}})
    check_plan_is_run(mesh_run.substr(5) + share.str() + " --steps 2");
  for (const Share& share : std::vector<Share>{
           {2, 1, 2, "--tied --zero-stage 1 --precision bf16"},
           {1, 2, 4, "--untied --sequence-parallel --activation-checkpoint --precision bf16"}})
    check_plan_is_run(grouped_run.substr(5) + share.str() + " --steps 2");
}

TEST_CASE("validation losses, samples and scores of a pipeline are the same as on one rank") {
  const TemporaryFolder folder;
  std::string text;
  for (int word = 0; word < 400; ++word) text += "word " + std::to_string(word * word % 97) + "\n";
  write_file(folder / "text", text);
  const std::string line = "train --data " + (folder / "text") +
                           " --steps 4 --train-batch-size 8 --batch-size 2 --log-interval 0 "
                           "--threads 1 --n-layer 4 --n-head 4 --n-embd 16 --block-size 16 "
                           "--eval-interval 2 --sample-interval 4 --lr 3e-3 ";
  const Outcome one = zerograd(line);
  for (const char* part : {"val loss", "sample after step 4:"}) CHECK(contains(one.out, part));
  for (const char* share : {"--ranks 4 --pipeline-parallel 4", "--ranks 4 --pipeline-parallel 2"})
    CHECK(checked(zerograd(line + share)).out == one.out);
  // Scores end with the answers of a model that learnt nothing: of one and the same.
  const std::string scored = mesh_run + "--untied --score-samples 40 ";
  // Data ranks share the questions: 20 batches, of which some of 8 ranks get two and others three.
  const std::string scores = zerograd(scored).out;
  for (const char* share : {"--ranks 2 --pipeline-parallel 2", "--ranks 8 --zero-stage 3",
                            "--ranks 8 --pipeline-parallel 2"}) {
    CAPTURE(std::string(share));
    CHECK(checked(zerograd(scored + share)).out == scores);
  }
}

TEST_CASE("plan needs no data for the published BLOOM models on meshes of 8 and 384 ranks") {
  const Outcome tutorial = checked(zerograd(
      "plan --model-type bloom-13b --ranks 8 --pipeline-parallel 2 --tensor-parallel 4 "
      "--precision bf16 --batch-size 1 --train-batch-size 16 --steps 1 --device-memory 96GiB"));
  CHECK(contains(tutorial.out, "number of parameters: 12853626880\n"));
  CHECK(contains(tutorial.out, "| 1 | 4 | 20 - 39 | 1.638 |"));
  CHECK(contains(tutorial.out, "bubble 5.9 %: (p - 1) / (m + p - 1) of 2 stages and 16 "));
  CHECK(contains(tutorial.out, "fits 96GiB: yes"));

  const Outcome largest = checked(zerograd(
      "plan --model-type bloom-176b --ranks 384 --pipeline-parallel 12 --tensor-parallel 4 "
      "--precision bf16 --batch-size 2 --train-batch-size 256 --zero-stage 1 --steps 1 "
      "--device-memory 80GiB"));
  CHECK(contains(largest.out, "number of parameters: 176247271424\n"));
  CHECK(contains(largest.out, "mesh: data 8 x pipeline 12 x tensor 4"));
  CHECK(contains(largest.out, "fits 80GiB: yes; smallest setting that fits: --zero-stage 1"));

  check_refused("plan --model-type gpt-mini", 2,
                "--vocab-size and --block-size for a plan without data");
}

TEST_CASE("when a rank of a pipeline fails, the run ends and the error names that rank") {
  const std::string mesh = mesh_run + "--ranks 4 --pipeline-parallel 4 --comm-timeout 10 ";
  std::map<std::string, std::future<Outcome>> outcomes;  // in parallel: a stall is mostly waiting
  for (const std::string fault : {"0,step=1,fault=throw", "2,step=1,fault=return",
                                  "0,step=1,fault=stall", "3,step=1,fault=stall"})
    outcomes[fault] = std::async(std::launch::async, [&mesh, fault] {
      return zerograd(mesh + "--inject rank=" + fault + ",phase=backward");
    });
  for (auto& [fault, ended] : outcomes) {
    const Outcome outcome = ended.get();
    INFO("fault ", fault, ", error ", outcome.error);
    CHECK(outcome.status != 0);
    CHECK(contains(outcome.error, "rank " + fault.substr(0, 1)));
  }
}

TEST_CASE("mpi: a mesh of processes gives the hash of threads, and an error names a killed rank") {
  if (skips_mpi("a mesh of processes")) return;
  const std::string mesh = "--pipeline-parallel 2 --tensor-parallel 2 --zero-stage 1 ";
  const Outcome threads = checked(zerograd(mesh_run + "--tied --ranks 4 " + mesh));
  const Outcome processes = checked(mpirun("-np 4 zerograd " + mesh_run + "--tied " + mesh));
  CHECK(line_after(processes.out, "param_hash ") == line_after(threads.out, "param_hash "));

  const std::string stages = mesh_run + "--pipeline-parallel 4 --comm-timeout 60 --inject ";
  // mpirun kills the others some seconds after the first one has ended.
  const auto run_killed = [&stages](int rank) {
    return mpirun("--mca odls_base_sigkill_timeout 4 -np 4 zerograd " + stages +
                  "rank=" + std::to_string(rank) + ",step=1,fault=kill,phase=backward");
  };
  std::map<int, std::future<Outcome>> ends;
  for (const int rank : {0, 2}) ends[rank] = std::async(std::launch::async, run_killed, rank);
  for (auto& [rank, end] : ends) {
    const Outcome killed = end.get();
    CAPTURE(killed.error);
    CHECK(killed.status != 0);
    CHECK(contains(killed.error, "rank " + std::to_string(rank) + " (pid "));
    CHECK(contains(killed.error, "is gone"));
  }
}

TEST_CASE("mesh options that do not fit the ranks or the model are refused with what is expected") {
  const auto refused = [](const std::string& flags, const std::string& what) {
    check_refused("train --data sort --n-layer 2 --n-head 3 --n-embd 12 " + flags, 2, what);
  };
  refused("--ranks 3 --tensor-parallel 2", "--ranks: expected a multiple of the 2");
  refused("--ranks 2 --tensor-parallel 2", "expected a divisor of the 3 heads (1, 3), got 2");
  for (const char* model : {"", "--model-type bloom --vocab-size 100 "})
    refused(model + std::string("--ranks 4 --pipeline-parallel 4"),
            "--pipeline-parallel: expected at most the model's 2 layers, got 4");
  refused("--sequence-parallel", "expected --tensor-parallel 2 or more");
  refused("--ranks 2 --pipeline-parallel 2 --schedule-pipeline zigzag",
          "expected 1f1b, gpipe, got");
}

}  // namespace zg::testing
