#include "tools/batch_size.h"

#include <string>
#include <vector>

#include "runtime/error.h"
#include "tools/text.h"
#include "tools/values.h"

namespace zg::tools {
namespace {

constexpr int64_t default_micro_batch = 64;

// Micro-batches that divide the train batch evenly among the ranks.
std::string valid_micro_batches(int64_t train, int64_t ranks) {
  if (train < ranks || train % ranks != 0)
    return text("a --train-batch-size that is a multiple of %lld rank%s", (long long)ranks,
                ranks == 1 ? "" : "s");
  std::vector<std::string> divisors;
  for (int64_t micro = 1; micro <= train / ranks && divisors.size() < 12; ++micro)
    if (train / ranks % micro == 0) divisors.push_back(std::to_string(micro));
  return "--batch-size " + join(divisors, ", ");
}

void check_positive(const char* what, int64_t value, const std::string& hint) {
  if (value <= 0)
    throw ConfigError(std::string(what) + ": " + std::to_string(value) +
                      " has to be greater than 0; " + hint);
}

}  // namespace

BatchSize solve_batch_size(const BatchRequest& request) {
  const int64_t W = request.ranks;
  BatchSize size{};
  const bool has_micro = request.micro.has_value();
  const bool has_accumulation = request.accumulation.has_value();
  if (request.train) {
    size.train = *request.train;
    size.micro = has_micro          ? *request.micro
                 : has_accumulation ? size.train / W / *request.accumulation
                                    : size.train / W;
    size.accumulation = has_accumulation ? *request.accumulation
                        : has_micro      ? size.train / size.micro / W
                                         : 1;
  } else {
    size.micro = request.micro.value_or(default_micro_batch);
    size.accumulation = request.accumulation.value_or(1);
    size.train = size.micro * size.accumulation * W;
  }
  const std::string equation = text(
      "--train-batch-size = --batch-size x --grad-accum x ranks: %lld = %lld x %lld x %lld",
      (long long)size.train, (long long)size.micro, (long long)size.accumulation, (long long)W);
  check_positive("Train batch size", size.train, equation);
  check_positive("Micro batch size per gpu", size.micro,
                 equation + "; try " + valid_micro_batches(size.train, W));
  check_positive("Gradient accumulation steps", size.accumulation,
                 equation + "; try a larger --train-batch-size or a smaller --batch-size");
  if (size.micro * size.accumulation * W != size.train)
    throw ConfigError(text("Check batch related parameters. train_batch_size is not equal to "
                           "micro_batch_per_gpu * gradient_acc_step * world_size %lld != %lld * "
                           "%lld * %lld; try ",
                           (long long)size.train, (long long)size.micro,
                           (long long)size.accumulation, (long long)W) +
                      valid_micro_batches(size.train, W));
  return size;
}

}  // namespace zg::tools
