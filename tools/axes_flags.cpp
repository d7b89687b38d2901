#include "tools/axes_flags.h"

#include "tools/text.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {

std::vector<Flag> axes_flags(Axes& axes) {
  return {
      integer_flag({"--tensor-parallel", "--tensor-model-parallel-size"}, axes.tensor,
                   "ranks that share each layer's heads and columns; what remains of the\n"
                   "ranks shares the data",
                   {1, nullptr}),
      integer_flag({"--pipeline-parallel", "--pipeline-model-parallel-size"}, axes.pipeline,
                   "stages that share the layers", {1, nullptr}),
      choice_flag({"--schedule-pipeline"}, axes.schedule, {"1f1b", "gpipe"},
                  "the order of a stage's micro-batches; the bits are the same"),
      switch_flag({"--sequence-parallel"}, axes.sequence_parallel,
                  "tensor ranks also share the tokens of norms and dropout"),
  };
}

void check_axes(const TrainOptions& options) {
  const Axes& axes = options.axes;
  const int64_t share = axes.tensor * axes.pipeline;
  if (options.ranks % share != 0)
    throw ConfigError(
        text("--ranks: expected a multiple of the %lld that --tensor-parallel %lld "
             "and --pipeline-parallel %lld take, got %lld; try --ranks %lld",
             (long long)share, (long long)axes.tensor, (long long)axes.pipeline,
             (long long)options.ranks, (long long)((options.ranks / share + 1) * share)));
  if (axes.sequence_parallel && axes.tensor == 1)
    throw ConfigError(
        "--sequence-parallel: it is of ranks that share layers; expected --tensor-parallel 2 or "
        "more with it, got 1");
}

}  // namespace zg::tools
