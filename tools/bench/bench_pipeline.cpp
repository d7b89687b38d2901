#include <chrono>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/run/run.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"

namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct PipelineBench {
  int64_t stages = 4, micro_batches = 8, steps = 5;
  double forward_ms = 10.0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A stage that waits for a given time instead of computing, so the result shows the schedule and
/// does not depend on the number of cores. Backward takes twice as long as forward.
class SlowedStage final : public PipelineStage {
 public:
  SlowedStage(const Mesh& mesh, const Device& device, double forward_s)
      : mesh_(mesh), device_(device), forward_(forward_s) {}

  Tape tape() override { return Tape(device_); }
  Var forward(Tape& tape, const Var& input, int64_t) override {
    const Clock::time_point start = Clock::now();
    const Var x = input ? input : tape.variable(Tensor::zeros(shape(), DType::f32, device_));
    const Var y = mul(x, 0.5);
    std::this_thread::sleep_until(start + forward_);
    busy += seconds_since(start);
    return mesh_.is_last_stage() ? sum(y) : y;
  }
  void backward(Tape& tape, const Var& output, const Tensor& gradient, int64_t) override {
    const Clock::time_point start = Clock::now();
    if (gradient)
      tape.backward({&output, 1}, {&gradient, 1});
    else
      tape.backward(output);
    std::this_thread::sleep_until(start + 2 * forward_);
    busy += seconds_since(start);
  }
  static Shape shape() { return {64, 64}; }

  double busy = 0.0;

 private:
  const Mesh& mesh_;
  const Device device_;
  const std::chrono::duration<double> forward_;
};

struct Waits {
  PipelineSchedule schedule;
  double predicted = 0.0, measured = 0.0, step_s = 0.0;

  const char* name() const { return schedule == PipelineSchedule::gpipe ? "gpipe" : "1f1b"; }
  double difference() const { return predicted > 0.0 ? measured / predicted - 1.0 : measured; }
};

// The fraction of a step in which stages were idle, averaged over the stages. The step ends when
// the last stage ends.
Waits measure(const PipelineBench& options, PipelineSchedule schedule) {
  const auto stages = static_cast<int>(options.stages);
  double busy = 0.0, seconds = 0.0;
  std::mutex mutex;
  run_local(stages, [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.pipeline = stages});
    SlowedStage stage(mesh, device, 1e-3 * options.forward_ms);
    Clock::time_point start;
    for (int64_t step = -1; step < options.steps; ++step) {
      if (step == 0) {  // the first step starts threads and allocates memory
        stage.busy = 0.0;
        start = Clock::now();
      }
      run_pipeline(&mesh, schedule, options.micro_batches, {SlowedStage::shape(), DType::f32},
                   device, stage);
      world.wait(world.barrier("end of step"));
    }
    std::lock_guard lock(mutex);
    seconds += seconds_since(start);
    busy += stage.busy;
  });
  return {.schedule = schedule,
          .predicted = pipeline_bubble(stages, options.micro_batches),
          .measured = 1.0 - busy / seconds,
          .step_s = seconds / static_cast<double>(stages * options.steps)};
}

nlohmann::ordered_json json_of(const PipelineBench& options, const std::vector<Waits>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Waits& row : rows)
    list.push_back({{"schedule", row.name()},
                    {"predicted", row.predicted},
                    {"measured", row.measured},
                    {"step_s", row.step_s}});
  return {{"schema", 1},
          {"bench", "pipeline"},
          {"machine", bench::machine_json()},
          {"stages", options.stages},
          {"micro_batches", options.micro_batches},
          {"rows", list}};
}

}  // namespace

int bench_pipeline(const std::vector<std::string>& arguments) {
  PipelineBench options;
  std::string json;
  const CommandLine line = {
      .usage = "zerograd bench pipeline [flags]",
      .summary =
          "Measures the idle time of pipeline stages, and compares it with (p - 1) / (m + p - 1)\n"
          "for p stages and m micro-batches. Stages are ranks as threads. They sleep instead of\n"
          "computing, so only the schedule and the messages are measured.",
      .groups = {
          {"flags",
           {integer_flag({"--stages"}, options.stages, "stages", {1, nullptr}),
            integer_flag({"--micro-batches"}, options.micro_batches, "micro-batches of a step",
                         {1, nullptr}),
            number_flag({"--forward-ms"}, options.forward_ms, positive,
                        "time of a stage's forward; its backward takes twice as long"),
            integer_flag({"--steps"}, options.steps, "steps that are measured", {1, nullptr}),
            path_flag({"--json"}, "F", json, PathUse::writes, "write results as JSON")}}}};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  check_writable("--json", json);
  std::printf(
      "| schedule | stages | micro-batches | idle by formula | idle measured | difference | step "
      "ms |\n|---|---:|---:|---:|---:|---:|---:|\n");
  std::vector<Waits> rows;
  for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe}) {
    const Waits row = rows.emplace_back(measure(options, schedule));
    std::printf("| %s | %lld | %lld | %.1f %% | %.1f %% | %+.1f %% | %.1f |\n", row.name(),
                (long long)options.stages, (long long)options.micro_batches, 100.0 * row.predicted,
                100.0 * row.measured, 100.0 * row.difference(), 1e3 * row.step_s);
  }
  if (!json.empty()) replace_text(json, json_of(options, rows).dump(1) + "\n");
  return 0;
}

}  // namespace zg::tools
