#include "zerograd/zero/batch_size.h"

#include <limits>
#include <random>

using namespace zg;
using zero::BatchRampup;
using zero::Progress;

namespace {

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

}  // namespace

// Megatron-DeepSpeed, microbatches.py: of 16 16 5000000 and a batch of 1024, 63 increments of
// 5000000 / 63 = 79365.07... samples.
TEST_CASE("the batch size ramps up with the consumed samples by Megatron-DeepSpeed's rule") {
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

TEST_CASE("advanced() counts the same steps and samples as a loop over single batches") {
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
