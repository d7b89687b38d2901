// train --audit and the subcommand audit: one trail for every layout, and what differs is named.
#include <filesystem>
#include <fstream>
#include <span>

#include "tests/support/audit_chain.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string small_run =
    "train --data sort --n-layer 2 --n-head 4 --n-embd 32 --score-samples 0 --log-interval 0 "
    "--audit-interval 2 ";
const std::string four = "--steps 4 --batch-size 4 --grad-accum 4 ";

// The line that compares two audits: called("audit A B").
std::string compared(const std::string& a, const std::string& b, int status) {
  return checked(called("audit " + a + " " + b), status).out;
}

// Returns the path of a text of 3000 letters.
std::string write_letters(const TemporaryFolder& folder) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += static_cast<char>('a' + i * i % 26);
  write_file(folder / "text.txt", words);
  return folder / "text.txt";
}

// Edits the lines of an audit and computes its hashes again.
void rebuild(const std::string& path, const std::string& from, const std::string& to) {
  std::string lines = read_file(path);
  REQUIRE(lines.find(from) != std::string::npos);
  write_file(path, rebuilt_chain(lines.replace(lines.find(from), from.size(), to)));
}

}  // namespace

TEST_CASE("one audit for data, pipeline and tensor ranks, stages, offload and checkpointing") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other";
  const std::string run = "train --n-layer 2 --n-head 4 --n-embd 32 --block-size 16 --data " +
                          write_letters(folder) +
                          " --log-interval 0 --audit-interval 2 --dropout 0.1 "
                          "--reduction-groups 4 --audit ";
  for (const std::string precision : {"f32", "bf16"}) {
    const std::string same = " --steps 4 --batch-size 4 --precision " + precision;
    checked(called(run + one + same + " --grad-accum 4"));
    CHECK(contains(checked(called("audit " + one)).out,
                   "the chain of 5 records holds: 4 steps, 0 to 3"));
    for (const std::string layout :
         {"--ranks 2 --grad-accum 2 --zero-stage 3 --offload-param host",
          "--ranks 4 --grad-accum 1 --zero-stage 1 --offload-optimizer host",
          "--ranks 2 --grad-accum 4 --pipeline-parallel 2 --threads 2",
          "--ranks 2 --grad-accum 4 --tensor-parallel 2 --activation-checkpoint",
          "--ranks 8 --grad-accum 2 --tensor-parallel 2 --pipeline-parallel 2 --zero-stage 2"}) {
      CAPTURE(layout);
      checked(called(run + other + same + " " + layout));
      CHECK(contains(compared(one, other, 0), "equal: 4 steps, 0 to 3 of "));
    }
  }
}

TEST_CASE("the setting, the datum or the text in which two runs differ is named") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other", text = folder / "text.txt";
  std::string words = read_file(write_letters(folder));
  const std::string run = "train --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --data " +
                          text + " --log-interval 0 --audit-interval 2 --order sequential " + four;
  checked(called(run + "--audit " + one));
  const auto differs = [&](const std::string& flags, const std::string& step,
                           const std::string& setting) {
    CAPTURE(flags);
    checked(called(run + flags + " --audit " + other));
    const std::string found = compared(one, other, 1);
    CHECK(contains(found, step));
    CHECK(contains(found, setting));
  };
  differs("--lr 6e-4", "step 0 differs: rate: 0.0005", "run.rate: 0.0005");
  differs("--seed 1", "step 0 differs: units.embedding: ", "run.seed: 3407, 1");
  differs("--dropout 0.2", "step 0 differs: loss: ", "run.dropout: ");
  differs("--weight-decay 0.2", "step 1 differs: ", "run.weight_decay: ");
  differs("--betas 0.8,0.95", "step 1 differs: ", "run.beta1: ");
  differs("--clip 0.01", "step 1 differs: ", "run.clip_norm: 1.0, ");
  differs("--precision bf16", "step 0 differs: loss_scale: 1.0", "run.compute: \"f32\", \"bf16\"");
  differs("--optimizer lion", "step 1 differs: ", "run.rule: ");
  differs("--order random", "step 0 differs: data: ", "data.order: ");
  differs("--batch-size 8 --grad-accum 2", "step 0 differs: micro_batches: 4 in ",
          "run.micro_batch: 4, 8");
  differs("--batch-size 8", "step 0 differs: samples: [0,16] in ", "run.micro_batch: 4, 8");
  differs("--inject rank=0,step=2,fault=inf", "step 2 differs: squares: ", "no recorded setting");
  // A datum of step 2.
  words[16 * 4 * 4 * 2 + 5] = words[0] == 'a' ? 'b' : 'a';
  write_file(text, words);
  differs("", "step 2 differs: data: ", "data.checksum: ");
}

TEST_CASE(
    "a chain holds over a resume, and a replay finds a chain that was built again after an edit") {
  const TemporaryFolder folder;
  const std::string audit = folder / "audit", save = folder / "save";
  const std::string run =
      small_run + "--batch-size 2 --grad-accum 2 --schedule cosine --audit " + audit;
  checked(called(run + " --steps 6 --exit-interval 4 --save-interval 2 --save-top-k -1 --save " +
                 save));
  checked(called("train --score-samples 0 --log-interval 0 --audit " + audit + " --resume " + save +
                 "/step_2"));
  const std::string shown = checked(called("audit " + audit)).out;
  CHECK(contains(shown,
                 "the chain of 8 records holds: 6 steps, 0 to 5\n  line 4: resumed before "
                 "step 2\n"));
  const std::string replay = "audit " + audit + " --checkpoint " + save + " --replay ";
  CHECK(contains(checked(zerograd(replay + "3..4 -- --ranks 2 --grad-accum 1 --zero-stage 3")).out,
                 "equal: 2 steps, 3 to 4 of "));
  CHECK(
      contains(checked(zerograd(replay + "4..5 -- --zero-stage 3")).out, "equal: 2 steps, 4 to 5"));
  rebuild(audit, "\"step\":4,\"samples\":[16,20]", "\"step\":4,\"samples\":[16,21]");
  checked(called("audit " + audit));
  CHECK(contains(checked(zerograd(replay + "3..5"), 1).out,
                 "step 4 differs: samples: [16,21] in " + audit + ", [16,20] in the replay"));
  // An edit alone breaks the chain.
  std::string text = read_file(audit);
  text.replace(text.find("\"step\":4,\"samples\":[16,21]"), 26, "\"step\":4,\"samples\":[16,20]");
  write_file(audit, text);
  check_refused("audit " + audit, 5, "audit: line 7, step 4: the record was changed");
  check_refused(replay + "4..5", 5, "line 7, step 4");
}

TEST_CASE("a replay begins with the parameters of the record, and a chain with others is named") {
  const TemporaryFolder folder;
  const std::string audit = folder / "audit", other = folder / "other", a = folder / "a";
  const std::string saves = " --save-interval 2 --save-top-k -1 --audit-interval 2 --save ";
  checked(called(small_run + "--steps 6 --audit " + audit + saves + a));
  checked(called(small_run + "--steps 6 --lr 0.01 --audit-interval 2 --audit " + other));
  const std::string resumed =
      "train --score-samples 0 --log-interval 0 --lr 0.02 --resume " + a + "/step_2 --audit ";
  checked(called(resumed + audit + saves + (folder / "b")));
  // The first run's checkpoint of step 4 is of steps that the second one took again.
  const std::string replayed = checked(zerograd("audit " + audit + " --replay 5..5")).out;
  CHECK(contains(replayed, "equal: step 5 of "));
  CHECK(contains(replayed, "\n  the replay began before step 4\n"));
  CHECK(contains(checked(zerograd("audit " + audit + " --replay 5..5 --checkpoint " + a), 1).out,
                 "there its parameters are not those of the record (units."));
  checked(called("audit " + audit));
  checked(called(resumed + other));
  CHECK(contains(checked(called("audit " + other), 1).out,
                 "line 4: resumed before step 2, with other parameters than the step before"));
  CHECK(contains(
      checked(zerograd("diverge " + audit + " " + other + " --program-a /bin/true"), 2).error,
      "got a run without step"));
}

TEST_CASE("audit refuses what it cannot compare") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", late = folder / "late";
  checked(called(small_run + "--steps 2 --audit " + one + " --save " + (folder / "save")));
  checked(called(small_run + "--steps 3 --audit " + late + " --resume " + (folder / "save")));
  CHECK(contains(compared(one, late, 1), "equal: no step of "));
  check_refused("audit " + one + " " + one + " " + one, 2, "expected one or two files, got 3");
  check_refused("audit " + one + " --replay 3", 2, "--replay: expected A..B, such as 20..24");
  check_refused("audit " + one + " --replay 1..5", 2, "does not have the steps 1 to 5");
  check_refused("audit " + one + " " + late + " --replay 0..1", 2,
                "expected one file with --replay, got 2");
  check_refused("audit " + one + " --checkpoint " + (folder / "save"), 2, "expected --replay A..B");
  const std::string ended = "audit " + late + " --replay 2..2 --checkpoint " + (folder / "save");
  CHECK(contains(checked(zerograd(ended + " -- --steps 2"), 2).error, "a run without step 2"));
  check_refused("audit " + (folder / "nothing"), 5, "nothing cannot be read");
  check_refused("audit " + folder.path(), 5, " cannot be read: Is a directory");
  write_file(folder / "empty", "");
  check_refused("audit " + one + " " + (folder / "empty"), 5, "empty: expected the records of an ");
  CHECK(contains(zerograd(small_run + "--steps 1 --audit " + one).error,
                 "--audit: replaces " + one + ", which has 3 lines\n"));
  rebuild(late, "\"command\":[", "\"command\":[7,");
  check_refused("diverge " + late + " " + late, 5,
                "late: line 1: command: expected words, got [7,");
  check_refused(small_run + "--steps 1 --audit /proc/nowhere/a", 5, "--audit: /proc/nowhere/a");
}

TEST_CASE("a preloaded library of a relative path, and without a build id, is named") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other";
  std::string path;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (contains(line, "/libz.so.")) path = line.substr(line.find('/'));
  REQUIRE_FALSE(path.empty());
  std::string library = read_file(path);
  const size_t note = library.find(std::string("\3\0\0\0GNU\0", 8));
  REQUIRE(note != library.npos);
  library[note + 4] = 'X';
  write_file(folder / "own.so", library);
  path = std::filesystem::relative(folder / "own.so").string();
  const std::string run = small_run + "--steps 1 --audit ";
  checked(zerograd(run + one));
  checked(program("env LD_PRELOAD=" + path + " " ZG_COMMAND " " + run + other));
  CHECK(contains(compared(one, other, 0), "run.environment.LD_PRELOAD: -, \"" + path + "\""));
  CHECK(contains(read_file(other),
                 "\"own.so\":\"" + checksum(std::as_bytes(std::span(library))) + "\""));
}

TEST_CASE("plan predicts the bytes of a run with an audit") {
  const TemporaryFolder folder;
  const std::string run = "--data sort --n-layer 2 --n-head 4 --n-embd 32 --score-samples 0 ";
  const std::string audit = "--steps 4 --audit-interval 2 --audit " + (folder / "audit");
  check_plan_is_run(run + "--ranks 2 --zero-stage 3 --precision fsdp-memory " + audit);
  check_plan_is_run(run +
                    "--ranks 2 --zero-stage 3 --param-persistence-threshold 0 --precision bf16 "
                    "--offload-optimizer nvme --nvme-path /tmp " +
                    audit);
  check_plan_is_run(run + "--ranks 4 --pipeline-parallel 2 --tensor-parallel 2 " + audit);
}

}  // namespace zg::testing
