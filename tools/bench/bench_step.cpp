#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/rank.h"
#include "tools/run/run.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/trace.h"

namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int64_t traced = 2;  // number of traced steps

/// A row of the profile: one part of the time of the steps.
struct ProfileRow {
  /// "matmul forward", "layer_norm", ..., the name of any other kernel, or "between kernels".
  std::string part;
  double seconds;  ///< total over all profiled steps
};

using Span = Trace::Span;

const char* between = "between kernels";

std::string part_of(const std::string& kernel, bool is_backward) {
  if (kernel == "matmul") return is_backward ? "matmul backward" : "matmul forward";
  for (const auto& [kind, part] : {std::pair{"attention", "attention"},
                                   {"layer_norm", "layer_norm"},
                                   {"gelu", "gelu"},
                                   {"projection_cross_entropy", "projection + cross_entropy"}})
    if (kernel.starts_with(kind)) return part;
  return kernel;
}

/// Visits the spans of one thread in order. Each span is inside the previous one or after its end.
class SpanVisitor {
 public:
  explicit SpanVisitor(std::vector<const Span*> spans) : spans_(std::move(spans)) {
    std::ranges::stable_sort(spans_, [](const Span* a, const Span* b) {
      return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
    });
  }

  std::map<std::string, double> parts() {
    while (next_ < spans_.size())
      if (const Span& span = *spans_[next_++]; span.name == "step") section(span, false);
    return std::move(parts_);
  }

 private:
  bool inside(const Span& outer) const {
    return next_ < spans_.size() && spans_[next_]->end_ns <= outer.end_ns;
  }
  void count(const std::string& part, int64_t ns) {
    parts_[part] += static_cast<double>(ns) * 1e-9;
  }

  /// A step or a part of it. The time outside of its kernels and waits is "between kernels".
  void section(const Span& outer, bool is_backward) {
    int64_t rest = outer.end_ns - outer.begin_ns;
    while (inside(outer)) {
      const Span& span = *spans_[next_++];
      rest -= span.end_ns - span.begin_ns;
      if (span.kind == Trace::Kind::kernel || span.kind == Trace::Kind::wait)
        leaf(span, is_backward);
      else
        section(span, is_backward || span.name == "backward");
    }
    count(between, rest);
  }
  void leaf(const Span& span, bool is_backward) {
    count(span.kind == Trace::Kind::wait ? "waiting" : part_of(span.name, is_backward),
          span.end_ns - span.begin_ns);
    while (inside(span)) ++next_;
  }

  std::vector<const Span*> spans_;
  size_t next_ = 0;
  std::map<std::string, double> parts_;
};

/// The profile of the steps of one rank, the largest part first. The seconds add up to the time of
/// the steps. A kernel that is called by another kernel belongs to that kernel. "waiting" is time
/// spent waiting for peers, copies and NVMe; the rest is "between kernels".
std::vector<ProfileRow> profile(const std::vector<Trace::Span>& spans, int rank,
                                const zero::UpdateOptions& update) {
  std::vector<const Span*> own;
  for (const Span& span : spans)
    if (span.rank == rank && span.track == "compute") own.push_back(&span);
  std::vector<ProfileRow> rows;
  for (const auto& [part, seconds] : SpanVisitor(std::move(own)).parts())
    rows.push_back({part == "optimizer_update" ? zero::optimizer_name(update) : part, seconds});
  std::ranges::stable_sort(rows, std::greater(), &ProfileRow::seconds);
  return rows;
}

/// The options of train that change the work of a step, and the number of steps.
struct BenchStepOptions {
  TrainOptions train;
  int64_t steps = 10;   ///< timed steps
  int64_t warm_up = 3;  ///< steps before the timed ones
  std::string json;
  std::string against;  ///< flags of another run, whose steps are timed in turns; empty: none
};

bool parse(const std::vector<std::string>& arguments, BenchStepOptions& options) {
  TrainOptions& train = options.train;
  train.data.source = "random tokens";
  train.only_planned = true;  // adapters need no weights: they are added to random ones
  train.model.block_size = 128;
  train.model.vocabulary = 50257;
  CommandLine line = {
      .usage = "zerograd bench step [flags of train]",
      .summary =
          "Takes steps of train on random tokens: warm-up steps, timed steps, and 2 traced steps,\n"
          "which show the time of each part. Bits and speed are those of train.",
      .groups =
          {{"bench",
            {integer_flag({"--steps"}, options.steps, "timed steps", {1, nullptr}),
             integer_flag({"--warm-up"}, options.warm_up, "steps before the timed ones"),
             text_flag({"--against"}, "FLAGS", options.against,
                       "time the steps of another run in turns with these: of the same flags\n"
                       "and FLAGS; prints how much longer they take"),
             path_flag({"--json"}, "F", options.json, PathUse::writes, "write results as JSON")}}},
      .notes = "  zerograd bench step --model-type gpt2 --tied --block-size 256 --batch-size 4"};
  // Options for reading and writing files and for the length of a run do not change a step.
  for (FlagGroup& group : train_groups_without(
           train,
           {"config", "output", "checkpoints", "tuning", "pairs, of encoder-decoder models",
            "--data", "--order", "--val-fraction", "--steps", "--epochs", "--limit-train-batches",
            "--init", "--from-hf", "--inject", "--dump-collectives"})) {
    for (Flag& flag : group.flags) {
      if (flag.names[0] == "--block-size") flag.help = "longest sequence [128]";
      if (flag.names[0] == "--vocab-size") flag.help = "number of tokens in the vocabulary [50257]";
    }
    line.groups.push_back(std::move(group));
  }
  if (!parse(line, arguments, train.given)) return false;
  check_train(train);
  if (is_seq2seq(train))
    throw Unsupported(
        "--model-type: bench step takes decoder-only models; try zerograd bench seq2seq");
  if (const int64_t own = own_vocabulary(train); own > 0 && !train.has("--vocab-size"))
    train.model.vocabulary = own;
  return true;
}

/// Both runs have one device, with its threads, and are timed as often.
constexpr std::string_view shared_flags[] = {
    "--device",        "--threads",     "--bits",
    "--device-memory", "--host-memory", "--matmul-algorithms",
    "--nvme-path",     "--steps",       "--warm-up",
    "--json",          "--against"};

/// The arguments without --against, and its flags. ConfigError if these name shared ones.
std::vector<std::string> with_flags(std::vector<std::string> arguments, const std::string& flags) {
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].starts_with("--against")) {
      const auto begin = arguments.begin() + static_cast<int64_t>(i);
      arguments.erase(begin, begin + (arguments[i] == "--against" ? 2 : 1));
    }
  std::istringstream words(flags);
  for (std::string word; words >> word;) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    if (std::ranges::count(shared_flags, name))
      throw ConfigError("--against: both runs have one " + std::string(name) +
                        "; expected flags that change a step; try " + std::string(name) +
                        " beside --against, or two runs");
    arguments.push_back(word);
  }
  return arguments;
}

Run prepared(BenchStepOptions& options) {
  TrainOptions& train = options.train;
  train.steps = 2 * (options.warm_up + options.steps) + traced;
  return prepare_run(train, random_tokens(train.model.vocabulary, train.model.block_size, false));
}

struct MeasuredSteps {
  double peak_flops = 0.0;      ///< all ranks together, measured before or after the steps; 0: no
                                ///< kernel to compare with
  int threads = 1;              ///< threads of each rank
  std::vector<double> seconds;  ///< one value for each timed step, sorted
  int64_t minor_faults = 0;     ///< largest count of a timed step, for the whole process
  int64_t resident_bytes = 0;   ///< largest value by the end of the timed steps
  std::vector<ProfileRow> profile;  ///< rank 0, over the traced steps
  /// With --against: the time of each of its steps divided by that of the step beside it, sorted.
  std::vector<double> ratios;
};

rusage used() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}

/// Largest resident memory of this process so far. ru_maxrss also counts the process that started
/// it: its value survives exec.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
  return int64_t{used().ru_maxrss} << 10;
}

void timed_steps(Rank& rank, const BenchStepOptions& options, MeasuredSteps& measured) {
  for (int64_t i = 0; i < options.warm_up; ++i) rank.trainer().step();
  for (int64_t i = 0; i < options.steps; ++i) {
    const int64_t faults = used().ru_minflt;
    const Clock::time_point start = Clock::now();
    rank.trainer().step();
    measured.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    measured.minor_faults = std::max<int64_t>(measured.minor_faults, used().ru_minflt - faults);
  }
  std::ranges::sort(measured.seconds);
  measured.resident_bytes = peak_resident_bytes();
}

/// Steps of two runs in turns: the speed of the machine changes less within a pair of steps than
/// between two runs of the benchmark.
void steps_in_turns(Rank& rank, Rank& other, const BenchStepOptions& options,
                    std::vector<double>& ratios) {
  for (int64_t i = 0; i < options.warm_up + options.steps; ++i) {
    double seconds[2];
    for (const int64_t turn : {i % 2, 1 - i % 2}) {  // the other one begins every second time
      const Clock::time_point start = Clock::now();
      (turn ? other : rank).trainer().step();
      seconds[turn] = std::chrono::duration<double>(Clock::now() - start).count();
    }
    if (i >= options.warm_up) ratios.push_back(seconds[1] / seconds[0]);
  }
  std::ranges::sort(ratios);
}

MeasuredSteps measure(const Run& run, const Run* other, const BenchStepOptions& bench) {
  const auto ranks = static_cast<int>(run.options.ranks);
  DeviceOptions options = run.options.device_flags.device;
  MeasuredSteps first;
  first.threads = options.threads;
  options.threads = std::min(available_cores(), options.threads * ranks);
  const auto measure_peak = [&] {  // measured twice, because other processes on this machine vary
    const Device::Type type = run.options.device_flags.type;
    const Device device = device_of_rank(type, 0, options);
    const DType dtype = run.options.engine.compute;
    first.peak_flops = std::max(first.peak_flops, type == Device::Type::cpu
                                                      ? matmul_peak_or_zero(device, dtype)
                                                      : bench::measure_product_rate(device, dtype) *
                                                            std::min(ranks, Device::count(type)));
  };
  measure_peak();
  const auto trace = std::make_shared<Trace>();
  const LocalOptions local{.timeout_s = run.options.comm_timeout_s,
                           .device = run.options.device_flags.device,
                           .type = run.options.device_flags.type};
  run_local(
      ranks,
      [&](Communicator& communicator, const Device& device) {
        Rank rank(run, communicator, device);
        MeasuredSteps own;
        timed_steps(rank, bench, communicator.rank() == 0 ? first : own);
        device.set_trace(trace);
        for (int64_t i = 0; i < traced; ++i) rank.trainer().step();
        device.set_trace(nullptr);
        if (!other) return;
        const auto in_turns = [&](Communicator& alone, const Device& its_device) {
          Rank second(*other, alone, its_device);
          steps_in_turns(rank, second, bench, first.ratios);
        };
        run_local(1, in_turns, local);
      },
      local);
  measure_peak();
  first.profile = profile(trace->spans(), 0, run.options.engine.update);
  return first;
}

/// A run with its measurements and the figures derived from them.
struct StepReport {
  const Run& run;
  const MeasuredSteps& measured;

  double tokens() const {
    return static_cast<double>(run.options.samples_per_step() * run.dataset->block_size());
  }
  double flops() const {
    return tokens() * models::matmul_flops_per_token(run.options.model, run.options.lora.rank > 0);
  }
  double seconds(double q) const { return bench::quantile(measured.seconds, q); }
  double percent_of_peak(double q) const {
    return 100.0 * flops() / seconds(q) / measured.peak_flops;
  }
  double profiled_seconds() const {
    double sum = 0.0;
    for (const ProfileRow& row : measured.profile) sum += row.seconds;
    return sum;
  }
};

std::string description_of(const RunSpec& settings) {
  const models::GPTConfig& model = settings.model;
  return fmt::format("{} blocks, width {}, {} tokens{}; B{} T{}", model.layers, model.width,
                     model.vocabulary, model.tied ? ", tied" : "", settings.samples_per_step(),
                     model.block_size);
}

void print(const StepReport& report) {
  const auto& [run, measured] = report;
  const std::string precision = run.options.precision();
  const auto all_threads = static_cast<int>(run.options.ranks) * measured.threads;
  const auto percent = [&](double q) {
    return measured.peak_flops > 0.0 ? fmt::format("{:.1f} %", report.percent_of_peak(q))
                                     : std::string();
  };
  const double median = report.seconds(0.5);
  std::printf(
      "| case | shape | dtype | threads | median ms | p10 - p90 | tokens/s | GFLOP/s | %% of limit "
      "| best |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
  if (measured.peak_flops > 0.0)
    std::printf("| limit: matmul peak | | %s | %d | | | | %.1f | | |\n",
                name_of(run.options.engine.compute), all_threads, 1e-9 * measured.peak_flops);
  std::printf("| step | %s | %s | %d | %.2f | %.2f - %.2f | %.0f | %.1f | %s | %s |\n",
              description_of(run.options).c_str(), precision.c_str(), all_threads, 1e3 * median,
              1e3 * report.seconds(0.1), 1e3 * report.seconds(0.9), report.tokens() / median,
              1e-9 * report.flops() / median, percent(0.5).c_str(), percent(0.0).c_str());
  std::printf(
      "\n%.1f GFLOP a step; peak resident memory %.0f MB; minor faults of a timed step: %lld at "
      "most\n",
      1e-9 * report.flops(), 1e-6 * static_cast<double>(measured.resident_bytes),
      (long long)measured.minor_faults);
  if (!measured.ratios.empty())
    std::printf(
        "\nagainst: a step takes %.3f times as long, median of %zu pairs; quartiles %.3f, %.3f\n",
        bench::quantile(measured.ratios, 0.5), measured.ratios.size(),
        bench::quantile(measured.ratios, 0.25), bench::quantile(measured.ratios, 0.75));
  std::printf("\n| part of a step | ms | %% |\n|---|---:|---:|\n");
  for (const ProfileRow& row : measured.profile)
    std::printf("| %s | %.2f | %.1f |\n", row.part.c_str(), 1e3 * row.seconds / traced,
                100.0 * row.seconds / report.profiled_seconds());
}

Json json_of(const StepReport& report) {
  const auto& [run, measured] = report;
  const RunSpec& settings = run.options;
  const double median = report.seconds(0.5);
  const bool known = measured.peak_flops > 0.0;
  Json parts = Json::array();
  for (const ProfileRow& row : measured.profile)
    parts.push_back({{"part", row.part},
                     {"seconds", row.seconds / traced},
                     {"percent", 100.0 * row.seconds / report.profiled_seconds()}});
  return {{"schema", 1},
          {"bench", "step"},
          {"machine", bench::machine_json(run.options.device_flags.type)},
          {"model", model_json(settings.model)},
          {"precision", settings.precision()},
          {"ranks", settings.data_ranks},
          {"stage", settings.engine.stage},
          {"micro_batch", settings.micro_batch},
          {"accumulation", settings.accumulation},
          {"threads", measured.threads},
          {"limits", {{"matmul", known ? Json(measured.peak_flops) : Json(nullptr)}}},
          {"samples", measured.seconds.size()},
          {"median_s", median},
          {"p10_s", report.seconds(0.1)},
          {"p90_s", report.seconds(0.9)},
          {"best_s", measured.seconds.front()},
          {"tokens", report.tokens()},
          {"tokens_per_s", report.tokens() / median},
          {"flops", report.flops()},
          {"flops_per_s", report.flops() / median},
          {"percent_of_limit", known ? Json(report.percent_of_peak(0.5)) : Json(nullptr)},
          {"peak_resident_bytes", measured.resident_bytes},
          {"minor_faults", measured.minor_faults},
          {"ratios_against", measured.ratios},
          {"profile", parts}};
}

}  // namespace

int bench_step(const std::vector<std::string>& arguments) {
  BenchStepOptions options;
  if (!parse(arguments, options)) return 0;
  check_writable("--json", options.json);
  refuse_emulator(options.train.device_flags.type);
  const Run run = prepared(options);
  std::optional<Run> other;
  if (!options.against.empty()) {
    BenchStepOptions changed;
    parse(with_flags(arguments, options.against), changed);
    if (options.train.ranks != 1 || changed.train.ranks != 1)
      throw ConfigError("--against: expected one rank in both runs, got more; try --ranks 1");
    other = prepared(changed);
  }
  const MeasuredSteps measured = measure(run, other ? &*other : nullptr, options);
  const StepReport report{run, measured};
  print(report);
  if (!options.json.empty()) replace_text(options.json, json_of(report).dump(1));
  return 0;
}

}  // namespace zg::tools
