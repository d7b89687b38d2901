#include <algorithm>
#include <cstdio>
#include <optional>

#include "tools/commands/plan_report.h"
#include "tools/output/run_header.h"
#include "tools/run/budgets.h"

#include "tools/commands/subcommands.h"
#include "zerograd/runtime/device_names.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

// Clears the options of files that a plan must not write, and lists them in one line: the command
// line may be that of a training run. --save is kept if `--resume auto` reads from it.
void silence(TrainOptions& options) {
  const bool looks = options.resume == "auto";
  std::string without_effect;
  for (const char* flag :
       {"--save", "--metrics", "--tensorboard-dir", "--trace", "--trace-steps", "--max-restarts",
        "--autotuning", "--exit-interval", "--kill-switch-path", "--universal-checkpoint"})
    if (options.given.count(flag) && !(looks && std::string(flag) == "--save"))
      without_effect += (without_effect.empty() ? "" : ", ") + std::string(flag);
  if (!without_effect.empty())
    std::fprintf(stderr,
                 "plan walks steps and writes nothing but --memory-json; without effect: "
                 "%s\n",
                 without_effect.c_str());
  options.metrics.clear();
  options.trace.clear();
  // dump_gradients_step is kept: that step gathers gradients, which needs memory.
  options.dump_gradients.clear();
  if (!looks) options.save.clear();
  options.only_planned = true;
}

void print(const std::string& line) { std::printf("%s\n", line.c_str()); }

std::string mib(int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 20);
  return text(value < 100.0 ? "%.1f MiB" : "%.0f MiB", value);
}

// Formats a size as flags accept it: 12GiB, 50MiB.
std::string size(int64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* const units[] = {"", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; value >= 1024.0 && unit < 3; ++unit) value /= 1024.0;
  return text("%.4g%s", value, units[unit]);
}

int64_t wire_bytes(const RankMemory& memory) {
  int64_t bytes = 0;
  for (const WireCount& count : memory.wire) bytes += count.bytes;
  return bytes;
}

void print_summary(const Run& run, const RankMemory& memory) {
  const DeviceOptions& device = run.options.place.device;
  const Device::Type type = run.options.place.type;
  print(type != Device::Type::cpu ? text("machine: %s, ranks as threads", zg::name_of(type))
                                  : text("machine: cpu, %s, %d thread%s per rank, ranks as threads",
                                         zg::name_of(device.isa.value_or(best_isa())),
                                         device.threads, device.threads == 1 ? "" : "s"));
  print(memory_table(memory.rows));
  const MemoryRow& peak = peak_of(memory);
  const Needs needs = needs_of(memory);
  if (memory.rows.empty()) {
    print(text("peak %s (rank %d, no steps, %s)", mib(needs.device).c_str(), memory.rank,
               needs.device > peak.reserved ? "scores and saving" : peak.phase.c_str()));
  } else {
    print(text("peak %s (rank %d, step %lld, %s)", mib(peak.reserved).c_str(), memory.rank,
               (long long)peak.step, peak.phase.c_str()));
    print(text("wire %.1f MiB per step", static_cast<double>(wire_bytes(memory)) / (1 << 20) /
                                             static_cast<double>(run.steps - run.steps_done)));
  }
  print("host " + mib(needs.host));
  print("disk " + mib(needs.file));
  if (needs.file > 0)
    print(text("drive reads %s and writes %s, first values included", mib(memory.io.read).c_str(),
               mib(memory.io.written).c_str()));
}

const RankMemory& neediest(const std::vector<RankMemory>& ranks) {
  return *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return needs_of(a).device < needs_of(b).device;
  });
}

// The memory of the largest batch, which may be larger than the batches of the planned steps.
std::optional<RankMemory> largest_memory(const Run& run) {
  if (run.settings.rampup.start == 0) return std::nullopt;
  const Run largest = largest_steps(run);
  const std::vector<RankMemory> stages = plan_stages(largest);
  const RankMemory& memory = neediest(stages);
  print(described(run.settings.rampup, run.settings.samples_per_step()) +
        text("; peak %s in its largest steps", mib(needs_of(memory).device).c_str()));
  return memory;
}

// Prints the disk budget and returns the exit status.
int print_disk(const Run& run, const RankMemory& memory) {
  const DiskBudget budget = disk_budget(run, needs_of(memory));
  if (budget.needed == 0) return 0;
  print("fits " + run.options.offload.nvme_path + ": " + (budget.suffices() ? "yes; " : "no; ") +
        budget.str());
  return budget.suffices() ? 0 : 5;
}

int print_caps(const Run& run, const RankMemory& memory, const RankMemory* largest) {
  const DeviceOptions& limits = run.options.place.device;
  if (!limits.memory_limit && !limits.host_limit) return 0;
  const bool yes = fits(run, memory) && (!largest || fits(run, *largest));
  const std::optional<std::string> smallest = smallest_fitting(run);
  std::string caps = limits.memory_limit ? size(limits.memory_limit) : "";
  if (limits.host_limit)
    caps += (caps.empty() ? "" : " and ") + size(limits.host_limit) + " of host memory";
  std::string line =
      "fits " + caps + ": " + (yes ? "yes" : "no") + "; smallest setting that fits: ";
  line += smallest ? *smallest : "none; try a smaller --batch-size or more --ranks";
  print(line);
  return yes ? 0 : 3;
}

}  // namespace

int plan(const std::vector<std::string>& arguments) {
  PlanOptions options;
  if (!parse(arguments, options)) return 0;
  if (options.explain) print(explain_formulas() + "\n");
  const bool has_data = !options.train.data.source.empty() || !options.train.resume.empty();
  if (!has_data && options.explain) return 0;
  silence(options.train);
  const Run run = prepare_run(options.train);
  const bool meshed = run.settings.axes.model_ranks() > 1;
  const std::vector<RankMemory> stages = plan_stages(run);
  std::vector<RankMemory> ranks = {stages.front()};
  if (!run.options.memory_json.empty())
    for (int rank = 1; rank < run.options.ranks; ++rank) ranks.push_back(walk(run, rank));
  const MemoryRecord record = memory_record(run, std::move(ranks));
  const RankMemory& first = record.ranks.front();
  print(text("number of parameters: %lld", (long long)record.parameters));
  if (options.explain) print(explain_run(run, record.parameters, first) + "\n");
  print_summary(run, first);
  if (meshed) print("\n" + mesh_summary(run, stages));
  if (!run.options.memory_json.empty()) write_memory_json(run.options.memory_json, to_json(record));
  const std::optional<RankMemory> largest = largest_memory(run);
  const RankMemory& dearest = neediest(stages);
  const int disk = print_disk(run, dearest);
  const int caps = print_caps(run, dearest, largest ? &*largest : nullptr);
  return caps ? caps : disk;
}

}  // namespace zg::tools
