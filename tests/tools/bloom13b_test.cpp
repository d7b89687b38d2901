#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

// The recipe's model and batches made small; what is not named here is the recipe's.
const std::string scaled =
    "--n-layer 4 --n-head 4 --n-embd 32 --block-size 32 --train-batch-size 16 --train-samples 96 "
    "--lr 1e-3 --lr-warmup-samples 16 --lr-decay-samples 96 --threads 1 --eval-interval 0 "
    "--rampup-batch-size 8 8 32 --dropout 0 ";

/// The script with the built zerograd and such variables, as in a shell's line. `ranks` above 0:
/// under mpirun -np.
Outcome bloom13b(const std::string& variables, const std::string& line, int ranks = 0) {
  const std::string call =
      "env " + variables + " ZEROGRAD=" + ZG_COMMAND + " " + ZG_CONFIGS + "../bloom13b " + line;
  return ranks > 0 ? mpirun("-np " + std::to_string(ranks) + " " + call) : program(call);
}

/// Megatron's dataset of some documents, as zerograd tokenize writes it.
void write_dataset(const TemporaryFolder& folder) {
  std::ofstream text(folder / "documents.jsonl");
  for (int document = 0; document < 40; ++document) {
    text << "{\"text\": \"";
    for (int word = 0; word < 60; ++word) text << "word" << (document * 7 + word * 3) % 23 << ' ';
    text << "\"}\n";
  }
  text.close();
  checked(zerograd("tokenize " + (folder / "documents.jsonl") + " --tokenizer train:300 --out " +
                   (folder / "meg-gpt2_text_document")));
}

std::vector<double> losses_of(const std::string& metrics) {
  std::vector<double> losses;
  for (const nlohmann::json& record : json_lines(metrics))
    if (!record.contains("final")) losses.push_back(record.at("loss"));
  return losses;
}

}  // namespace

TEST_CASE(
    "the BLOOM recipe trains, saves and continues on other meshes, with losses equal within bf16") {
  const TemporaryFolder folder;
  write_dataset(folder);
  const std::string data = "HL_DATA_DIR_ROOT=" + folder.path() + " HL_RESULTS_DIR=";
  const auto run = [&](const std::string& name, const std::string& mesh, const std::string& flags,
                       int ranks = 0) {
    const std::string metrics = folder / (name + ".jsonl");
    CAPTURE(name);
    checked(bloom13b(data + (folder / name) + " " + mesh, scaled + flags + " --metrics " + metrics,
                     ranks));
    return losses_of(metrics);
  };
  const std::string tutorial = "HL_NUM_NODES=1 HL_PP=2 HL_TP=2 HL_DP=1";
  const std::vector<double> whole = run("whole", tutorial, "");
  REQUIRE(whole.size() == 8);  // 4 steps of 8 and then of 16
  CHECK(std::filesystem::exists(folder / "whole/tensorboard"));
  if (missing_mpi().empty()) CHECK(run("processes", tutorial, "", 4) == whole);

  run("part", tutorial + " HL_EXIT_INTERVAL=3", "");
  std::filesystem::copy(folder / "part", folder / "again",
                        std::filesystem::copy_options::recursive);
  CHECK(run("again", tutorial, "").size() == whole.size() - 3);  // a job after the other
  const std::string resume = "--resume " + (folder / "part/checkpoints");
  for (const char* mesh : {"HL_PP=4 HL_TP=1 HL_DP=1", "HL_PP=1 HL_TP=2 HL_DP=2"}) {
    CAPTURE(mesh);
    const std::vector<double> rest = run("rest", mesh, resume + " --save-top-k -1");
    REQUIRE(rest.size() == whole.size() - 3);
    for (size_t step = 0; step < rest.size(); ++step)
      CHECK(rest[step] == doctest::Approx(whole[step + 3]).epsilon(2e-2));  // bf16
    std::filesystem::remove_all(folder / "rest");
  }
}

TEST_CASE("the bloom13b script prints help, and refuses unknown and invalid variables by name") {
  CHECK(contains(checked(bloom13b("", "--help")).out, "HL_RAMPUP_BS"));
  const Outcome word = checked(bloom13b("HL_TP=four", ""), 2);
  CHECK(contains(word.error, "HL_TP: expected a whole number, got 'four'"));
  CHECK(contains(checked(bloom13b("HL_PPP=2", ""), 2).error, "HL_PPP: there is no such variable"));
  CHECK(contains(bloom13b("HL_DP=1", "").error, "HL_DATA_DIR_ROOT: expected the folder of"));
  CHECK(contains(bloom13b("HL_NUM_NODES=2", "--data x").error, "need HL_HOSTSFILE"));
  CHECK(bloom13b("HL_HOSTSFILE=nowhere", "--data x").status == 5);
  checked(bloom13b("HL_DP=0", ""), 2);
}

}  // namespace zg::testing
