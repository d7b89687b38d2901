#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "tests/support/file_limit.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

namespace fs = std::filesystem;

const std::string saving_run =
    "train --data sort --batch-size 2 --score-samples 0 --threads 1 --n-layer 1 --n-head 1 "
    "--n-embd 16 --grad-accum 2 ";

}  // namespace

TEST_CASE("a save that fails does not end a run, and the last save decides the exit status") {
  const TemporaryFolder folder;
  const std::string whole = hash_of(saving_run + "--steps 6");
  const std::string rest = "train --score-samples 0 --grad-accum 1 --batch-size 2 --ranks 2 ";
  int starts = 0;
  const auto check_start = [&](const std::string& flags, Outcome (*start)(const std::string&)) {
    CAPTURE(flags);
    const std::string save = folder / std::to_string(starts++);
    checked(zerograd(saving_run + "--steps 2 --save " + save));
    write_file(save + "/step_4", "nothing can be renamed to this");
    const std::string line = flags + " --save-interval 2 --resume " + save + " --save " + save;
    const Outcome last = checked(start(line + " --steps 4"), 5);
    const std::string failed = "save failed: " + save + "/step_4: rank 0: rename: " + save +
                               "/.unfinished_step_4 to " + save +
                               "/step_4: Not a directory; it "
                               "needs ";
    CHECK(count_of(last.error, failed) == 1);  // though the end has tried again
    CHECK(count_of(last.error, "save failed") == 1);
    CHECK(contains(last.error, " are free; earlier checkpoints stay"));
    CHECK(!contains(last.out, "saved "));
    CHECK(!line_after(last.out, "param_hash ").empty());
    const Outcome more = checked(start(line + " --steps 6"));
    CHECK(count_of(more.error, "save failed") == 1);
    CHECK(line_after(more.out, "saved ") == save + "/step_6");
    CHECK(line_after(more.out, "param_hash ") == whole);
    CHECK(std::distance(fs::directory_iterator(save), {}) == 4);  // 2, somebody's 4, 6, latest
    checked(zerograd("verify " + save + "/step_2"));
    checked(zerograd("verify " + save + "/step_6"));
  };
  const auto threads = [](const std::string& line) { return zerograd(line); };
  check_start("train --score-samples 0", threads);
  check_start("train --score-samples 0 --async-save", threads);
  check_start(rest + "--zero-stage 3", threads);
  check_start(rest + "--zero-stage 2 --async-save", threads);
  if (skips_mpi("saves that fail")) return;
  for (const std::string how : {"", " --async-save"})
    check_start("-np 2 zerograd " + rest + "--zero-stage 1" + how,
                [](const std::string& line) { return mpirun(line); });
}

TEST_CASE("a limit of the file size fails export and consolidate by the file's name") {
  const TemporaryFolder folder;
  const std::string save = folder / "save";
  checked(zerograd("train --data sort --score-samples 0 --steps 1 --save " + save));
  for (const std::string& words :
       std::vector<std::string>{"export " + save + " --hf " + (folder / "hf"),
                                "consolidate " + save + " " + (folder / "whole.safetensors")}) {
    CAPTURE(words);
    const Outcome outcome = checked(program("prlimit --fsize=2000 " ZG_COMMAND " " + words), 5);
    CHECK(contains(outcome.error, "error: FileError: "));
    CHECK(contains(outcome.error, folder.path()));
    CHECK(contains(outcome.error, "File too large"));
  }
}

TEST_CASE("a run that is stopped by a signal and cannot save ends with a file error") {
  const TemporaryFolder folder;
  const FileLimit limit(2000);
  for (const std::string flags : {"", "--ranks 2 --zero-stage 2 "}) {
    const Outcome outcome =
        checked(zerograd_signalled(
                    saving_run + flags + "--log-interval 1 --steps 1000000 --save " + folder.path(),
                    "iter 3:", SIGTERM),
                5);
    CHECK(count_of(outcome.error, "save failed: ") == 1);
    CHECK(contains(outcome.error, ".safetensors.unfinished: File too large; it needs "));
    CHECK(!contains(outcome.error, "go on with"));
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("on a full disk only the checkpoints that do not fit fail, and earlier ones stay valid") {
  const SmallDisk disk(4 << 20);
  if (!disk.reason().empty()) return;
  const std::string save = disk / "save";
  checked(zerograd(saving_run + "--steps 1 --save " + save));
  const int64_t page = 4096;
  int64_t each = 0;
  for (const auto& file : fs::directory_iterator(save + "/step_1"))
    each += (static_cast<int64_t>(fs::file_size(file.path())) + page - 1) / page * page;
  fs::remove_all(save);
  disk.resize(each * 5 / 2 / page * page);
  const std::string run =
      saving_run + "--save-interval 2 --steps 8 --save " + save + " --save-top-k ";
  const Outcome all = checked(zerograd(run + "-1"), 5);
  CHECK(count_of(all.out, "saved ") == 2);
  CHECK(count_of(all.error, "/.unfinished_step_6: too little space is left; it needs ") == 1);
  CHECK(count_of(all.error, "/.unfinished_step_8: too little space is left; it needs ") == 1);
  checked(zerograd("verify " + save + "/step_2"));
  checked(zerograd("verify " + save + "/step_4"));
  fs::remove_all(save);
  // Room for three checkpoints: retention removes one before the fourth save
  disk.resize(each * 7 / 2 / page * page);
  CHECK(count_of(checked(zerograd(run + "1")).out, "saved ") == 4);
  CHECK(std::distance(fs::directory_iterator(save), {}) == 3);
}

TEST_CASE("checkpoints that --save-top-k cannot remove give a warning and do not end the run") {
  const SmallDisk disk(4 << 20);
  if (!disk.reason().empty()) return;
  const std::string save = disk / "save";
  checked(zerograd(saving_run + "--steps 1 --save " + save));
  REQUIRE(::mount("zerograd", (save + "/step_1").c_str(), "", MS_BIND, "") != 0);
  REQUIRE(::mount((save + "/step_1").c_str(), (save + "/step_1").c_str(), "", MS_BIND, "") == 0);
  const Outcome outcome = zerograd(
      "train --score-samples 0 --steps 4 --save-interval 1 "
      "--save-top-k 1 --resume " +
      save + " --save " + save);
  ::umount2((save + "/step_1").c_str(), MNT_DETACH);
  CAPTURE(outcome.error);
  CHECK(outcome.status == 0);
  CHECK(contains(outcome.error, "warning: --save-top-k: " + save +
                                    ": older checkpoints stay: "
                                    "rename: " +
                                    save + "/step_1"));
  CHECK(line_after(outcome.out, "saved " + save + "/step_4").empty());
  checked(zerograd("verify " + save + "/step_4"));
}

TEST_CASE("a run leaves no unfinished checkpoint, and removes those that a killed run left") {
  const TemporaryFolder folder;
  const std::string save = folder / "save";
  const auto leave = [&] {
    fs::create_directories(save + "/.unfinished_step_77");
    write_file(save + "/.unfinished_step_77/shard_00000.safetensors", "half");
    fs::create_directories(save + "/.unfinished_step_3.removed");
    write_file(save + "/.unfinished_latest", "step_");
  };
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(save))
      found.insert(entry.path().filename().string());
    return found;
  };
  using Names = std::set<std::string>;
  checked(zerograd(saving_run + "--steps 2 --save " + save));
  const std::string resume = "train --score-samples 0 --resume " + save + " --save " + save;
  leave();
  checked(zerograd(resume));  // which has nothing to save
  CHECK(names() == Names{"latest", "step_2"});
  leave();
  {
    const FileLimit limit(2000);
    checked(zerograd(resume + " --steps 3"), 5);
  }
  CHECK(names() == Names{"latest", "step_2"});
  leave();
  checked(
      zerograd(resume + " --ranks 2 --grad-accum 1 --steps 4 --inject rank=1,step=3,fault=throw"),
      1);
  CHECK(names() == Names{"latest", "step_2"});
  leave();
  CHECK(
      zerograd_signalled(resume + " --steps 1000000 --log-interval 1", "iter 3:", SIGTERM).status ==
      143);
  CHECK(names().size() == 3);  // and the step that was saved
  CHECK(*names().begin() == "latest");
  // Where another run saves, what is unfinished is that run's.
  leave();
  const int lock = ::open(save.c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(lock, LOCK_EX) == 0);
  checked(zerograd(resume), 2);
  ::close(lock);
  CHECK(names().contains(".unfinished_step_77"));
}

TEST_CASE("when the disk is full --metrics stops with a warning, and the run trains on and saves") {
  const SmallDisk disk(4 << 10);
  if (!disk.reason().empty()) return;
  const TemporaryFolder folder;
  const Outcome outcome = checked(
      zerograd("train --data sort --steps 60 --batch-size 2 --score-samples 0 --log-interval 0 "
               "--metrics " +
               (disk / "metrics") + " --save " + (folder / "save")),
      5);
  CHECK(contains(outcome.error, "No space left on device; free space there"));
  CHECK(contains(outcome.error, "; no more of it is written, and training goes on"));
  CHECK(contains(outcome.out, "saved " + (folder / "save/step_60")));
}

TEST_CASE("under a limit of threads a run ends before it trains, or trains and saves") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("SKIPPED: a sanitizer must be the first library that is loaded\n");
#else
  const TemporaryFolder folder;
  const std::string async = "--save-interval 1 --save-top-k -1 --async-save ";
  for (const std::string& flags :
       {std::string(), async + "--ranks 2 --zero-stage 3 --offload-optimizer nvme --nvme-path " +
                           folder.path() + " "}) {
    int saved = 0, limit = 0;
    for (; saved < 3 && limit < 40; ++limit) {
      const std::string save = folder / ("save" + std::to_string(limit));
      setenv("ZG_MOST_THREADS", std::to_string(limit).c_str(), 1);
      setenv("ZG_NO_URING", "1", 1);  // its own threads are the kernel's
      setenv("LD_PRELOAD", ZG_INTERRUPTED_CALLS, 1);
      const Outcome outcome =
          zerograd(saving_run + flags + "--steps 3 --log-interval 1 --save " + save);
      unsetenv("LD_PRELOAD");
      unsetenv("ZG_NO_URING");
      unsetenv("ZG_MOST_THREADS");
      INFO("flags ", flags, ", limit ", limit, ", error ", outcome.error);
      if (outcome.status == 0) {
        ++saved;
        checked(zerograd("verify " + save + "/step_3"));
      } else {
        CHECK(saved == 0);
        CHECK(outcome.status == 3);
        for (const char* part : {"thread", "ulimit -u"}) CHECK(contains(outcome.error, part));
        CHECK(!contains(outcome.out, "iter "));
      }
      fs::remove_all(save);
    }
    CHECK(saved == 3);
    CHECK(limit > 3);  // at least one limit was too low
  }
#endif
}

TEST_CASE("interrupted system calls and a busy drive do not change the result of a run") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("SKIPPED: a sanitizer must be the first library that is loaded\n");
#else
  const TemporaryFolder folder;
  const std::string run =
      saving_run +
      "--steps 2 --ranks 2 --zero-stage 3 --precision bf16 --param-persistence-threshold 0 "
      "--offload-optimizer nvme --offload-param nvme --log-interval 0 --nvme-path " +
      folder.path() + " ";
  for (const char* engine : {"io_uring", "pread"}) {
    CAPTURE(engine);
    const std::string save = folder / engine, calls = folder / "calls";
    const bool uring = std::string(engine) == "io_uring";
    const std::string line = run + "--save " + save;
    if (!uring) setenv("ZG_NO_URING", "1", 1);
    setenv("ZG_INTERRUPTED", calls.c_str(), 1);
    setenv("LD_PRELOAD", ZG_INTERRUPTED_CALLS, 1);
    const Outcome outcome = zerograd(line);
    unsetenv("LD_PRELOAD");
    unsetenv("ZG_INTERRUPTED");
    unsetenv("ZG_NO_URING");
    CAPTURE(outcome.error);
    CHECK(outcome.status == 0);
    CHECK(!contains(outcome.error, "cannot be locked"));
    checked(zerograd("verify " + save));
    CHECK(line_after(outcome.out, "param_hash ") == hash_of(run));
    const std::string report = read_file(calls);
    CAPTURE(report);
    const auto interrupted = [&](const char* function) {
      CAPTURE(function);
      CHECK(std::stoi(line_after(report, std::string(function) + " ")) > 0);
    };
    for (const char* function :
         {"fsync", "flock", "fallocate", "posix_fallocate", "open", "close", "pread"})
      interrupted(function);
    if (contains(outcome.error, "by io_uring")) interrupted("io_uring_submit");
    if (!uring) interrupted("pwrite");
    CHECK((uring || !contains(outcome.error, "by io_uring")));
    fs::remove(calls);
  }
#endif
}

TEST_CASE("--save warns of a folder that cannot be locked") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("SKIPPED: a sanitizer must be the first library that is loaded\n");
#else
  const TemporaryFolder folder;
  const std::string save = folder / "save", run = saving_run + "--steps 1 --save " + save;
  setenv("ZG_NO_LOCKS", "1", 1);
  setenv("LD_PRELOAD", ZG_INTERRUPTED_CALLS, 1);
  const Outcome unlocked = zerograd(run);
  unsetenv("LD_PRELOAD");
  unsetenv("ZG_NO_LOCKS");
  CAPTURE(unlocked.error);
  CHECK(unlocked.status == 0);
  CHECK(contains(unlocked.error, "warning: --save: " + save +
                                     " cannot be locked (No locks available); nothing keeps "
                                     "another run from writing there\n"));
#endif
}

}  // namespace zg::testing
