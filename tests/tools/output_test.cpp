#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/text/format.h"

namespace zg::testing {
namespace {

const std::string tiny_run =
    "train --data sort --batch-size 2 --score-samples 0 --threads 1 --n-layer 1 --n-head 1 "
    "--n-embd 16 --log-interval 1 ";

}  // namespace

TEST_CASE("a run whose stdout cannot be written still saves and ends with a file error") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const Outcome trained =
      checked(zerograd_into("/dev/full", tiny_run + "--steps 2 --save " + save), 5);
  CHECK(contains(trained.error, "error: FileError: stdout: "));
  CHECK(std::filesystem::is_directory(save + "/step_2"));
  for (const std::string& line : {"eval " + save + " --eval-batches 1 --score-samples 0",
                                  "generate " + save + " --prompt 012 --length 2",
                                  std::string("plan --data sort"), std::string("--help")}) {
    CAPTURE(line);
    CHECK(zerograd_into("/dev/full", line).status == 5);
  }
  // An error of its own keeps its status.
  CHECK(zerograd_into("/dev/full", "train --data srot").status == 2);
}

TEST_CASE("a run that is refused does not remove a dangling symlink at --memory-json") {
  const TemporaryFolder folder;
  const std::string link = folder / "stdout";
  std::filesystem::create_symlink(folder / "closed", link);
  CHECK(zerograd("train --data /nowhere/text --memory-json " + link).status != 0);
  checked(zerograd("train --data sort --stepz 1 --memory-json " + link), 2);
  checked(zerograd(tiny_run + "--steps 1 --save /proc/nowhere --memory-json " + link), 5);
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("a run whose stdout has lost its reader stops, saves and exits with SIGPIPE's status") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const Outcome outcome =
      checked(zerograd_unread(tiny_run + "--steps 1000000 --save " + save), 128 + SIGPIPE);
  CHECK(contains(outcome.error, "interrupted by SIGPIPE"));
  checked(zerograd("eval " + save + " --eval-batches 1 --score-samples 0"));
}

TEST_CASE("a run whose loss is not finite warns at once and at its end, with the step since when") {
  const Outcome outcome = checked(zerograd(tiny_run + "--steps 6 --lr 1e30 --clip 0"));
  CHECK(contains(outcome.error, "warning: the loss of step "));
  CHECK(contains(outcome.error, "warning: the loss is not finite since step "));
  CHECK(!contains(zerograd(tiny_run + "--steps 2").error, "warning"));
}

TEST_CASE("a run of 40 steps prints loss, rate and gradient norm of eight of them") {
  const TemporaryFolder folder;
  const std::string run = tiny_run.substr(0, tiny_run.find("--log-interval"));
  const Outcome outcome = checked(zerograd(run + "--steps 40 --metrics " + (folder / "m")));
  const std::vector<nlohmann::json> steps = json_lines(folder / "m");
  CAPTURE(outcome.out);
  CHECK(count_of(outcome.out, "; iter ") == 8);
  for (size_t step = 0; step < 40; step += 5) {
    const std::string line = line_after(
        outcome.out.substr(outcome.out.find(fmt::format("; iter {}: ", step))), "; iter ");
    const std::string end =
        fmt::format("; lr {:.4g}; grad norm {:.4g}", steps.at(step).at("lr").get<double>(),
                    steps.at(step).at("grad_norm").get<double>());
    CAPTURE(end);
    CHECK(line.ends_with(end));
  }
  CHECK(count_of(checked(zerograd(run + "--steps 40 --log-interval 100")).out, "; iter ") == 1);
}

TEST_CASE("a run with --epochs ends with minGPT's three lines, a run with --steps does not") {
  const TemporaryFolder folder;
  const Outcome outcome = checked(zerograd(
      tiny_run + "--gpus 2 --limit_train_batches 3 --epochs 2 --metrics " + (folder / "m")));
  double seconds = 0.0, peak = 0.0;
  int steps = 0;
  for (const nlohmann::json& line : json_lines(folder / "m")) {
    if (!line.contains("step_s")) continue;
    ++steps;
    seconds += line.at("step_s").get<double>();
    peak = std::max(peak, line.at("peak_bytes").get<double>());
  }
  CHECK(steps == 6);
  // Ranks wait for each other in every step, and the line has two digits.
  const double average = std::stod(line_after(outcome.out, "Average Epoch time: "));
  CHECK(average == doctest::Approx(seconds / 2).epsilon(0.2).scale(0.1));
  CHECK(contains(outcome.out, " seconds\nAverage Peak CPU memory: "));
  char words[32];
  std::snprintf(words, sizeof words, "%.2fMiB", peak / (1 << 20));
  CHECK(line_after(outcome.out, "Average Peak CPU memory: ") == words);
  const std::string host = line_after(outcome.out, "CPU Virtual Memory:  used = ");
  CHECK(std::stod(host) > 0.0);
  CHECK(contains(host, " GB, percent = "));
  CHECK(host.ends_with("%"));
  // An epoch that was cut short is one.
  CHECK(contains(zerograd(tiny_run + "--epochs 0.0001").out, "Average Epoch time: "));
  CHECK(!contains(zerograd(tiny_run + "--steps 2").out, "Average"));
}

TEST_CASE("a loop of symlinks is a file error wherever a path is read or written") {
  const TemporaryFolder folder;
  const std::string loop = folder / "loop", text = folder / "text.txt", save = folder / "save";
  for (const std::string& name : {loop, loop + ".txt"}) std::filesystem::create_symlink(name, name);
  write_file(text, "some letters to read");
  checked(zerograd(tiny_run + "--steps 1 --save " + save));
  const std::string run = tiny_run + "--steps 1 ";
  for (const std::string& line :
       {"train --data " + loop,
        "train --data " + loop + ".txt",
        run + "--init " + loop,
        "train --steps 2 --resume " + loop,
        run + "--resume auto --save " + loop,
        run + "--save " + loop,
        "train --data " + text + " --tokenizer " + loop,
        run + "--config " + loop,
        run + "--from-hf " + loop,
        run + "--offload-optimizer nvme --nvme-path " + loop,
        run + "--metrics " + loop,
        run + "--trace " + loop,
        run + "--report " + loop,
        run + "--memory-json " + loop,
        run + "--dump-gradients " + loop,
        run + "--tensorboard-dir " + loop,
        "eval " + loop,
        "generate " + loop + " --prompt 1",
        "consolidate " + loop + " " + (folder / "out"),
        "consolidate --split " + loop + " " + (folder / "split") + " --ranks 2",
        "export " + loop + " --hf " + (folder / "hf"),
        "export " + save + " --hf " + loop,
        "verify " + loop,
        "tokenize " + loop + " --out " + (folder / "p") + " --tokenizer train:260",
        "tokenize " + text + " --out " + (folder / "p") + " --tokenizer " + loop,
        "tokenize " + text + " --out " + loop + "/p --tokenizer train:260",
        "bench offload --nvme-path " + loop,
        "bench kernels --json " + loop,
        "bench tokenizer " + loop + " --tokenizer train:260",
        "launch --hostfile " + loop + " train --data sort",
        "tune --data sort --out " + loop,
        "plan --data sort --memory-json " + loop,
        "plan --data " + loop}) {
    CAPTURE(line);
    const Outcome outcome = checked(called(line), 5);
    CHECK(contains(outcome.error, "error: FileError: "));
    CHECK(contains(outcome.error, loop));
    CHECK(contains(outcome.error, "Too many levels of symbolic links"));
  }
  CHECK(std::filesystem::is_symlink(loop));
}

}  // namespace zg::testing
