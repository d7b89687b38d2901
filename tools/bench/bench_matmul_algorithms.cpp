#include <cstdio>
#include <set>

#include "tools/bench/command.h"
#include "tools/deepspeed/load.h"
#include "tools/options/fields.h"
#include "tools/options/options.h"
#include "tools/run/planner.h"
#include "tools/run/run.h"
#include "zerograd/kernels/matmul/matmul_algorithms.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

/// The options of train that change the products of a step.
struct AlgorithmsOptions {
  TrainOptions train;
  std::string out;
  int64_t candidates = 8, rounds = 5;
};

bool parse(const std::vector<std::string>& arguments, AlgorithmsOptions& options) {
  TrainOptions& train = options.train;
  CommandLine line = {
      .usage = "zerograd bench matmul-algorithms --device cuda --out F [flags of train]",
      .summary =
          "Plans a step of train to find its products, measures several cuBLASLt algorithms for\n"
          "each on the first GPU, and writes the fastest to a file. train --matmul-algorithms F\n"
          "multiplies by them where its products have the same sizes: give both the same model,\n"
          "batch and --data. Gradients of biases are measured with those of weights and apart.\n"
          "Another measurement may find other algorithms, which round differently: keep the file\n"
          "with the checkpoints.",
      .groups = {{"bench",
                  {path_flag({"--out"}, "F", options.out, PathUse::writes,
                             "the file of algorithms"),
                   integer_flag({"--candidates"}, options.candidates,
                                "algorithms of each product, the heuristic's first", {1, nullptr}),
                   integer_flag({"--rounds"}, options.rounds,
                                "measurements of each; the median counts", {1, nullptr})}}},
      .notes =
          "  zerograd bench matmul-algorithms --device cuda --model-type gpt2 --precision bf16 \\\n"
          "      --batch-size 8 --data input.txt --out gpt2.json\n"
          "  zerograd train --device cuda --model-type gpt2 --precision bf16 --batch-size 8 \\\n"
          "      --data input.txt --matmul-algorithms gpt2.json"};
  // Flags of the output and of the length of a run do not change its products.
  for (FlagGroup& group :
       train_groups_without(train, {"output", "checkpoints", "tuning", "--steps", "--epochs",
                                    "--limit-train-batches", "--inject", "--dump-collectives",
                                    "--train-samples", "--matmul-algorithms"}))
    line.groups.push_back(std::move(group));
  if (!parse(line, arguments, train.given)) return false;
  load_config(train);
  check_train(train);
  if (train.device_flags.type != Device::Type::cuda)
    raise<Unsupported>(
        "bench matmul-algorithms: the algorithms are cuBLASLt's; expected --device cuda, got "
        "--device {}",
        train.device_flags.type);
  if (options.out.empty())
    throw ConfigError("--out: expected the file to write, got nothing; try --out algorithms.json");
  return true;
}

/// The products of a step, of every rank. Data ranks have the same, unless each updates matrices of
/// its own.
std::set<MatmulProblem> products_of(const Run& run) {
  Run planned = run;
  planned.options.device_flags.device.count_launches = true;  // kernels then note their products
  const PlannedProducts products;
  const Axes& axes = run.options.axes;
  const zero::Optimizers optimizers(run.options.engine.update);
  const bool differ = optimizers.all().front().optimizer->needs_whole();
  const int64_t data_ranks = run.options.data_ranks, planned_data_ranks = differ ? data_ranks : 1;
  for (int64_t stage = 0; stage < axes.pipeline; ++stage)
    for (int64_t rank = 0; rank < planned_data_ranks * axes.tensor; ++rank)
      dry_run(planned, static_cast<int>(stage * data_ranks * axes.tensor + rank));
  return products.found();
}

void print(const MatmulAlgorithms& all) {
  std::printf(
      "| product | first us | fastest us | of first | candidate |\n|---|---:|---:|---:|---:|\n");
  double first = 0.0, fastest = 0.0;
  for (const auto& [problem, algorithm] : all.algorithms) {
    std::printf("| %s%s | %.1f | %.1f | %.1f %% | %d of %d |\n", sizes(problem).c_str(),
                algorithm.apart ? " apart" : "", 1e6 * algorithm.first_seconds,
                1e6 * algorithm.seconds, 100.0 * algorithm.seconds / algorithm.first_seconds,
                algorithm.candidate + 1, algorithm.candidates);
    MatmulProblem with_sums = problem;
    with_sums.vector = MatmulProblem::Vector::row_sums;
    const bool is_counted =
        problem.vector == MatmulProblem::Vector::none && all.algorithms.contains(with_sums);
    if (is_counted) continue;  // in the row with row_sums
    first += algorithm.first_seconds;
    fastest += algorithm.seconds;
  }
  std::printf(
      "\n%zu products; once each: %.1f us by the heuristic's first, %.1f us by the fastest\n",
      all.algorithms.size(), 1e6 * first, 1e6 * fastest);
}

}  // namespace

int bench_matmul_algorithms(const std::vector<std::string>& arguments) {
  AlgorithmsOptions options;
  if (!parse(arguments, options)) return 0;
  const Device::Type type = options.train.device_flags.type;
  require_device(type);
  refuse_emulator(type);
  check_writable("--out", options.out);
  options.train.steps = 1;
  options.train.only_planned = true;
  const Run run = prepare_run(options.train);
  const Device device = device_of_rank(type, 0, options.train.device_flags.device);
  const std::set<MatmulProblem> products = products_of(run);
  if (products.empty())
    throw ConfigError(
        "bench matmul-algorithms: no product of the step is one of cuBLASLt, whose rows take whole "
        "16 bytes; expected one or more; try a wider model or a larger batch");
  const MatmulAlgorithms all =
      measure_matmul_algorithms(products, device,
                                {.candidates = static_cast<int>(options.candidates),
                                 .rounds = static_cast<int>(options.rounds)});
  print(all);
  all.write(options.out);
  print_line(stdout, "written to {}: {}, {}", options.out, all.gpu, all.library);
  return 0;
}

}  // namespace zg::tools
