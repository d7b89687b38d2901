#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/tools/command.h"

using namespace zg::testing;

// Sanitizers keep shadow memory and quarantines of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST_CASE("resident memory follows the books within a tenth at gpt2 size") {
  const std::string metrics =
      (std::filesystem::temp_directory_path() / "zerograd_resident.jsonl").string();
  const Outcome outcome = zerograd(
      "train --data sort --model-type gpt2 --steps 2 --batch-size 16 --score-samples 1 --metrics " +
      metrics);
  INFO(outcome.error);
  REQUIRE(outcome.status == 0);
  int64_t peak = 0;
  for (const nlohmann::json& line : json_lines(metrics))
    if (line.contains("peak_bytes")) peak = std::max(peak, line.at("peak_bytes").get<int64_t>());
  // 16 bytes a parameter and more: below it, the books would be missing something.
  CHECK(peak > int64_t{16} * 85'000'000);
  MESSAGE("counted " << peak << " bytes, resident " << outcome.resident_bytes);
  CHECK(static_cast<double>(outcome.resident_bytes) > 0.9 * static_cast<double>(peak));
  CHECK(static_cast<double>(outcome.resident_bytes) < 1.1 * static_cast<double>(peak));
}

#endif
