#include <algorithm>
#include <cstdio>
#include <optional>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/output/console.h"
#include "tools/run/advise.h"
#include "tools/run/planner.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/model_states.h"

namespace zg::tools {
namespace {

/// `plan` takes train's flags, but writes none of train's files.
struct PlanOptions {
  TrainOptions train;
  bool explain = false;  ///< --data is then optional
  bool advise = false;
  double advise_s = 45.0;
  Machine machine;
  GivenFlags words;   ///< the given flags of train
  std::string peaks;  ///< a file of rates, which predict the times of --kernels; empty: none
};

bool parse(const std::vector<std::string>& arguments, PlanOptions& options) {
  TrainOptions& train = options.train;
  train.steps = 3;  // unless --steps is given; later steps need the same memory
  CommandLine line = {
      .usage =
          "zerograd plan [--data sort|adder|PATH.txt|PATH.bin] [flags of train]\n"
          "       zerograd plan generate|eval CHECKPOINT [flags of generate or eval]",
      .summary =
          "Plans training steps on devices without memory. Prints the bytes of memory that train\n"
          "will take on each rank, and the bytes that ranks will send. Without --data the\n"
          "vocabulary and block size are those of --model-type or of other flags. The exit status\n"
          "is 3 if the memory exceeds --device-memory. `plan generate` and `plan eval` plan those.",
      .groups =
          {{"plan",
            {switch_flag({"--explain"}, options.explain,
                         "memory by the paper's and by our formula, dtypes of each precision"),
             switch_flag({"--advise"}, options.advise,
                         "search the settings that fit: a table of command lines, fastest first;\n"
                         "the batch of a step stays; the exit status is 0 if one fits"),
             number_flag({"--time"}, options.advise_s,
                         {0.0, 1e6, true, false, "seconds above 0 and at most 1e6"},
                         "seconds that --advise may take"),
             text_flag({"--card"}, "NAME", options.machine.card,
                       "device, memory and rates of a card: H100, A100, 4090, 3090, MI300X, 1550"),
             size_flag({"--reserve"}, options.machine.reserve,
                       "device memory for context, NCCL and libraries; with --card 1.5GiB,\n"
                       "1GiB for one rank"),
             integer_flag({"--nodes"}, options.machine.nodes, "nodes that share the ranks evenly",
                          {1, nullptr}),
             size_flag({"--node-memory"}, options.machine.node_memory,
                       "host memory of a node, for all its ranks; 0: no limit"),
             path_flag(
                 {"--peaks"}, "F", options.peaks, PathUse::reads,
                 "with --kernels: the rates of a machine, such as bench/peaks/h100-sxm.json;\n"
                 "predicts the time of a step and of each kernel")}}},
      .notes =
          "  zerograd plan --data sort --model-type gpt2-xl --device-memory 12GiB\n"
          "  zerograd plan --data input.txt --ranks 64 --zero-stage 3 --precision bf16\n"
          "  zerograd plan --model-type bloom-13b --ranks 8 --tensor-parallel 4 "
          "--pipeline-parallel 2"};
  for (FlagGroup& group : train_groups(train))
    line.groups.push_back(options.words.recorded(std::move(group)));
  if (!parse(line, arguments, train.given)) return false;
  complete(train);
  return true;
}

std::string gigabytes(double bytes) { return fmt::format("{:.1f}", bytes / 1e9); }

std::string states_table(double parameters, int ranks, zero::Config config,
                         bool rounds_at_use = false) {
  std::string table = fmt::format(
      "{:.4g} parameters on {} ranks; the paper: 2 bytes of value, 2 of gradient, K = 12 of "
      "optimizer;\n"
      "ours: values {}, sums {} in shards at every stage, masters and moments {}\n\n"
      "| stage | paper GB | paper volume | ours GB | values | sums | optimizer | our volume |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|",
      parameters, ranks, config.compute, config.grad_accum, config.optimizer);
  for (config.stage = 0; config.stage <= 3; ++config.stage) {
    const zero::ModelStates paper = zero::paper_states(parameters, ranks, config.stage);
    const zero::ModelStates ours = zero::our_states(parameters, ranks, config, rounds_at_use);
    table += fmt::format("\n| {} | {} | {:g}x | {} | {} | {} | {} | {:g}x |", config.stage,
                         gigabytes(paper.total()), paper.volume, gigabytes(ours.total()),
                         gigabytes(ours.parameter), gigabytes(ours.gradient),
                         gigabytes(ours.optimizer), ours.volume);
  }
  return table;
}

constexpr const char* precision_columns =
    "| precision | load | mixed | local | compute | optimizer |\n|---|---|---|---|---|---|";

std::string precision_row(const std::string& name, const zero::Precision& precision) {
  return fmt::format("\n| {} | {} | {} | {} | {} | {} |", name, precision.load,
                     precision.mixed ? zg::name_of(*precision.mixed) : "none", precision.local,
                     precision.compute, precision.optimizer);
}

std::string precision_table() {
  std::string table = precision_columns;
  for (DType compute : {DType::f32, DType::bf16, DType::f16})
    table +=
        precision_row(zg::name_of(compute), zero::precision_of(zero::Config{.compute = compute}));
  for (auto preset : {zero::PrecisionPreset::fsdp_memory, zero::PrecisionPreset::fsdp_mixed,
                      zero::PrecisionPreset::deepspeed})
    table += precision_row(zero::name_of(preset), zero::precision_of(preset));
  return table;
}

/// ZeRO's memory formula and ours at the paper's model size, and the dtypes of the precision
/// presets. Markdown.
std::string explain_formulas() {
  constexpr double parameters = 7.5e9;
  constexpr int ranks = 64;
  return fmt::format("ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, figure 1): {}\n\n{}",
                     states_table(parameters, ranks, {.compute = DType::bf16}), precision_table());
}

/// The same formulas at the run's size, and the resting bytes of the planned rank, exact to the
/// byte.
std::string explain_run(const Run& run, int64_t parameters, const RankMemory& memory) {
  const int ranks = static_cast<int>(run.options.data_ranks);
  const zero::Config& config = run.options.engine;
  const zero::RestingBytes& rest = memory.resting;
  zero::Config stages = config;
  stages.reduce_at_boundary = false;  // affects stages 0 and 1 only
  const bool rounds = zero::rounds_at_use(config, run.options.ranks, run.options.device_flags.type);
  return fmt::format(
             "This run: {}\n\n{}{}\n\nresting bytes of rank {} at stage {}: {} = values {} + sums "
             "{} + optimizer {} + padding {}",
             states_table(static_cast<double>(parameters), ranks, stages, rounds),
             precision_columns, precision_row(run.options.precision(), zero::precision_of(config)),
             memory.rank, config.stage, rest.total(), rest.parameter, rest.gradient, rest.optimizer,
             rest.padding) +
         (run.options.lora.rank > 0
              ? "\nThe formulas are for training every parameter; this run trains adapters."
              : "");
}

std::string short_mib(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

std::string line_of(const Run& run, const RankMemory& rank) {
  const ModelSlice& slice = rank.model_slice;
  std::string line =
      fmt::format("| {} | {} | {} - {} | {:.3f} |", slice.stage, rank.rank, slice.first_layer,
                  slice.end_layer - 1, static_cast<double>(slice.parameters) * 1e-9);
  const MemoryRow& peak = peak_of(rank);
  for (int purpose = 0; purpose < purpose_count; ++purpose)
    line += fmt::format(" {} |", short_mib(peak.at_max[static_cast<size_t>(purpose)]));
  line += fmt::format(" {} |", short_mib(peak.reserved));
  const auto steps = std::max<int64_t>(1, run.options.steps - run.steps_done);
  for (const AxisWire& axis : rank.axes)
    line += fmt::format(" {} |", short_mib(received_bytes(axis.wire) / steps));
  return line;
}

// The largest cost of a stage divided by the mean cost; 1: all stages are equal.
double imbalance(const models::GPTConfig& model, const std::vector<RankMemory>& stages) {
  double largest = 0.0, all = 0.0;
  for (const RankMemory& stage : stages) {
    double cost = static_cast<double>(stage.model_slice.end_layer - stage.model_slice.first_layer) *
                  models::layer_flops(model);
    if (&stage == &stages.back()) cost += models::head_flops(model);
    largest = std::max(largest, cost);
    all += cost;
  }
  return largest * static_cast<double>(stages.size()) / all;
}

/// The text that `plan` prints for a mesh: a Markdown table with a row per pipeline stage, its peak
/// bytes by purpose and the bytes received in a step by axis, then the pipeline bubble.
std::string mesh_summary(const Run& run, const std::vector<RankMemory>& stages) {
  const RunSpec& settings = run.options;
  const Axes& axes = settings.axes;
  std::string summary =
      "\nMiB of a rank of each stage at its peak, and received a step by axis:\n\n"
      "| stage | rank | layers | parameters (B) |";
  std::string rule = "\n|---:|---:|---:|---:|";
  const auto column = [&](const std::string& title) {
    summary += fmt::format(" {} |", title);
    rule += "---:|";
  };
  for (int purpose = 0; purpose < purpose_count; ++purpose)
    column(zg::name_of(static_cast<Purpose>(purpose)));
  column("reserved");
  for (const AxisWire& axis : stages.front().axes) column(fmt::format("{} wire", axis.axis));
  summary += rule;
  for (const RankMemory& rank : stages) summary += "\n" + line_of(run, rank);
  const double bubble = pipeline_bubble(static_cast<int>(axes.pipeline), settings.accumulation);
  summary += fmt::format(
      "\n\nbubble {:.1f} %: (p - 1) / (m + p - 1) of {} stages and {} micro-batches; the largest "
      "stage costs {:.1f} % more than the mean",
      100.0 * bubble, axes.pipeline, settings.accumulation,
      100.0 * (imbalance(settings.model, stages) - 1.0));
  if (settings.engine.stage > 1)
    summary += fmt::format(
        "\nZeRO stage {} in a pipeline: {}; stages 0 and 1 send less", settings.engine.stage,
        settings.engine.stage == 3
            ? "every micro-batch gathers its stage's values, forward and backward"
            : "gradient accumulators are sharded at every stage, so it saves nothing over 1");
  return summary;
}

// The command line may be that of a training run. So this clears the options that name output
// files, which a plan must not write, and prints them in one line. --save is kept if `--resume
// auto` reads from it.
void drop_output_options(TrainOptions& options) {
  const bool looks = options.resume == "auto";
  std::vector<std::string> unused;
  for (const std::string& flag : ignored_flags(by_plan))
    if (options.has(flag) && !(looks && flag == "--save")) unused.push_back(flag);
  if (!unused.empty())
    print_line(stderr,
               "plan only counts, and writes nothing but --memory-json, --kernels and --report; "
               "without effect: {}",
               join(unused, ", "));
  options.metrics.clear();
  options.trace.clear();
  // dump_gradients_step is kept, because that step gathers gradients, which needs memory.
  options.dump_gradients.clear();
  if (!looks) options.save.clear();
  options.matmul_algorithms.clear();  // a plan counts sums of rows within their product
  options.only_planned = true;
}

void print(const std::string& line) { print_line(stdout, "{}", line); }

std::string size_in_mib(int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 20);
  return value < 100.0 ? fmt::format("{:.1f} MiB", value) : fmt::format("{:.0f} MiB", value);
}

// Formats a size as flags accept it: 12GiB, 50MiB.
std::string flag_size(int64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* const units[] = {"", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; value >= 1024.0 && unit < 3; ++unit) value /= 1024.0;
  return fmt::format("{:.4g}{}", value, units[unit]);
}

void print_summary(const Run& run, const RankMemory& memory, int64_t nodes) {
  const DeviceOptions& device = run.options.device_flags.device;
  const Device::Type type = run.options.device_flags.type;
  print(type != Device::Type::cpu
            ? fmt::format("machine: {}, ranks as threads", type)
            : fmt::format("machine: cpu, {}, {} thread{} per rank, ranks as threads",
                          isa_of(device), device.threads, device.threads == 1 ? "" : "s"));
  print(memory_table(memory.rows));
  const MemoryRow& peak = peak_of(memory);
  const Needs needs = needs_of(memory);
  if (memory.rows.empty()) {
    print_line(stdout, "peak {} (rank {}, no steps, {})", size_in_mib(needs.device), memory.rank,
               needs.device > peak.reserved ? "scores and saving" : peak.phase);
  } else {
    print_line(stdout, "peak {} (rank {}, step {}, {})", size_in_mib(peak.reserved), memory.rank,
               peak.step, peak.phase);
    print_line(stdout, "wire {:.1f} MiB per step",
               static_cast<double>(received_bytes(memory.wire)) / (1 << 20) /
                   static_cast<double>(run.options.steps - run.steps_done));
  }
  const int64_t ranks = run.options.ranks / nodes;
  const auto per_node = [&](const char* space, int64_t bytes) {
    print_line(stdout, "{} {} per rank, {} per node of {} rank{}", space, size_in_mib(bytes),
               size_in_mib(bytes * ranks), ranks, ranks == 1 ? "" : "s");
  };
  per_node("host", needs.host);
  per_node("disk", needs.file);
  if (needs.file > 0)
    print_line(stdout, "disk: {} read, {} written, first values included",
               size_in_mib(memory.file_io.read), size_in_mib(memory.file_io.written));
  if (memory.redo_io)
    print_line(stdout, "disk: {} read and {} written more by each step that is redone",
               size_in_mib(memory.redo_io->read), size_in_mib(memory.redo_io->written));
}

const RankMemory& rank_with_peak(const std::vector<RankMemory>& ranks) {
  const auto device = [](const RankMemory& rank) { return needs_of(rank).device; };
  return *std::ranges::max_element(ranks, {}, device);
}

// The memory of the largest batch, which may be larger than the batches of the planned steps.
std::optional<RankMemory> largest_memory(const Run& run) {
  if (run.options.rampup.start == 0) return std::nullopt;
  const Run largest = largest_steps(run);
  const std::vector<RankMemory> stages = plan_stages(largest);
  const RankMemory& memory = rank_with_peak(stages);
  print(description_of(run.options.rampup, run.options.samples_per_step()) +
        fmt::format("; peak {} in its largest steps", size_in_mib(needs_of(memory).device)));
  return memory;
}

// Prints the disk budget and returns the exit status.
int print_disk(const Run& run, const RankMemory& memory) {
  const DiskBudget budget = disk_budget(run, needs_of(memory));
  if (budget.needed == 0) return 0;
  print_line(stdout, "fits {}: {}{}", run.options.offload.nvme_path,
             budget.suffices() ? "yes; " : "no; ", budget.str());
  return budget.suffices() ? 0 : 5;
}

// Prints whether the run fits its limits, and the smallest setting that does; `advised`: a search
// that knows it. Returns the exit status.
int print_caps(const Run& run, const RankMemory& memory, const std::optional<RankMemory>& largest,
               const zero::Search* advised = nullptr) {
  const DeviceOptions& limits = run.options.device_flags.device;
  if (!limits.memory_limit && !limits.host_limit) return 0;
  const bool yes = needs_of(memory).fit(limits) && (!largest || needs_of(*largest).fit(limits));
  const SmallestSetting smallest = smallest_fitting(run, advised);
  std::string caps = limits.memory_limit ? flag_size(limits.memory_limit) : "";
  if (limits.host_limit)
    caps += fmt::format("{}{} of host memory", caps.empty() ? "" : " and ",
                        flag_size(limits.host_limit));
  print(fmt::format("fits {}: {}; smallest setting that fits: {}", caps, yes ? "yes" : "no",
                    smallest.flags.value_or(smallest.none)));
  return yes ? 0 : 3;
}

// The page of a plan; of many ranks, the first.
void write_page(const Run& run, const RankMemory& first, const MemoryRecord& record) {
  constexpr int64_t most_ranks = 16;
  zero::RunPage page = page_of(run);
  page.facts.insert(page.facts.begin(),
                    {{"parameters", std::to_string(record.parameters)},
                     {"ranks", fmt::format("{}, ZeRO stage {}", record.world, record.stage)},
                     {"device", run.options.device_flags.type == Device::Type::cpu
                                    ? fmt::format("cpu, {}, {} threads", record.machine.isa,
                                                  record.machine.threads)
                                    : zg::name_of(run.options.device_flags.type)},
                     {"library", fmt::format("zerograd {}", version())}});
  page.memory = {{"plan", first.rows}};
  page.blocks = first.blocks;
  page.memory.front().rows.resize(std::min<size_t>(first.rows.size(), reported_steps * cell_count));
  for (int rank = 0; rank < std::min(most_ranks, run.options.ranks); ++rank)
    page.ranks.push_back(reported(rank == 0 ? first : dry_run_of_report(run, rank)));
  try {
    replace_text(run.options.report, page.html());
  } catch (const FileError& error) {
    raise<FileError>("--report: {}", error.what());
  }
}

/// Throws ConfigError where these peaks are of another kind of device.
void check_rates(const Run& run, const Peaks& peaks) {
  const bool of_gpu = peaks.multiprocessors > 0;
  const Device::Type type = run.options.device_flags.type;
  if (type == Device::Type::hpu)
    raise<ConfigError>(
        "--peaks: the time of a step is predicted for CPUs and NVIDIA GPUs; expected --device cpu "
        "or cuda, got hpu; try without --peaks");
  if (of_gpu != (type != Device::Type::cpu))
    raise<ConfigError>(
        "--peaks: '{}' has the rates of a {}; expected those of --device {}; try another file of "
        "bench/peaks",
        peaks.name, of_gpu ? "GPU" : "CPU", name_of(type));
}

/// Throws ConfigError where counted launches do not give the time of a step.
void check_predictable(const Run& run) {
  const zero::OffloadOptions& offload = run.options.engine.offload;
  if (run.options.axes.pipeline > 1)
    raise<ConfigError>(
        "--peaks: the time that pipeline stages wait for each other is not predicted; expected one "
        "stage, got --pipeline-parallel {}; try --kernels alone",
        run.options.axes.pipeline);
  for (const Space space :
       {offload.parameter, offload.gradient, offload.optimizer, offload.activation})
    if (space != Space::device)
      raise<ConfigError>(
          "--peaks: the time of transfers and of updates on the host is not predicted; expected "
          "all states on the device, got an offload to {}; try --kernels alone",
          name_of(space));
}

// The rates of --peaks, or of the card.
std::optional<Peaks> peaks_of(const PlanOptions& options) {
  std::string path = options.peaks;
  if (path.empty() && options.advise && !options.machine.card.empty())
    path = peaks_file(zero::card_named(options.machine.card));
  if (path.empty()) return std::nullopt;
  if (options.train.kernels.empty() && !options.advise)
    throw ConfigError(
        "--peaks: the predicted times are written to the file of --kernels; expected both, got "
        "--peaks alone; try --kernels F");
  return Peaks::read(path);
}

// Searches settings and prints the table of --advise. Returns the exit status.
int advise(const Run& run, const PlanOptions& options, const std::optional<Peaks>& peaks,
           const RankMemory& memory, const std::optional<RankMemory>& largest) {
  const Peaks* const rates = peaks ? &*peaks : nullptr;
  zero::SearchOptions search_options = {.rates = options.machine.card.empty()
                                                     ? rates_of(run, rates)
                                                     : zero::card_named(options.machine.card).rates,
                                        .enough = 32,
                                        .seconds = options.advise_s * 2.0 / 3.0};
  search_options.rates.node_ranks = run.options.ranks / options.machine.nodes;
  zero::Search search = search_settings(run, choices_of(run), search_options, rates);
  const size_t found = search.fitting.size();
  search.fitting = exact_rows(run, search.fitting, options.advise_s / 3.0);
  print_caps(run, memory, largest, &search);
  print(fmt::format(
      "\nsettings that fit, the fastest first, by {}:\n\n{}",
      rates ? "the kernels' times on " + rates->name : "bytes moved and recomputed operations",
      advice_table(run, search, found, options.words, options.machine.nodes)));
  return search.fitting.empty() ? 3 : 0;
}

}  // namespace

int plan(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments.front() == "eval" || arguments.front() == "generate")) {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    return arguments.front() == "eval" ? eval(rest, /*only_planned=*/true)
                                       : generate(rest, /*only_planned=*/true);
  }
  PlanOptions options;
  options.train.command = arguments;
  options.train.command.insert(options.train.command.begin(), "plan");
  if (!parse(arguments, options)) return 0;
  if (options.explain) print(explain_formulas() + "\n");
  const bool has_data = !options.train.data.source.empty() || !options.train.resume.empty();
  const bool has_model = options.train.is_set("--model-type") ||
                         options.train.is_set("--n-layer") || !options.train.from_hf.empty();
  if (!has_data && !has_model && options.explain) return 0;
  drop_output_options(options.train);
  for (const std::string& line : apply(options.machine, options.train)) print(line);
  const std::optional<Peaks> peaks = peaks_of(options);
  const Run run = prepare_run(options.train);
  if (run.options.explain_settings) {
    print(explain_settings(run.options, run.options));
    return 0;
  }
  const DeviceOptions& limits = run.options.device_flags.device;
  if (options.advise && limits.memory_limit == 0 && limits.host_limit == 0)
    throw ConfigError(
        "--advise: expected a limit to fit into, got none; try --card NAME or --device-memory "
        "SIZE");
  if (peaks) check_rates(run, *peaks);
  if (peaks && !run.options.kernels.empty()) check_predictable(run);
  if (run.pairs && !run.options.seq2seq.pad_to_max && !run.options.data.source.empty())
    print_line(stderr,
               "note: each step is padded to its longest pair, so a later step may take more; "
               "--pad-to-max-length plans the largest");
  const std::vector<RankMemory> stages = plan_stages(run);
  const RankMemory& first = stages.front();
  const MemoryRecord record = memory_record(run);
  print_line(stdout, "number of parameters: {}", record.parameters);
  if (options.explain) print(explain_run(run, record.parameters, first) + "\n");
  print_summary(run, first, options.machine.nodes);
  const Axes& axes = run.options.axes;
  if (axes.is_mesh()) print("\n" + description_of(axes, run.options.data_ranks));
  if (axes.model_ranks() > 1) print(mesh_summary(run, stages));
  if (const std::string& path = run.options.memory_json; !path.empty()) {
    std::vector<std::string> ranks = {to_json(first)};
    for (int rank = 1; rank < run.options.ranks; ++rank)
      ranks.push_back(to_json(dry_run(run, rank)));
    write_json("--memory-json", path, to_json(record, ranks));
  }
  if (!run.options.report.empty()) write_page(run, first, record);
  if (const std::string lines = write_kernels(run, first, peaks); !lines.empty()) print(lines);
  const std::optional<RankMemory> largest = largest_memory(run);
  const RankMemory& peak = rank_with_peak(stages);
  const int disk = print_disk(run, peak);
  if (options.advise) return advise(run, options, peaks, peak, largest);
  const int caps = print_caps(run, peak, largest);
  return caps ? caps : disk;
}

}  // namespace zg::tools
