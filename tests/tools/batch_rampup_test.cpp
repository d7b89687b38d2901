#include "tools/batch_rampup.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "runtime/error.h"
#include "tests/error_message.h"

namespace zg::testing {
namespace {

using tools::BatchRampup;
using tools::Progress;

constexpr int64_t never = std::numeric_limits<int64_t>::max();

// One after the other.
Progress stepped(const BatchRampup& rampup, int64_t whole, Progress now, Progress end) {
  while (now.steps < end.steps) {
    const int64_t batch = rampup.batch_at(now.samples, whole);
    if (now.samples + batch > end.samples) break;
    ++now.steps;
    now.samples += batch;
  }
  return now;
}

std::string error_of(const BatchRampup& rampup, const tools::BatchSize& size) {
  return message_of<ConfigError>([&] { check_rampup(rampup, size); });
}

}  // namespace

// Megatron-DeepSpeed, microbatches.py: of 16 16 5000000 and a batch of 1024, 63 increments of
// 5000000 / 63 = 79365.07... samples.
TEST_CASE("a batch grows by Megatron's rule with the samples consumed") {
  const BatchRampup tutorial{.start = 16, .increment = 16, .samples = 5000000};
  const std::pair<int64_t, int64_t> expected[] = {
      {0, 16},         {79365, 16},     {79366, 32},     {158730, 32},
      {158731, 48},    {2500000, 512},  {4920634, 992},  {4920635, 1008},
      {4999999, 1008}, {5000000, 1024}, {5000001, 1024}, {300000000, 1024}};
  for (const auto& [consumed, batch] : expected) {
    CAPTURE(consumed);
    CHECK(tutorial.batch_at(consumed, 1024) == batch);
  }
  // 9 / (9 / 7) is less than 7 in floating point: the whole batch comes a sample later.
  const BatchRampup rounded{.start = 1, .increment = 1, .samples = 9};
  CHECK(rounded.batch_at(9, 8) == 7);
  CHECK(rounded.batch_at(10, 8) == 8);
  CHECK(BatchRampup{}.batch_at(0, 64) == 64);
  const BatchRampup level{.start = 64, .increment = 8, .samples = 1000};
  CHECK(level.batch_at(0, 64) == 64);
}

TEST_CASE("how far a run comes in so many samples or steps is as counted one by one") {
  std::mt19937_64 random(7);
  const auto integer = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const int64_t start = integer(1, 20), increment = integer(1, 20);
    const int64_t whole = start + increment * integer(0, 12);
    const BatchRampup rampup{.start = start, .increment = increment, .samples = integer(1, 4000)};
    const Progress from = stepped(rampup, whole, {}, {integer(0, 60), never});
    const Progress end =
        integer(0, 1) == 0 ? Progress{never, integer(0, 8000)} : Progress{integer(0, 700), never};
    const Progress expected = stepped(rampup, whole, from, end);
    const Progress found = advanced(rampup, whole, from, end);
    CHECK(found.steps == expected.steps);
    CHECK(found.samples == expected.samples);
  }
  // The tutorial's run, at once: as many steps as its update_train_iters() counts.
  const BatchRampup tutorial{.start = 16, .increment = 16, .samples = 5000000};
  const Progress end = advanced(tutorial, 1024, {}, {never, 300000000});
  const Progress ramp = stepped(tutorial, 1024, {}, {never, 5000000});
  CHECK(end.samples <= 300000000);
  CHECK(end.samples > 300000000 - 1024);
  CHECK(end.steps == ramp.steps + (300000000 - ramp.samples) / 1024);
}

TEST_CASE("the numbers of a ramp-up come in one word, as Python writes them too") {
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
    "a ramp-up whose steps are no whole micro-batches of every rank is refused with numbers") {
  using tools::BatchSize;
  CHECK(error_of({.start = 32, .increment = 8, .samples = 9}, BatchSize{2, 4, 16}) ==
        "--rampup-batch-size: expected a START of at most the batch that it grows to, 16, got 32; "
        "try a larger --train-batch-size");
  CHECK(error_of({.start = 4, .increment = 8, .samples = 9}, BatchSize{2, 4, 16}) ==
        "--rampup-batch-size: expected an INCREMENT that divides the growth from 4 to 16, 12, got "
        "8");
  CHECK(error_of({.start = 6, .increment = 2, .samples = 9}, BatchSize{2, 4, 16}) ==
        "--rampup-batch-size: expected START and INCREMENT that --batch-size x ranks, 2 x 2 = 4, "
        "divides, got 6 and 2; try --batch-size 1");
  CHECK(error_of({.start = 3, .increment = 1, .samples = 9}, BatchSize{1, 4, 16}) ==
        "--rampup-batch-size: expected START and INCREMENT that --batch-size x ranks, 1 x 4 = 4, "
        "divides, got 3 and 1; try numbers that 4 ranks can share");
  CHECK_NOTHROW(check_rampup({.start = 4, .increment = 4, .samples = 9}, BatchSize{2, 4, 16}));
  CHECK_NOTHROW(check_rampup({.start = 16, .increment = 5, .samples = 9}, BatchSize{2, 4, 16}));
  CHECK_NOTHROW(check_rampup({}, BatchSize{2, 4, 16}));
}

}  // namespace zg::testing
