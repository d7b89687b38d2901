// Metrics of a trainer: JSON lines, and its memory at six points of each step.
#include "zerograd/zero/metrics.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/perceptron.h"
#include "zerograd/runtime/storage/file_io.h"

namespace zg::testing {
namespace {

zero::StepRecord record_of(int64_t step) {
  return {.step = step,
          .micro_steps = 2,
          .samples = 8,
          .loss = 1.0 / 3.0,
          .grad_norm = NAN,
          .rate = 0.5,
          .loss_scale = 1,
          .skipped = false,
          .tokens_per_second = 10,
          .seconds = 0.1,
          .peak_bytes = 11,
          .host_peak_bytes = 12,
          .reduction_groups = 8};
}

std::vector<int64_t> recorded_steps(const std::string& path) {
  std::vector<int64_t> steps;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);)
    steps.push_back(nlohmann::json::parse(line).value("step", -1));
  return steps;
}

}  // namespace

TEST_CASE("a resumed run's metrics replace the records of the steps that it repeats") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    zero::MetricsFile file(path, /*resumed=*/false, 0);
    for (int64_t step = 0; step < 4; ++step) file.write(record_of(step));
    file.write(
        zero::FinalRecord{.steps = 4, .skipped = 0, .param_hash = "abc", .reduction_groups = 8});
  }
  CHECK(recorded_steps(path) == std::vector<int64_t>{0, 1, 2, 3, -1});
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);)
    CHECK(nlohmann::json::parse(line).at("reduction_groups") == 8);
  const auto first = nlohmann::json::parse(read_text(path).substr(0, read_text(path).find('\n')));
  CHECK(first.at("loss").get<double>() == 1.0 / 3.0);
  CHECK(first.at("grad_norm") == "nan");
  {
    zero::MetricsFile file(path, /*resumed=*/true, 2);
    file.write(record_of(2));
  }
  CHECK(recorded_steps(path) == std::vector<int64_t>{0, 1, 2});
  { zero::MetricsFile file(path, /*resumed=*/false, 0); }
  CHECK(read_text(path).empty());
  CHECK_ERROR(FileError, "/proc/nowhere/m cannot be written",
              zero::MetricsFile("/proc/nowhere/m", false, 0));
}

TEST_CASE("an error while metrics are written names the file and no command-line flag") {
  zero::MetricsFile file("/dev/full", /*resumed=*/false, 0);
  CHECK_THROWS_WITH_AS(file.write(record_of(0)),
                       "writing /dev/full failed: No space left on device; free space there, or "
                       "try a path on another disk",
                       FileError);
}

TEST_CASE_FIXTURE(NetEngine, "a trainer's observer notes memory at six points of each step") {
  MemoryRows rows(device, MemoryRows::Keep::all_steps);
  options = {.micro_batch = 2, .accumulation = 3, .steps = 2};
  zero::Trainer trainer(engine, options, task_of(net, device),
                        {.observe = [&](zero::TrainerMoment moment, const zero::MicroBatch& batch) {
                          zero::note_memory(rows, moment, batch);
                        }});
  trainer.run();
  REQUIRE(rows.rows().size() == 12);
  for (size_t i = 0; i < rows.rows().size(); ++i) {
    const MemoryRow& row = rows.rows()[i];
    CAPTURE(i);
    CHECK(row.step == static_cast<int64_t>(i / 6));
    CHECK(row.at == static_cast<StepPoint>(i % 6));
    CHECK(row.reserved >= row.live);
  }
  // Backward has freed what forward kept.
  CHECK(rows.rows()[7].live > rows.rows()[9].live);
  CHECK(rows.step_peak() > 0);
  const std::string table = memory_table(rows.rows());
  CHECK(std::ranges::count(table, '\n') == 3);
  CHECK(table.find("| 1 |") != std::string::npos);
}

}  // namespace zg::testing
