#include "zerograd/runtime/plan.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

using Json = nlohmann::ordered_json;

/// RAII: the device reports its allocations and reads to the recorder.
class RecordingScope {
 public:
  RecordingScope(const Device& device, Recorder& recorder) : device_(device) {
    DeviceState::of(device_).ledger.set_observer(&recorder);
  }
  ~RecordingScope() { DeviceState::of(device_).ledger.set_observer(nullptr); }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  const Device device_;
};

Json json_of(const BytesByPurpose& bytes) {
  Json json;
  for (int p = 0; p < purpose_count; ++p)
    json[name_of(static_cast<Purpose>(p))] = bytes[static_cast<size_t>(p)];
  return json;
}

Json json_of(const std::array<int64_t, space_count>& bytes) {
  Json json;
  for (int s = 0; s < space_count; ++s)
    json[name_of(static_cast<Space>(s))] = bytes[static_cast<size_t>(s)];
  return json;
}

Json json_of(const RankReport& rank) {
  Json phases = Json::array();
  for (const MemoryTracker::Row& row : rank.phases)
    phases.push_back({{"phase", row.phase},
                      {"space", name_of(row.space)},
                      {"peak", row.peak},
                      {"reserved", row.reserved},
                      {"at_peak", json_of(row.live)}});
  Json wire;
  for (int c = 0; c < collective_count; ++c)
    wire[name_of(static_cast<Collective>(c))] = {
        {"calls", rank.wire[static_cast<size_t>(c)].calls},
        {"bytes", rank.wire[static_cast<size_t>(c)].bytes}};
  Json json = {{"rank", rank.rank},
               {"peak", json_of(rank.peak)},
               {"reserved", json_of(rank.reserved)},
               {"phases", phases},
               {"wire", wire},
               {"file_io", {{"read", rank.file_io.read}, {"written", rank.file_io.written}}},
               {"steps", rank.steps}};
  if (rank.refused)
    json["out_of_memory"] = {{"bytes", rank.refused->bytes},
                             {"space", name_of(rank.refused->space)},
                             {"purpose", name_of(rank.refused->purpose)},
                             {"phase", rank.refused->phase},
                             {"name", rank.refused->name}};
  return json;
}

BytesByPurpose purposes_from(const Json& json) {
  BytesByPurpose bytes{};
  for (int p = 0; p < purpose_count; ++p)
    bytes[static_cast<size_t>(p)] = json.at(name_of(static_cast<Purpose>(p)));
  return bytes;
}

std::array<int64_t, space_count> spaces_from(const Json& json) {
  std::array<int64_t, space_count> bytes{};
  for (int s = 0; s < space_count; ++s)
    bytes[static_cast<size_t>(s)] = json.at(name_of(static_cast<Space>(s)));
  return bytes;
}

Space space_from(const std::string& name) {
  for (int s = 0; s < space_count; ++s)
    if (name == name_of(static_cast<Space>(s))) return static_cast<Space>(s);
  raise<CommError>("run_ranks: a rank reports a space '{}'", name);
}

std::string description_of(const Device::Traits& machine) {
  return fmt::format("{}, {}, {} threads", machine.backend, machine.isa, machine.threads);
}

/// Reads a report that json_of() wrote in another process. `refused` is not in it, because a run
/// without an error has none.
RankReport report_from(const Json& json) {
  RankReport report{.rank = json.at("rank"),
                    .peak = spaces_from(json.at("peak")),
                    .reserved = spaces_from(json.at("reserved")),
                    .file_io = {json.at("file_io").at("read"), json.at("file_io").at("written")},
                    .steps = json.at("steps")};
  for (const Json& row : json.at("phases"))
    report.phases.push_back({row.at("phase"), space_from(row.at("space")),
                             purposes_from(row.at("at_peak")), row.at("peak"), row.at("reserved")});
  for (int c = 0; c < collective_count; ++c) {
    const Json& count = json.at("wire").at(name_of(static_cast<Collective>(c)));
    report.wire[static_cast<size_t>(c)] = {count.at("calls"), count.at("bytes")};
  }
  return report;
}

void check(int world, const Program& program) {
  if (!program) throw ConfigError("ranks: expected a program, got an empty function");
  if (world < 1) raise<ConfigError>("ranks: expected 1 or more, got {}", world);
}

void plan_rank(int rank, int world, const Program& program, const PlanOptions& options,
               const DeviceOptions& device_options, Plan& plan) {
  Recorder recorder(rank, options);
  const std::unique_ptr<Communicator> counting = counting_communicator(rank, world);
  const Device device = Device::meta(rank, device_options, options.type);
  const RankScope rank_scope(device, rank);
  {
    const RecordingScope scope(device, recorder);
    const std::unique_ptr<Communicator> ranks = recorded(*counting, recorder);
    try {
      program(*ranks, device);
      recorder.forget_refusal();
    } catch (const PlanEnd&) {
      plan.complete = false;
    } catch (const OutOfMemory&) {
      // No memory limit of the options was exceeded: this machine lacks memory, or the bytes are
      // too many to be counted.
      if (!recorder.refused() || (!device_options.memory_limit && !device_options.host_limit))
        std::rethrow_exception(cpu::of_rank(std::current_exception(), rank, world));
    } catch (...) {
      std::rethrow_exception(cpu::of_rank(std::current_exception(), rank, world));
    }
  }
  plan.machine = device.traits();
  plan.ranks.push_back(recorder.report(device));
  plan.events.push_back(recorder.take_events());
}

}  // namespace

std::vector<std::array<int64_t, space_count>> MemoryReport::peaks() const {
  std::vector<std::array<int64_t, space_count>> peaks;
  for (const RankReport& rank : ranks) peaks.push_back(rank.reserved);
  return peaks;
}

std::string MemoryReport::table() const {
  std::string text =
      "| rank | reserved MiB: device | pinned | host | file | received MiB | largest phase |\n"
      "|---:|---:|---:|---:|---:|---:|---|\n";
  const RankReport* largest = nullptr;
  for (const RankReport& rank : ranks) {
    const MemoryTracker::Row* peak = nullptr;
    for (const MemoryTracker::Row& row : rank.phases)
      if (row.space == Space::device &&
          (!peak || std::pair(row.reserved, row.peak) > std::pair(peak->reserved, peak->peak)))
        peak = &row;
    text += fmt::format("| {} |", rank.rank);
    for (int64_t bytes : rank.reserved) text += fmt::format(" {} |", mib(bytes));
    text += fmt::format(" {} | {}{} |\n", mib(received_bytes(rank.wire)), peak ? peak->phase : "",
                        rank.refused ? "; out of memory" : "");
    if (!largest || rank.reserved[0] > largest->reserved[0]) largest = &rank;
  }
  if (!largest) return text;
  text += fmt::format("\nrank {}, MiB at each phase's peak:\n\n| phase | space |", largest->rank);
  for (int p = 0; p < purpose_count; ++p)
    text += std::string(" ") + name_of(static_cast<Purpose>(p)) + " |";
  text += " peak | reserved |\n|---|---|";
  for (int p = 0; p < purpose_count + 2; ++p) text += "---:|";
  for (const MemoryTracker::Row& row : largest->phases) {
    text += fmt::format("\n| {} | {} |", row.phase, row.space);
    for (int64_t bytes : row.live) text += fmt::format(" {} |", mib(bytes));
    text += fmt::format(" {} | {} |", mib(row.peak), mib(row.reserved));
  }
  return text + "\n";
}

std::string MemoryReport::json() const {
  Json of_ranks = Json::array();
  for (const RankReport& rank : ranks) of_ranks.push_back(json_of(rank));
  return Json{{"schema", "zerograd.memory/1"},
              {"world", world},
              {"machine",
               {{"backend", name_of(machine.backend)},
                {"isa", name_of(machine.isa)},
                {"threads", machine.threads},
                {"granule", arena_granule}}},
              {"ranks", of_ranks}}
      .dump();
}

void count_step(const Device& device) {
  if (DeviceObserver* observer = DeviceState::of(device).ledger.observer()) observer->note_step();
}

Plan plan_ranks(int world, const Program& program, const PlanOptions& options) {
  check(world, program);
  if (options.steps < 0 || options.max_steps < 1 || options.max_reads < 1)
    raise<ConfigError>(
        "plan: expected steps of 0 or more and limits of 1 or more, got {}, {} and {}",
        options.steps, options.max_steps, options.max_reads);
  if (options.type == Device::Type::meta)
    throw ConfigError("plan: expected the type of the run's devices, cpu, cuda or hpu; got meta");
  DeviceOptions device_options = options.device;
  if (device_options.threads == 0) {
    const std::optional<ProcessRank> process = process_rank();
    device_options.threads = process && process->size > 1 ? threads_per_process(process->local_size)
                                                          : threads_per_rank(world);
  }
  std::vector<int> planned = options.ranks;
  if (planned.empty())
    for (int rank = 0; rank < world; ++rank) planned.push_back(rank);
  Plan plan;
  plan.world = world;
  for (int rank : planned) {
    if (rank < 0 || rank >= world)
      raise<ConfigError>("plan: expected ranks in [0, {}), got {}", world, rank);
    plan_rank(rank, world, program, options, device_options, plan);
  }
  return plan;
}

MemoryReport run_ranks(int world, const Program& program, const RunOptions& options) {
  check(world, program);
  if (options.expect && options.expect->world != world)
    raise<ConfigError>("run_ranks: expected a plan of {} ranks, got one of {}", world,
                       options.expect->world);
  MemoryReport report{.world = world};
  report.ranks.resize(static_cast<size_t>(world));
  std::mutex mutex;
  const auto run_rank = [&](Communicator& inner, const Device& device) {
    if (options.expect && options.expect->machine != device.traits())
      raise<PlanError>(
          "run_ranks: the plan was made for {}, the run has {}; expected the same; see "
          "PlanOptions::device and type",
          description_of(options.expect->machine), description_of(device.traits()));
    Recorder recorder(inner.rank(), options.expect);
    {
      const RecordingScope scope(device, recorder);
      const std::unique_ptr<Communicator> ranks = recorded(inner, recorder);
      program(*ranks, device);
    }
    const RankReport own = recorder.report(device);
    recorder.finish(own);
    const std::lock_guard lock(mutex);
    report.machine = device.traits();
    report.ranks[static_cast<size_t>(inner.rank())] = own;
  };
  const std::optional<ProcessRank> process = process_rank();
  if (!process || process->size == 1) {
    run_local(world, run_rank, options.local);
    return report;
  }
  if (process->size != world)
    raise<ConfigError>("run_ranks: expected the {} processes that were started as ranks, got {}",
                       process->size, world);
  run_processes(
      [&](Communicator& ranks, const Device& device) {
        run_rank(ranks, device);
        const std::vector<std::string> texts =
            gather_texts(ranks, json_of(report.ranks[static_cast<size_t>(ranks.rank())]).dump());
        for (size_t rank = 0; rank < texts.size(); ++rank)
          report.ranks[rank] = report_from(Json::parse(texts[rank]));
      },
      {.timeout_s = options.local.timeout_s,
       .device = options.local.device,
       .type = options.local.type,
       .dump_collectives = options.local.dump_collectives});
  return report;
}

}  // namespace zg
