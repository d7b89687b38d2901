#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string flags =
    "--batch-size 2 --score-samples 0 --log-interval 0 --threads 1 --n-layer 1 --n-head 1 --n-embd "
    "16 ";
const std::string resumable_run = "train --data sort " + flags;

std::string numbers(int end) {
  std::string text;
  for (int i = 0; i < end; ++i) text += std::to_string(i) + "\n";
  return text;
}

}  // namespace

TEST_CASE(
    "--save refuses a folder with another run's checkpoints, or with later ones of the same run") {
  const TemporaryFolder folder;
  const std::string first = folder / "first", second = folder / "second";
  checked(zerograd(resumable_run + "--steps 4 --save-interval 2 --save-top-k -1 --save " + first));
  const auto refused = [](const std::string& line, const std::string& directory) {
    CAPTURE(line);
    const Outcome outcome = checked(zerograd(line), 2);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, "ConfigError: --save: " + directory + " holds another run's"));
    CHECK(contains(outcome.error, "try --resume " + directory));
  };
  refused(resumable_run + "--steps 2 --save " + first, first);
  checked(
      zerograd("train --resume " + first + "/step_2 --score-samples 0 --steps 3 --save " + second));
  refused("train --score-samples 0 --resume " + first + " --save " + second, second);

  // Its own directory: it resumes from the newest, for any spelling of the path. A newer checkpoint
  // must not be replaced unless it is damaged.
  const std::string same = " --score-samples 0 --save " + first + "/";
  checked(zerograd("train --steps 5 --resume auto" + same));
  check_refused("train --steps 3 --resume " + first + "/step_2/" + same, 2,
                "has step_5, later than the step_2 that this run goes on from");
  CHECK(!std::filesystem::exists(first + "/step_3"));
  std::filesystem::resize_file(first + "/step_5/shard_00000.safetensors", 100);
  checked(zerograd("train --steps 5 --resume auto" + same));
  checked(zerograd("eval " + first + "/step_5 --eval-batches 1 --score-samples 0"));
}

TEST_CASE("--save refuses a folder that another run is writing to") {
  const TemporaryFolder folder;
  const std::string save = folder / "save";
  std::filesystem::create_directory(save);
  const int other = ::open(save.c_str(), O_RDONLY | O_DIRECTORY);  // as another run would
  REQUIRE(::flock(other, LOCK_EX) == 0);
  check_refused(resumable_run + "--steps 2 --save " + save, 2, "another run is writing to " + save);
  ::close(other);
  checked(zerograd(resumable_run + "--steps 2 --save " + save));
}

TEST_CASE(
    "a continued run ends where its checkpoint says, in steps or epochs, unless --steps is given") {
  const TemporaryFolder folder;
  const std::string save = folder / "steps", epochs = folder / "epochs";
  const std::string whole = hash_of(
      zerograd(resumable_run + "--steps 5 --save-interval 2 --save-top-k -1 --save " + save));
  const Outcome rest = zerograd("train --score-samples 0 --resume " + save + "/step_2");
  CHECK(hash_of(rest) == whole);
  CHECK(contains(rest.error, "; steps 2 to 5\n"));
  const Outcome done = zerograd("train --score-samples 0 --resume " + save);
  CHECK(hash_of(done) == whole);
  CHECK(contains(done.error, "nothing is left to train: the run ends at step 5"));
  const Outcome longer = zerograd("train --score-samples 0 --steps 6 --resume " + save);
  CHECK(contains(longer.error, "changed: run.steps: 5 in the checkpoint, 6 now"));

  // An epoch of sort has 10000 samples, so 0.0008 epochs are four steps of 2. With a larger batch
  // size the rest of the epoch takes fewer steps.
  checked(zerograd(resumable_run + "--epochs 0.0008 --save-interval 2 --save-top-k -1 --save " +
                   epochs));
  const std::string go_on = "train --score-samples 0 --resume " + epochs + "/step_2";
  CHECK(contains(zerograd(go_on).error, "; steps 2 to 4\n"));
  CHECK(contains(zerograd(go_on + " --batch-size 4").error, "; steps 2 to 3\n"));
  checked(zerograd("plan --resume " + epochs));
}

TEST_CASE("--limit-train-batches ends an epoch after that many batches in a continued run, too") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved";
  const Outcome first = zerograd(
      resumable_run + "--limit_train_batches 7 --save-interval 5 --save-top-k -1 --save " + save);
  CHECK(contains(first.error, "; steps 0 to 7\n"));
  const Outcome rest = zerograd("train --score-samples 0 --resume " + save + "/step_5");
  CHECK(contains(rest.error, "; steps 5 to 7\n"));
}

TEST_CASE(
    "a continued run takes every setting from its checkpoint, tested without default values") {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt", save = folder / "checkpoints";
  write_file(text, numbers(600));
  const std::string run =
      "train --data " + text +
      " --block-size 16 --vocab-size 20 --batch-size 2 --grad-accum 2 --threads 1 --log-interval 0 "
      "--n-layer 1 --n-head 2 --n-embd 64 --tied --dropout 0.3 --order sequential --val-fraction "
      "0.25 --seed 5 --lr 2e-3 --weight-decay 0.3 --betas 0.8,0.97 --clip 0.05 --schedule "
      "WarmupLR --warmup-steps 3 --grad-accum-dtype bf16 --reduce-at-boundary --zero-stage 1 "
      "--ranks 2 --steps 6 --eval-interval 4 ";
  const std::string whole =
      hash_of(zerograd(run + "--save-interval 3 --save-top-k -1 --save " + save));
  const std::string rest =
      "train --ranks 2 --threads 1 --log-interval 0 --eval-interval 4 --resume ";
  const Outcome resumed = zerograd(rest + save + "/step_3");
  CHECK(hash_of(resumed) == whole);
  CHECK(!contains(resumed.error, "changed: "));

  // There was no validation in between: the loss to compare with comes from the checkpoint.
  checked(zerograd(rest + save + "/step_6 --steps 7 --save " + (folder / "more")));
  const auto loss_of = [](const std::string& step) {
    return nlohmann::json::parse(read_file(step + "/manifest.json"))
        .at("config")
        .at("position")
        .at("loss");
  };
  CHECK(loss_of(save + "/step_6").is_number());
  CHECK(loss_of(folder / "more/step_7") == loss_of(save + "/step_6"));

  // The plan reports the traffic of one step, for any number of steps before it.
  const std::string plan = " --ranks 2 --threads 1 --steps 8 --resume " + save;
  CHECK(line_after(zerograd("plan" + plan + "/step_6").out, "wire ") ==
        line_after(zerograd("plan" + plan + "/step_3").out, "wire "));
}

TEST_CASE(
    "a continued run reports changed contents of its data file, but not a file that only moved") {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt", save = folder / "checkpoints";
  write_file(text, numbers(400));
  checked(
      zerograd("train --data " + text + " --steps 2 --block-size 16 --save " + save + " " + flags));
  const std::string resume = "train --steps 3 --resume " + save;
  CHECK(!contains(zerograd(resume).error, "contents"));
  CHECK(zerograd("eval " + save).error.empty());
  write_file(folder / "moved.txt", numbers(400));
  CHECK(!contains(zerograd(resume + " --data " + (folder / "moved.txt")).error, "contents"));
  std::string same_size = numbers(400);
  same_size[same_size.find('7')] = '8';
  write_file(text, same_size);
  const Outcome changed = checked(zerograd(resume));
  CHECK(contains(changed.error, "changed: data: " + text + " has other contents: 1490 bytes in "));
  CHECK(contains(zerograd("eval " + save).error, "changed: data: " + text + " has other contents"));
  write_file(text, numbers(400) + "x");
  check_refused(resume, 2, "has other characters than the checkpoint's");
}

TEST_CASE("a note reports a byte order mark and CR characters in a text") {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt";
  std::string lines = "\xEF\xBB\xBF";
  for (int i = 0; i < 400; ++i) lines += "line\r\n";
  write_file(text, lines);
  const Outcome outcome =
      checked(zerograd("train --data " + text + " --steps 1 --block-size 16 " + flags));
  CHECK(contains(outcome.error, "note: " + text + " has a byte order mark"));
  CHECK(contains(outcome.error, "note: " + text + " has CR characters"));
}

TEST_CASE(
    "a checkpoint of an NVMe run is evaluated without NVMe, and consolidate never overwrites its "
    "files") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", disk = " --nvme-path " + folder.path();
  checked(zerograd(resumable_run +
                   "--steps 2 --offload-optimizer nvme --offload-gradients nvme --save " + save +
                   disk));
  CHECK(contains(checked(zerograd("eval " + save + " --score-samples 0")).out, "val loss "));
  CHECK(contains(zerograd("train --steps 3 --resume " + save).error,
                 "or none or host for --offload"));
  for (const char* file : {"/step_2/shard_00000.safetensors", "/latest", "/step_2/new"})
    check_refused("consolidate " + save + " " + save + file, 2, " a file of ");
  checked(zerograd("export " + save + " --hf " + save + "/step_2"), 2);
  checked(zerograd("verify " + save));
  checked(zerograd("consolidate " + save + " " + save + "/whole.safetensors"));
}

}  // namespace zg::testing
