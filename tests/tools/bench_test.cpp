#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/tools/command.h"

using namespace zg::testing;

namespace {

/// The cells of a Markdown table's rows, "| a | b |", its line of dashes left out.
std::vector<std::vector<std::string>> table_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    std::vector<std::string>& cells = rows.emplace_back();
    for (size_t begin = 1; begin < line.size();) {
      const size_t end = line.find('|', begin);
      cells.push_back(end > begin + 1 ? line.substr(begin + 1, end - begin - 2) : "");
      begin = end + 1;
    }
  }
  return rows;
}

const std::string quick = "bench offload --size 2MiB --nvme-path ";

}  // namespace

TEST_CASE("bench offload prints limits and what is reached of them, and leaves no file") {
  const TemporaryFolder folder, elsewhere;
  const std::string json = elsewhere / "offload.json";
  const Outcome outcome = zerograd(quick + folder.path() + " --json " + json);
  CAPTURE(outcome.error);
  REQUIRE(outcome.status == 0);
  CHECK(std::filesystem::is_empty(folder.path()));
  const auto table = table_of(outcome.out);
  REQUIRE(!table.empty());
  CHECK(table[0] == std::vector<std::string>{"case", "shape", "dtype", "median ms", "p10 - p90",
                                             "GB/s", "% of limit"});
  const nlohmann::json record = nlohmann::json::parse(std::ifstream(json));
  const auto& rows = record["rows"];
  REQUIRE(table.size() == rows.size() + 2);  // the head and the memory's limit
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& cells = table[i + 2];
    const auto& row = rows[i];
    CAPTURE(row.dump());
    CHECK(cells[0] == row["case"]);
    CHECK(row["p10_s"] <= row["median_s"]);
    CHECK(row["median_s"] <= row["p90_s"]);
    CHECK(row["bytes_per_s"] > 1e6);
    const bool is_limit = row["case"].get<std::string>().starts_with("limit: ");
    CHECK(row["percent_of_limit"].is_null() == is_limit);
    CHECK(cells[6].empty() == is_limit);
  }
  for (const char* limit : {"memory", "read", "write"}) CHECK(record["limits"][limit] > 1e6);
  CHECK(record["overlap"].is_number());
  CHECK(contains(outcome.out, "overlap of AdamW and the drive: "));
  for (const char* name : {"limit: drive write, pread", "swap read", "swap write, through buffers",
                           "adamw, states on the device", "adamw, states on the drive"})
    CHECK(contains(outcome.out, std::string("| ") + name + " |"));
}

TEST_CASE("bench offload measures what the filter finds, beside the limits") {
  const TemporaryFolder folder;
  const Outcome outcome = zerograd({"bench", "offload", "--size", "1MiB", "--nvme-path",
                                    folder.path(), "--filter", "^swap (read|write) u8$"});
  REQUIRE(outcome.status == 0);
  int chosen = 0;
  for (const auto& cells : table_of(outcome.out))
    if (cells[0] != "case" && !cells[0].starts_with("limit: ")) {
      ++chosen;
      CHECK(cells[2] == "u8");
    }
  CHECK(chosen == 2);
  CHECK(!contains(outcome.out, "overlap"));
}

TEST_CASE("bench says what it cannot measure, and where") {
  const TemporaryFolder folder;
  const auto refused = [](const std::string& line, int status, const std::string& part) {
    const Outcome outcome = zerograd(line);
    CAPTURE(outcome.error);
    CHECK(outcome.status == status);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error, part));
  };
  refused(quick + (folder / "none"), 5, folder / "none");
  refused(quick + folder.path() + " --filter [", 2, "--filter: expected a regular expression");
  refused("bench offload --size 1000", 2, "--size: expected a multiple of 1MiB");
  refused("bench offload --device cuda", 6, "--device cuda");
  refused("bench ofload", 2, "did you mean offload?");
}
