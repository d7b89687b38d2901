#include "tools/length_flags.h"

#include <limits>

#include "tools/flags.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

// Lightning's: 120 batches, or 0.25 of them. Listed in help as a spelling only.
Flag epoch_limit_flag(EpochLimit& limit) {
  return {{"--limit-train-batches"},
          "N",
          "",
          [&limit](const std::string& name, const std::string& value) {
            limit = {};
            if (value.find('.') == std::string::npos)
              limit.batches = parse_integer(name, value, 1, std::numeric_limits<int32_t>::max());
            else
              limit.share = parse_number(
                  name, value, {0.0, 1.0, true, false, "a share above 0 and at most 1.0"});
          }};
}

Flag rampup_flag(BatchRampup& rampup) {
  Flag flag = {{"--rampup-batch-size"},
               "START INCREMENT SAMPLES",
               "a step's samples grow from START by INCREMENT to --train-batch-size over\n"
               "the first SAMPLES",
               [&rampup](const std::string& name, const std::string& value) {
                 rampup = parse_rampup(name, value);
               }};
  flag.words = 3;
  return flag;
}

}  // namespace

std::vector<Flag> length_flags(TrainOptions& options) {
  return {
      integer_flag({"--batch-size", "--per-device-train-batch-size", "--micro-batch-size", "-b"},
                   options.batch.micro, "samples in a micro-batch", {1, "64"}),
      integer_flag({"--grad-accum", "--gradient-accumulation-steps"}, options.batch.accumulation,
                   "micro-batches in a step", {1, "1"}),
      rampup_flag(options.batch.rampup),
      // 0 passes: the solver explains it with the other two.
      integer_flag({"--train-batch-size", "--global-batch-size"}, options.batch.train,
                   "samples in a step = batch-size x grad-accum x ranks", {0, ""}),
      integer_flag({"--steps", "--train-iters"}, options.steps,
                   "optimizer steps, counted from step 0 also when resuming", {0, nullptr}),
      integer_flag({"--train-samples"}, options.train_samples,
                   "samples, instead of --steps: the last step is the last that does not go beyond",
                   {1, ""}),
      number_flag({"--epochs", "--num-train-epochs"}, options.epochs,
                  {0.0, 1e6, true, false, "a number above 0 and at most 1e6"},
                  "passes over the training data, instead of --steps; at the end their average "
                  "time and peak",
                  ""),
      epoch_limit_flag(options.epoch_limit),
  };
}

void check_length(const TrainOptions& options) {
  const Given& given = options.given;
  if (given.count("--steps") && given.count("--epochs"))
    throw ConfigError("--epochs: expected one of --steps and --epochs, got both");
  for (const char* other : {"--steps", "--epochs", "--limit-train-batches"})
    if (given.count("--train-samples") && given.count(other))
      throw ConfigError(std::string("--train-samples: expected one of it and ") + other +
                        ", got both");
  if (given.count("--steps") && given.count("--limit-train-batches"))
    throw ConfigError(
        "--limit-train-batches: it is of an epoch; expected --epochs with it, or neither, got "
        "--steps");
}

}  // namespace zg::tools
