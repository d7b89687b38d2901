#include "tools/output/memory_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const BytesByPurpose& bytes) {
  Json json;
  for (int p = 0; p < purpose_count; ++p)
    json[zg::name_of(static_cast<Purpose>(p))] = bytes[static_cast<size_t>(p)];
  return json;
}

Json json_of(const MemoryRow& row) {
  Json json = {{"step", row.step},
               {"at", name_of(row.at)},
               {"live", row.live},
               {"max", row.max},
               {"reserved", row.reserved}};
  for (int s = 0; s < space_count; ++s)
    json[zg::name_of(static_cast<Space>(s))] = json_of(row.spaces[static_cast<size_t>(s)]);
  return json;
}

Json peak_json(const RankMemory& rank) {
  const MemoryRow& peak = peak_of(rank);
  int64_t live = peak.max;
  for (const MemoryRow& row : rank.rows) live = std::max(live, row.max);
  return {{"live", live},
          {"reserved", peak.reserved},
          {"step", rank.rows.empty() ? Json(nullptr) : Json(peak.step)},
          {"phase", peak.phase}};
}

Json json_of(const WireCounts& wire) {
  Json json;
  for (Collective c : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce,
                       Collective::broadcast, Collective::all_to_all, Collective::scatter}) {
    const WireCount& count = wire[static_cast<size_t>(c)];
    if (c >= Collective::broadcast && count.calls == 0) continue;  // not used by every run
    json[zg::name_of(c)] = {{"calls", count.calls}, {"bytes", count.bytes}};
  }
  return json;
}

Json json_of(const RankMemory& rank) {
  Json rows = Json::array();
  for (const MemoryRow& row : rank.rows) rows.push_back(json_of(row));
  Json json = {{"rank", rank.rank},
               {"rest",
                {{"parameter", rank.resting.parameter},
                 {"gradient", rank.resting.gradient},
                 {"optimizer", rank.resting.optimizer},
                 {"padding", rank.resting.padding}}},
               {"peak", peak_json(rank)},
               {"rows", rows},
               {"wire", json_of(rank.wire)},
               {"io", {{"read", rank.file_io.read}, {"written", rank.file_io.written}}}};
  if (rank.redo_io)
    json["redo"] = {{"read", rank.redo_io->read}, {"written", rank.redo_io->written}};
  if (rank.axes.empty()) return json;
  json["place"] = {{"stage", rank.model_slice.stage},
                   {"tensor_rank", rank.model_slice.tensor_rank},
                   {"layers", {rank.model_slice.first_layer, rank.model_slice.end_layer}},
                   {"parameters", rank.model_slice.parameters}};
  for (const AxisWire& axis : rank.axes) json["axes"][axis.axis] = json_of(axis.wire);
  return json;
}

}  // namespace

const MemoryRow& peak_of(const RankMemory& memory) {
  if (memory.rows.empty()) return memory.start.value();
  return *std::ranges::max_element(memory.rows, {}, &MemoryRow::reserved);
}

bool Needs::fit(const DeviceOptions& limits) const {
  const auto within = [](int64_t bytes, int64_t limit) { return limit == 0 || bytes <= limit; };
  return within(device, limits.memory_limit) && within(host, limits.host_limit);
}

Needs needs_of(const RankMemory& memory) {
  if (memory.rows.empty()) return needs_of(static_cast<const RankReport&>(memory));
  Needs needs;
  for (const MemoryRow& row : memory.rows) {
    needs.device = std::max(needs.device, row.reserved);
    needs.host = std::max(needs.host, row.host_max);
    needs.file = std::max(needs.file, row.file_max);
  }
  return needs;
}

Needs needs_of(const RankReport& report) {
  const auto [device, pinned, host, file] = report.reserved;
  return {.device = device, .host = pinned + host, .file = file};
}

std::string to_json(const RankMemory& rank) { return json_of(rank).dump(); }

std::string to_json(const MemoryRecord& record, const std::vector<std::string>& rank_texts) {
  Json ranks = Json::array();
  for (const std::string& rank : rank_texts) ranks.push_back(Json::parse(rank));
  Json machine;
  if (record.machine.backend == Device::Type::cpu)
    machine = {{"backend", "cpu"},
               {"isa", zg::name_of(record.machine.isa)},
               {"threads", record.machine.threads}};
  else
    machine = {{"backend", zg::name_of(record.machine.backend)}};
  machine["granule"] = arena_granule;
  const Json json = {{"schema", 1},
                     {"parameters", record.parameters},
                     {"world", record.world},
                     {"stage", record.stage},
                     {"precision", record.precision},
                     {"reduction_groups", record.reduction_groups},
                     {"steps", record.steps},
                     {"machine", machine},
                     {"ranks", ranks}};
  return json.dump();
}

void write_json(const char* flag, const std::string& path, const std::string& json) try {
  replace_text(path, json + "\n");
} catch (const FileError& error) {
  raise<FileError>("{}: {}", flag, error.what());
}

}  // namespace zg::tools
