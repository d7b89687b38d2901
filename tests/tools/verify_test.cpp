#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

namespace fs = std::filesystem;

const std::string verified_run =
    "train --data sort --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 --n-layer 1 "
    "--n-head 1 --n-embd 16 --ranks 2 ";

void flip_last_byte(const std::string& path) {
  std::string bytes = read_file(path);
  bytes.back() ^= 1;
  write_file(path, bytes);
}

}  // namespace

TEST_CASE("verify names every damage, and the checkpoint that a run would continue from") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", last = save + "/step_6", before = save + "/step_4";
  checked(zerograd(verified_run + "--steps 6 --save-interval 2 --save-top-k -1 --save " + save));
  const Outcome whole = checked(zerograd("verify " + save));
  CHECK(whole.error.empty());
  CHECK(whole.out == last + ": verifies\n" + before + ": verifies\n" + save +
                         "/step_2: verifies\n--resume " + save + " takes " + last + "\n");

  flip_last_byte(last + "/shard_00000.safetensors");
  fs::resize_file(last + "/shard_00001.safetensors", 3000);
  const Outcome one = checked(zerograd("verify " + last), 5);
  CHECK(contains(one.out, last + ": 2 damaged items\n"));
  CHECK(contains(one.out, last + "/shard_00000.safetensors: tensor '"));
  CHECK(contains(one.out, last + "/shard_00001.safetensors: "));
  CHECK(contains(one.error, "error: FileError: verify: " + last + " is damaged"));
  const Outcome all = checked(zerograd("verify " + save), 5);
  CHECK(contains(all.out, before + ": verifies\n"));
  CHECK(contains(all.out, "--resume " + save + " takes " + before + "\n"));
  CHECK(contains(all.error, "1 of the 3 checkpoints in " + save + " is damaged"));

  const Outcome resumed = checked(zerograd("train --score-samples 0 --ranks 2 --resume " + save));
  CHECK(contains(resumed.error, "passed over " + last));
  CHECK(contains(resumed.error, "; steps 4 to 6\n"));

  fs::remove(before + "/manifest.json");
  flip_last_byte(save + "/step_2/manifest.json");
  const Outcome none = checked(zerograd("verify " + save), 5);
  CHECK(contains(none.out,
                 before + ": 1 damaged item\n  open: " + before + "/manifest.json: No such"));
  CHECK(contains(none.out, "--resume " + save + " takes nothing\n"));
  checked(zerograd("train --resume " + save), 5);
}

TEST_CASE("verify of checkpoints that were all removed is a file error, not a success") {
  const TemporaryFolder folder;
  fs::create_symlink("absent", folder / "step_7");  // listed, but nothing can be opened
  const Outcome outcome = checked(called("verify " + folder.path()), 5);
  CHECK(contains(outcome.out, "/step_7: was removed during the check\n"));
  CHECK(contains(outcome.error, "verify: " + folder.path() + ": every checkpoint was removed"));
}

TEST_CASE("verify of a path without a checkpoint is a file error that names the path") {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path(), folder / "absent"}) {
    const Outcome outcome = checked(zerograd("verify " + path), 5);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, "error: FileError: checkpoint: " + path));
  }
  checked(zerograd("verify"), 2);
  CHECK(contains(zerograd("verify --help").out, "Exit status 5"));
}

}  // namespace zg::testing
