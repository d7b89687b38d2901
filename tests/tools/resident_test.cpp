#include <algorithm>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

using namespace zg::testing;

// Sanitizers keep shadow memory and quarantines of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST_CASE("at gpt2 size the resident memory is within 10 percent of the counted peak") {
  const std::string metrics =
      (std::filesystem::temp_directory_path() / "zerograd_resident.jsonl").string();
  const Outcome outcome = checked(zerograd(
      "train --data sort --model-type gpt2 --steps 2 --batch-size 16 --score-samples 1 --metrics " +
      metrics));
  int64_t peak = 0;
  for (const nlohmann::json& line : json_lines(metrics))
    if (line.contains("peak_bytes")) peak = std::max(peak, line.at("peak_bytes").get<int64_t>());
  // At least 16 bytes a parameter. If less is measured, the accounting misses something.
  CHECK(peak > int64_t{16} * 85'000'000);
  MESSAGE("counted " << peak << " bytes, resident " << outcome.resident_bytes);
  CHECK(static_cast<double>(outcome.resident_bytes) > 0.9 * static_cast<double>(peak));
  CHECK(static_cast<double>(outcome.resident_bytes) < 1.1 * static_cast<double>(peak));
}

TEST_CASE("the resident memory of eight ranks at stage 0 covers the states counted for all eight") {
  const std::string path =
      (std::filesystem::temp_directory_path() / "zerograd_resident.json").string();
  const Outcome outcome = checked(zerograd(
      "train --data sort --n-layer 4 --n-head 8 --n-embd 256 --ranks 8 --steps 1 --batch-size 1 "
      "--score-samples 0 --memory-json " +
      path));
  const nlohmann::json record = json_lines(path)[0];
  const int64_t parameters = record.at("parameters");
  CHECK(parameters > 3'000'000);
  int64_t rest = 0;
  for (const nlohmann::json& rank : record.at("ranks"))
    for (const auto& [purpose, bytes] : rank.at("rest").items()) rest += bytes.get<int64_t>();
  CHECK(rest >= 8 * 12 * parameters);  // values and both moments of each, and a share of sums
  MESSAGE("counted " << rest << " bytes, resident " << outcome.resident_bytes);
  CHECK(outcome.resident_bytes >= rest);
}

TEST_CASE("loading a checkpoint or weights takes at most 100 MB beyond the counted peak") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", file = folder / "weights.safetensors";
  const std::string memory = folder / "memory.json";
  // Its table of tokens is 128 MB, of which a range of 32 MiB is read at once.
  const std::string run =
      "train --data sort --vocab-size 4000000 --tied --n-layer 1 --n-head 1 --n-embd 8 "
      "--batch-size 1 --score-samples 0 --log-interval 0 --memory-json " +
      memory + " --steps 0 ";
  checked(zerograd(run + "--save " + save));
  checked(zerograd("consolidate " + save + " " + file));
  for (const std::string& start : {"--resume " + save, "--init " + file}) {
    CAPTURE(start);
    const Outcome outcome = checked(zerograd(run + start));
    const int64_t peak = json_lines(memory)[0].at("ranks")[0].at("peak").at("reserved");
    CHECK(peak > int64_t{4} * 128'000'000);
    MESSAGE("counted " << peak << " bytes, resident " << outcome.resident_bytes);
    CHECK(outcome.resident_bytes < peak + int64_t{100} * 1000 * 1000);
  }
}

#endif
