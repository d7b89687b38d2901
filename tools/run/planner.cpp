#include "tools/run/planner.h"

#include <atomic>
#include <exception>
#include <limits>
#include <system_error>
#include <thread>

#include "bench/measure.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "tools/run/rank.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_directory.h"

namespace zg::tools {
RankMemory dry_run(const Run& run, int rank) {
  zg::PlanOptions options{.device = run.options.device_flags.device,
                          .type = run.options.device_flags.type,
                          .ranks = {rank},
                          .max_steps = std::numeric_limits<int64_t>::max(),
                          .max_reads = std::numeric_limits<int64_t>::max()};
  options.device.memory_limit = options.device.host_limit = 0;
  RankMemory memory;
  plan_ranks(
      static_cast<int>(run.options.ranks),
      [&](Communicator& ranks, const Device& device) { memory = Rank(run, ranks, device).plan(); },
      options);
  return memory;
}

// Three steps with three micro-batches each are enough, because later ones need the same memory as
// the third.
Run largest_steps(const Run& run) {
  Run largest = run;
  largest.traced = nullptr;
  RunSpec& settings = largest.options;
  // If plan chose the number of steps itself, the run that it plans goes on after them.
  const bool ends = !run.options.only_planned || run.options.has("--steps");
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  const Progress last =
      advanced(settings.rampup, settings.samples_per_step(),
               {.steps = run.steps_done, .samples = settings.samples},
               {.steps = ends ? run.options.steps - 1 : never, .samples = never / 2});
  const int64_t whole = settings.accumulation_after(last.samples);
  const bool backward_starts_early = run.options.axes.schedule == PipelineSchedule::one_f_one_b;
  settings.accumulation =
      backward_starts_early ? std::min(whole, settings.axes.pipeline + 2) : whole;
  settings.rampup = {};
  largest.options.steps = std::min<int64_t>(run.options.steps, run.steps_done + 3);
  return largest;
}

RankMemory dry_run_of_report(const Run& run, int rank) {
  Run first = run;
  first.traced = nullptr;
  first.options.steps = std::min(run.options.steps, run.steps_done + reported_steps);
  return dry_run(first, rank);
}

std::vector<zero::RunCurves> compared_runs(const TrainOptions& options) {
  std::vector<zero::RunCurves> runs;
  const std::vector<std::string> paths = paths_in(options.compared_metrics);
  if (paths.size() > zero::compared_most)
    raise<ConfigError>("--compare-metrics: expected at most {} files, got {}", zero::compared_most,
                       paths.size());
  if (options.is_first_process())
    for (const std::string& path : paths) try {
        runs.emplace_back().name = path;
        runs.back().read(path);
        if (runs.back().end == 0)
          raise<FileError>("{}: expected a line of --metrics for each step, got none", path);
      } catch (const FileError& error) {
        raise<FileError>("--compare-metrics: {}", error.what());
      }
  return runs;
}

zero::RunPage page_of(const Run& run) {
  std::vector<std::string> words = run.options.command;
  if (const auto at = std::ranges::find(words, "--restarted"); at != words.end())
    words.erase(at, std::min(at + 2, words.end()));  // --max-restarts has added it
  zero::RunPage page{.title = shell_line(words), .settings = settings_of(run.options, run.options)};
  const auto fact = [&](const char* name, const std::string& value) {
    if (!value.empty()) page.facts.emplace_back(name, value);
  };
  fact("data", run.data_line);
  fact("checksum of the data", run.options.contents.checksum);
  fact("resumed", run.resumed);
  fact("processor", bench::processor_name());
  fact("commit", bench::commit);
  for (const auto& [name, id] : zero::build_ids())
    if (name == "program" || name.starts_with("libzerograd"))
      fact(("build of the " + name).c_str(), id);
  return page;
}

zero::ReportedRank reported(const RankMemory& memory) {
  zero::ReportedRank rank{.rank = memory.rank, .peak = memory.reserved[0]};
  if (!memory.rows.empty()) rank.stored = memory.rows.back().spaces;
  return rank;
}

std::vector<RankMemory> plan_stages(const Run& run) {
  const auto stages = static_cast<size_t>(run.options.axes.pipeline);
  const auto stride = static_cast<size_t>(run.options.data_ranks * run.options.axes.tensor);
  std::vector<RankMemory> stage_memory(stages);
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    try {
      for (size_t stage = next++; stage < stages && !failed; stage = next++)
        stage_memory[stage] = dry_run(run, static_cast<int>(stage * stride));
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  const auto threads = std::min(stages, static_cast<size_t>(available_cores()));
  try {
    for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: those that were started do the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  return stage_memory;
}

MemoryRecord memory_record(const Run& run) {
  ParameterStore store;
  const WholeModel model(store, run.options);
  const zero::Config& engine = run.options.engine;
  const DeviceOptions& device = run.options.device_flags.device;
  return {.parameters = store.numel(),
          .world = static_cast<int>(run.options.ranks),
          .stage = engine.stage,
          .precision = run.options.precision(),
          .reduction_groups = run.options.axes.reduction_groups,
          .steps = run.options.steps,
          .machine = {.backend = run.options.device_flags.type,
                      .isa = isa_of(device),
                      .threads = device.threads}};
}

std::string write_kernels(const Run& run, const RankMemory& first,
                          const std::optional<Peaks>& peaks) {
  const std::string& path = run.options.kernels;
  if (path.empty()) return {};
  const StepLaunches& launches = *first.launches;
  const auto text_of = [](const LaunchCounts& counts) {
    return fmt::format("{} launches, {:.4g} GB, {:.4g} operations", counts.launches(),
                       static_cast<double>(counts.bytes()) * 1e-9,
                       static_cast<double>(counts.operations()));
  };
  std::string lines = fmt::format("kernels {}: a micro-batch {}; once a step {}", printable(path),
                                  text_of(launches.per_micro_batch), text_of(launches.per_step));
  if (!peaks) {
    write_json("--kernels", path, launches.json());
    return lines;
  }
  const int64_t steps = run.options.steps - run.steps_done;
  StepShape shape{.micro_batches = first.counted_micro_batches,
                  .tokens = first.counted_tokens,
                  .received_bytes = received_bytes(first.wire) / steps};
  for (const WireCount& count : first.wire) shape.collectives += count.calls / steps;
  const StepTime time = predict(launches, *peaks, shape);
  write_json("--kernels", path, to_json(launches, time));
  const auto in_ms = [](double seconds) {
    return seconds < 1.0 ? fmt::format("{:.4g}", 1e3 * seconds)
                         : fmt::format("{:.0f}", 1e3 * seconds);
  };
  return lines +
         fmt::format("\npredicted on {}: a micro-batch {} ms, a step {} ms, {:.0f} tokens/s",
                     printable(peaks->name), in_ms(time.micro_batch_seconds), in_ms(time.seconds),
                     time.tokens_per_second);
}

std::string size_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  const bool large = value >= 0x1p30;
  return fmt::format("{:.2f} {} ({} bytes)", value / (large ? 0x1p30 : 0x1p20),
                     large ? "GiB" : "MiB", bytes);
}

}  // namespace zg::tools
