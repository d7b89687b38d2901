#include "tests/support/error_message.h"
#include "tools/options/run_spec.h"

namespace zg::testing {
namespace {

using tools::BatchRampup;

std::string rampup_error(const BatchRampup& rampup, const zero::BatchSize& size) {
  return message_of<ConfigError>([&] { tools::check_rampup(rampup, size); });
}

}  // namespace

TEST_CASE(
    "parse_rampup reads one word of three numbers with commas, also with Python's digit "
    "underscores") {
  const BatchRampup read = tools::parse_rampup("--rampup-batch-size", "16,8,5_000_000");
  CHECK(read.start == 16);
  CHECK(read.increment == 8);
  CHECK(read.samples == 5000000);
  for (const char* wrong : {"", "16", "16,8", "16,8,5,4", "16,,5", "16,8,5,", "0,8,5", "16,0,5",
                            "16,8,0", "a,8,5", "16,8,5__0", "16,8,_5", "16,8,5_", "-1,8,5"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(tools::parse_rampup("--rampup-batch-size", wrong), ConfigError);
  }
}

TEST_CASE(
    "check_rampup refuses a START or INCREMENT that does not fit the batch, and the error has the "
    "numbers") {
  using zero::BatchSize;
  CHECK(rampup_error({.start = 32, .increment = 8, .samples = 9}, BatchSize{2, 4, 16}) ==
        "--rampup-batch-size: expected a START of at most the batch that it grows to, 16, got 32; "
        "try a larger --train-batch-size");
  CHECK(rampup_error({.start = 4, .increment = 8, .samples = 9}, BatchSize{2, 4, 16}) ==
        "--rampup-batch-size: expected an INCREMENT that divides the growth from 4 to 16, 12, got "
        "8");
  CHECK(rampup_error({.start = 6, .increment = 2, .samples = 9}, BatchSize{2, 4, 16}) ==
        "--rampup-batch-size: expected START and INCREMENT that --batch-size x ranks, 2 x 2 = 4, "
        "divides, got 6 and 2; try --batch-size 1");
  CHECK(rampup_error({.start = 3, .increment = 1, .samples = 9}, BatchSize{1, 4, 16}) ==
        "--rampup-batch-size: expected START and INCREMENT that --batch-size x ranks, 1 x 4 = 4, "
        "divides, got 3 and 1; try numbers that 4 ranks can share");
  CHECK_NOTHROW(
      tools::check_rampup({.start = 4, .increment = 4, .samples = 9}, BatchSize{2, 4, 16}));
  CHECK_NOTHROW(
      tools::check_rampup({.start = 16, .increment = 5, .samples = 9}, BatchSize{2, 4, 16}));
  CHECK_NOTHROW(tools::check_rampup({}, BatchSize{2, 4, 16}));
}

}  // namespace zg::testing
