#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "tests/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string tiny =
    "train --data sort --batch-size 2 --score-samples 0 --threads 1 --n-layer 1 --n-head 1 "
    "--n-embd 16 --log-interval 1 ";

}  // namespace

TEST_CASE("results that could not be written are a file error, and the run still saves") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const Outcome trained = zerograd_into("/dev/full", tiny + "--steps 2 --save " + save);
  CHECK(trained.status == 5);
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

TEST_CASE("a link that leads nowhere is not removed by a run that writes nothing") {
  const TemporaryFolder folder;
  const std::string link = folder / "stdout";
  std::filesystem::create_symlink(folder / "closed", link);
  CHECK(zerograd("train --data /nowhere/text --memory-json " + link).status != 0);
  CHECK(zerograd("train --data sort --stepz 1 --memory-json " + link).status == 2);
  CHECK(zerograd(tiny + "--steps 1 --save /proc/nowhere --memory-json " + link).status == 5);
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("a run whose output nobody reads any more stops and saves") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const Outcome outcome = zerograd_unread(tiny + "--steps 1000000 --save " + save);
  CHECK(outcome.status == 128 + SIGPIPE);
  CHECK(contains(outcome.error, "interrupted by SIGPIPE"));
  CHECK(zerograd("eval " + save + " --eval-batches 1 --score-samples 0").status == 0);
}

TEST_CASE("a run that diverged says since when, at once and at its end") {
  const Outcome outcome = zerograd(tiny + "--steps 6 --lr 1e30 --clip 0");
  CHECK(outcome.status == 0);
  CHECK(contains(outcome.error, "warning: the loss of step "));
  CHECK(contains(outcome.error, "warning: the loss is not finite since step "));
  CHECK(!contains(zerograd(tiny + "--steps 2").error, "warning"));
}

TEST_CASE("a run of epochs ends with minGPT's three lines, others do not") {
  const TemporaryFolder folder;
  const Outcome outcome =
      zerograd(tiny + "--gpus 2 --limit_train_batches 3 --epochs 2 --metrics " + (folder / "m"));
  CAPTURE(outcome.error);
  REQUIRE(outcome.status == 0);
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
  CHECK(contains(outcome.out, " seconds\nAverage Peak CUDA memory: "));
  char words[32];
  std::snprintf(words, sizeof words, "%.2fMiB", peak / (1 << 20));
  CHECK(line_after(outcome.out, "Average Peak CUDA memory: ") == words);
  const std::string host = line_after(outcome.out, "CPU Virtual Memory:  used = ");
  CHECK(std::stod(host) > 0.0);
  CHECK(contains(host, " GB, percent = "));
  CHECK(host.ends_with("%"));
  // An epoch that was cut short is one.
  CHECK(contains(zerograd(tiny + "--epochs 0.0001").out, "Average Epoch time: "));
  CHECK(!contains(zerograd(tiny + "--steps 2").out, "Average"));
}

}  // namespace zg::testing
