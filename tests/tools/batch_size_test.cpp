#include <doctest/doctest.h>

#include "tests/error_message.h"
#include "tools/batch_size.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {
namespace {

using tools::BatchRequest;
using tools::solve_batch_size;

std::string error_of(const BatchRequest& request) {
  return message_of<ConfigError>([&] { solve_batch_size(request); });
}

}  // namespace

TEST_CASE("DeepSpeed's seven cases of the batch, on 4 ranks") {
  const struct {
    BatchRequest request;
    int64_t micro, accumulation, train;
  } cases[] = {
      {{.micro = 2, .accumulation = 3, .train = 24}, 2, 3, 24},
      {{.micro = 2, .train = 24}, 2, 3, 24},
      {{.accumulation = 3, .train = 24}, 2, 3, 24},
      {{.micro = 2, .accumulation = 3}, 2, 3, 24},
      {{.train = 24}, 6, 1, 24},
      {{.micro = 2}, 2, 1, 8},
  };
  for (const auto& [given, micro, accumulation, train] : cases) {
    BatchRequest request = given;
    request.ranks = 4;
    request.place = "c.json:1:1: ";
    const tools::BatchSize size = solve_batch_size(request);
    CHECK(size.micro == micro);
    CHECK(size.accumulation == accumulation);
    CHECK(size.train == train);
  }
  // The seventh.
  CHECK(error_of({.accumulation = 3, .ranks = 4, .place = "c.json:1:1: "}) ==
        "c.json:1:1: Either train_batch_size or train_micro_batch_size_per_gpu needs to be "
        "provided; expected one of them, got neither; try \"train_micro_batch_size_per_gpu\": 64, "
        "or --batch-size 64");
  CHECK(solve_batch_size({.accumulation = 3, .ranks = 4}).micro == 64);  // of flags
}

TEST_CASE("a batch that does not come out is shown with its numbers and DeepSpeed's sentence") {
  const std::string place = "c.json:2:3: train_batch_size: ";
  CHECK(error_of({.train = 4, .ranks = 8, .place = place}) ==
        place +
            "expected train_batch_size = train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks, got train_batch_size 4 on 8 ranks; try "
            "train_batch_size 8 (DeepSpeed: Micro batch size per gpu: 0 has to be greater than 0)");
  CHECK(contains(
      error_of({.micro = 3, .train = 16, .ranks = 2, .place = place}),
      "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size "
      "16 != 3 * 2 * 2"));
  CHECK(contains(error_of({.micro = 8, .train = 4, .ranks = 1, .place = place}),
                 "DeepSpeed: Gradient accumulation steps: 0 has to be greater than 0"));
  CHECK(contains(error_of({.train = 0, .ranks = 2, .place = place}),
                 "Train batch size: 0 has to be greater than 0"));
  const std::string zero = error_of({.micro = 0, .train = 8, .ranks = 2, .place = place});
  CHECK(contains(zero, "try train_micro_batch_size_per_gpu 1 or more"));
  CHECK(contains(zero, "Micro batch size per gpu: 0 has to be greater than 0"));
  CHECK(contains(error_of({.accumulation = 0, .train = 8, .ranks = 2, .place = place}),
                 "try gradient_accumulation_steps 1 or more"));
  CHECK(contains(error_of({.micro = 3, .train = 16, .ranks = 2}), "--train-batch-size: expected"));
}

}  // namespace zg::testing
