#include "zerograd/zero/batch_size.h"
#include "tests/support/error_message.h"

namespace zg::testing {
namespace {

using zero::BatchRequest;
using zero::solve_batch_size;

std::string batch_error(const BatchRequest& request, int64_t ranks) {
  return message_of<ConfigError>([&] { solve_batch_size(request, ranks); });
}

}  // namespace

TEST_CASE("solve_batch_size follows DeepSpeed's seven cases of given batch sizes on 4 ranks") {
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
    request.place = "c.json:1:1: ";
    const zero::BatchSize size = solve_batch_size(request, 4);
    CHECK(size.micro == micro);
    CHECK(size.accumulation == accumulation);
    CHECK(size.train == train);
  }
  // The seventh.
  CHECK(batch_error({.accumulation = 3, .place = "c.json:1:1: "}, 4) ==
        "c.json:1:1: Either train_batch_size or train_micro_batch_size_per_gpu needs to be "
        "provided; expected one of them, got neither; try \"train_micro_batch_size_per_gpu\": 64, "
        "or --batch-size 64");
}

TEST_CASE("an error about inconsistent batch sizes shows the numbers and DeepSpeed's message") {
  const std::string place = "c.json:2:3: train_batch_size: ";
  CHECK(batch_error({.train = 4, .place = place}, 8) ==
        place +
            "expected train_batch_size = train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks, got train_batch_size 4 on 8 ranks; try "
            "train_batch_size 8 (DeepSpeed: Micro batch size per gpu: 0 has to be greater than 0)");
  CHECK(contains(
      batch_error({.micro = 3, .train = 16, .place = place}, 2),
      "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size "
      "16 != 3 * 2 * 2"));
  CHECK(contains(batch_error({.micro = 8, .train = 4, .place = place}, 1),
                 "DeepSpeed: Gradient accumulation steps: 0 has to be greater than 0"));
  CHECK(contains(batch_error({.train = 0, .place = place}, 2),
                 "Train batch size: 0 has to be greater than 0"));
  const std::string zero = batch_error({.micro = 0, .train = 8, .place = place}, 2);
  CHECK(contains(zero, "try train_micro_batch_size_per_gpu 1 or more"));
  CHECK(contains(zero, "Micro batch size per gpu: 0 has to be greater than 0"));
  CHECK(contains(batch_error({.accumulation = 0, .train = 8, .place = place}, 2),
                 "try gradient_accumulation_steps 1 or more"));
  CHECK(batch_error({.micro = 3, .train = 16}, 2)
            .starts_with("batch size: expected train_batch_size ="));
  // A program's own words, which need not be said twice.
  CHECK(batch_error({.micro = 3,
                     .train = 16,
                     .place = "--train: ",
                     .names = {.micro = "--micro", .accumulation = "--accum", .train = "--train"}},
                    2) ==
        "--train: expected --micro x --accum x ranks, got --train 16 --micro 3 on 2 ranks; try "
        "--micro 1, 2, 4, 8, or --train 12, 18 (DeepSpeed: Check batch related parameters. "
        "train_batch_size is not equal "
        "to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 3 * 2 * 2)");
}

}  // namespace zg::testing
