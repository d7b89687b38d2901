#include <algorithm>
#include <filesystem>

#include "tools/run/advise.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

std::vector<std::string> apply(const Machine& machine, TrainOptions& options) {
  DeviceFlags& flags = options.device_flags;
  std::vector<std::string> lines;
  const auto gib = [](int64_t bytes) {
    return fmt::format("{:.4g} GiB", static_cast<double>(bytes) / 0x1p30);
  };
  if (options.ranks % machine.nodes != 0)
    raise<ConfigError>("--nodes: expected a divisor of the {} ranks, got {}; try --nodes 1",
                       options.ranks, machine.nodes);
  int64_t reserve = std::max<int64_t>(0, machine.reserve);
  if (!machine.card.empty()) {
    const zero::Card& card = zero::card_named(machine.card, "--card");
    if (!options.has("--device")) flags.type = card.type;
    if (flags.type != card.type)
      raise<ConfigError>(
          "--card: a {} runs {} kernels; expected --device {}, got {}; try without --device",
          card.name, card.type, card.type, flags.type);
    if (machine.reserve < 0) reserve = options.ranks > 1 ? 3 << 29 : 1 << 30;
    if (!options.has("--device-memory"))
      flags.device.memory_limit = static_cast<int64_t>(card.gib * 0x1p30);
    lines.push_back(fmt::format("card: {}, {} kernels, {}", card.name, flags.type,
                                gib(flags.device.memory_limit)));
    if (card.name[0] == 'M' || card.name[0] == 'G')
      lines.back() += "; this card has not run zerograd: only the memory is planned for it";
  } else if (options.has("--device-memory") && !options.has("--device") &&
             !options.has("--use-hpu")) {
    lines.push_back(
        "--device-memory without --device limits ranks on CPUs; for a GPU add --device cuda or "
        "--card NAME, such as --card 4090, whose kernels take other workspaces");
  }
  if (reserve > 0 && flags.device.memory_limit > 0) {
    if (reserve >= flags.device.memory_limit)
      raise<ConfigError>(
          "--reserve: expected less than the {} of a device, got {}{}; try a smaller --reserve",
          gib(flags.device.memory_limit), gib(reserve),
          machine.reserve < 0 ? ", an estimate for a --card" : "");
    flags.device.memory_limit -= reserve;
    lines.push_back(fmt::format(
        "reserve: {} of each device for the driver's context, NCCL and libraries{}; {} are left",
        gib(reserve), machine.reserve < 0 ? ", an estimate (--reserve SIZE)" : "",
        gib(flags.device.memory_limit)));
  }
  if (machine.node_memory > 0) {
    const int64_t ranks = options.ranks / machine.nodes, each = machine.node_memory / ranks;
    flags.device.host_limit =
        flags.device.host_limit > 0 ? std::min(flags.device.host_limit, each) : each;
    lines.push_back(fmt::format("host: {} of a node for {} rank{}, {} each",
                                gib(machine.node_memory), ranks, ranks == 1 ? "" : "s",
                                gib(flags.device.host_limit)));
  }
  return lines;
}

std::string peaks_file(const zero::Card& card) {
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  if (none || card.peaks[0] == '\0') return {};
  for (const char* folder : {"../share/zerograd/peaks", "../../../bench/peaks"}) {
    const std::string path =
        (program.parent_path() / folder / (std::string(card.peaks) + ".json")).string();
    if (is_regular_file(path)) return path;
  }
  return {};
}

std::string advice_table(const Run& run, const zero::Search& search, size_t found,
                         const GivenFlags& words, int64_t nodes) {
  const auto gib = [](int64_t bytes) {
    const double value = static_cast<double>(bytes) / 0x1p30;
    return fmt::format("{:.{}f}", value, value < 0.1 ? 4 : 2);
  };
  const TrainOptions& options = run.options;
  const int64_t ranks = options.ranks / nodes;
  const std::vector<std::string>& searched = searched_flags();
  std::vector<std::string> common = words.without({searched.begin(), searched.end()});
  common.insert(common.begin(), {"zerograd", options.data.source.empty() ? "plan" : "train"});
  const DeviceFlags& place = options.device_flags;
  if (!options.has("--device") && place.type != Device::Type::cpu)
    common.insert(common.end(), {"--device", name_of(place.type)});
  if (!options.has("--device-memory") && place.device.memory_limit > 0)
    common.insert(common.end(), {"--device-memory", std::to_string(place.device.memory_limit)});
  if (!options.has("--host-memory") && place.device.host_limit > 0)
    common.insert(common.end(), {"--host-memory", std::to_string(place.device.host_limit)});
  const auto limit_of = [](const zero::PlannedSetting& one) {
    return fmt::format("{}{} {:.0f} %", one.part_of_step ? "about " : "", one.tight,
                       100.0 * one.load);
  };
  const auto needs_of = [](const zero::PlannedSetting& one) {
    return one.tight == "host" ? one.bytes.host : one.bytes.device;
  };
  std::string table =
      "| | step s | device GiB a rank | host GiB a rank | a node | disk GiB a rank | a node | "
      "limit | a little more memory | command |\n"
      "|---:|---:|---:|---:|---:|---:|---:|---|---|---|";
  int row = 0;
  for (const zero::PlannedSetting& one : search.fitting) {
    const zero::SpaceBytes& bytes = one.bytes;
    const auto next = std::ranges::find_if(search.rest, [&](const zero::PlannedSetting& other) {
      return other.seconds < one.seconds;
    });
    std::string more = "none is faster";
    if (next != search.rest.end())
      more = fmt::format("{} GiB {}: {:.2f}x as fast: {}", gib(needs_of(*next)), next->tight,
                         one.seconds / next->seconds, join(flags_of(next->setting, run), " "));
    std::vector<std::string> command = common;
    const std::vector<std::string> flags = flags_of(one.setting, run, /*whole=*/true);
    command.insert(command.end(), flags.begin(), flags.end());
    table += fmt::format("\n| {} | {:.4g} | {} | {} | {} | {} | {} | {} | {} | `{}` |", ++row,
                         one.seconds, gib(bytes.device), gib(bytes.host), gib(bytes.host * ranks),
                         gib(bytes.file), gib(bytes.file * ranks), limit_of(one), more,
                         shell_line(command));
  }
  if (std::ranges::any_of(search.fitting, &zero::PlannedSetting::part_of_step))
    table +=
        "\n\nabout: not all micro-batches were planned, and all may take a few percent more; plan "
        "with "
        "the command counts them";
  return table +
         fmt::format(
             "\n\n{} settings were planned, {} of them fit; {} exceed a limit by their states and "
             "largest unit alone; {} were not planned: {}{}",
             found + search.rest.size(), found, search.bounded, search.unplanned,
             search.complete ? "slower by prediction, or probably too large" : "no time was left",
             refusals_of(search, 3));
}

}  // namespace zg::tools
