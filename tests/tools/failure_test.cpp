#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string sort_run =
    "train --data sort --steps 9 --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 "
    "--zero-stage 2 ";

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    if (contains(line, part)) lines.push_back(line);
  return lines;
}

void check_dump(const std::string& error) {
  CAPTURE(error);
  for (const char* rank : {"rank 0/2", "rank 1/2"}) {
    CHECK(lines_with(error, std::string(rank) + " made ").size() == 1);
    const auto lines = lines_with(error, std::string(rank) + " collective #");
    REQUIRE(lines.size() == 64);  // of more
    CHECK(std::all_of(lines.begin(), lines.end(), [](const std::string& line) {
      return contains(line, " elements), in step ") && contains(line, "; ms: queued ");
    }));
    CHECK(contains(lines[50], ": done; ms: queued "));
  }
  // The rank that failed has finished all it began; the other one waits for it.
  CHECK(lines_with(error, ": started; ms: queued ").size() == 1);
  CHECK(contains(error, "in step 7: started; ms: queued "));
}

}  // namespace

TEST_CASE("collectives: after a failure every rank that was asked to lists its last 64") {
  const std::string drill = sort_run + "--inject rank=1,step=7,fault=throw ";
  const Outcome outcome = zerograd(drill + "--ranks 2 --dump-collectives");
  CHECK(outcome.status == 1);
  check_dump(outcome.error);
  const Outcome silent = zerograd(drill + "--ranks 2");
  CHECK(lines_with(silent.error, "ms: queued").empty());
  CHECK(lines_with(zerograd(sort_run + "--ranks 2 --dump-collectives").error, "queued").empty());
  if (const std::string why = missing_mpi(); !why.empty()) {
    std::printf("SKIPPED: mpi: lists of processes (%s)\n", why.c_str());
    return;
  }
  check_dump(mpirun("-np 2 zerograd " + drill + "--dump-collectives").error);
}

}  // namespace zg::testing
