#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "tests/support/checkpoint_churn.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/consolidate.h"

// Commands beside a run that saves and removes checkpoints.
namespace zg::testing {
namespace {

const std::string readers_run =
    "train --data sort --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 --n-layer 1 "
    "--n-head 1 --n-embd 16 --steps 2 ";

}  // namespace

TEST_CASE(
    "commands read a checkpoint without an error while other checkpoints are saved and removed") {
  const TemporaryFolder folder;
  const std::string save = folder / "save";
  std::set<std::string> hashes;
  for (const std::string name : {"even", "odd"}) {
    const Outcome saved = checked(zerograd(readers_run + "--ranks 2 --save " + (folder / name) +
                                           (name == "odd" ? " --lr 1e-2" : "")));
    hashes.insert(line_after(saved.out, "param_hash "));
  }
  REQUIRE(hashes.size() == 2);
  const CheckpointChurn churn(folder / "even/step_2", folder / "odd/step_2", save);
  const auto check = [&](const Outcome& outcome, const std::string& line) {
    INFO("line ", line, ", out ", outcome.out, ", error ", outcome.error);
    CHECK(outcome.status == 0);
    CHECK(!contains(outcome.error, "passed over"));
    const std::string own = line_after(outcome.out, "param_hash ");
    CHECK((own.empty() || hashes.contains(own)));
  };
  // Without a step left its hash is the checkpoint's.
  const std::string resume = "train --score-samples 0 --threads 1 --resume " + save;
  const bool processes = missing_mpi().empty();
  for (int round = 0; round < 4; ++round) {
    for (const std::string& line :
         {"verify " + save, "eval " + save + " --score-samples 0", "plan --resume " + save,
          "generate " + save + " --prompt 012 --length 2",
          "consolidate " + save + " " + (folder / "weights"),
          "export " + save + " --hf " + (folder / "hf"), resume, resume + " --ranks 2",
          readers_run + "--steps 0 --init " + save + " --ranks 2"})
      check(zerograd(line), line);
    if (processes) check(mpirun("-np 2 zerograd " + resume), "mpirun " + resume);
  }
  if (!processes) std::printf("SKIPPED: mpi: checkpoints that come and go\n");
}

TEST_CASE(
    "a Hugging Face folder that is replaced while it is read gives one of the models, or an "
    "error") {
  const TemporaryFolder folder;
  const std::string hf = folder / "hf", file = folder / "weights.safetensors";
  std::map<std::string, std::string> heads_of;  // by hash
  std::vector<std::string> exports;
  for (const std::string heads : {"2", "4"}) {
    const std::string save = folder / heads;
    const Outcome saved = checked(
        zerograd("train --data sort --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 "
                 "--n-layer 1 --n-embd 16 --steps 1 --n-head " +
                 heads + " --save " + save));
    heads_of[line_after(saved.out, "param_hash ")] = "\"heads\":" + heads;
    exports.push_back("export " + save + " --hf " + hf);
    checked(zerograd(exports.back()));
  }
  REQUIRE(heads_of.size() == 2);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (size_t i = 0; !stop; ++i) zerograd(exports[i % 2]);
  });
  for (int round = 0; round < 20; ++round) {
    const Outcome read = zerograd("consolidate " + hf + " " + file);
    CAPTURE(read.error);
    if (read.status == 0) {
      const auto metadata = SafetensorsReader(file).metadata();
      CHECK(contains(metadata.at(zero::config_metadata),
                     heads_of.at(line_after(read.out, "param_hash "))));
      continue;
    }
    CHECK(read.status == 5);
    CHECK(contains(read.error, hf + ": the files were replaced while they were read"));
  }
  stop = true;
  writer.join();
}

}  // namespace zg::testing
