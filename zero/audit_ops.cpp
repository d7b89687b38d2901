#include "zerograd/zero/audit_ops.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {

using Json = nlohmann::ordered_json;

AuditedOps::AuditedOps(const Engine& engine, std::string tensor)
    : engine_(engine), tensor_(std::move(tensor)) {
  const Device& device = engine.device();
  device.compute().synchronize();
  has_own_trace_ = !device.trace();
  if (has_own_trace_) device.set_trace(std::make_shared<Trace>(), engine.world().rank());
  note_masters();
  watch_ = device.trace()->watch([this](const Trace::Call& call) {
    try {
      note(call);
    } catch (...) {  // a watch must not throw
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
  });
}

AuditedOps::~AuditedOps() {
  watch_.reset();
  if (has_own_trace_) engine_.device().set_trace(nullptr);
}

void AuditedOps::add(int64_t ns, const std::string& track, const std::string& place,
                     const std::string& of, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  std::string id = fmt::format("{}/{}/{}", engine_.world().rank(), track, counts_[track]++);
  std::string value;
  if (id == tensor_)
    for (const std::byte byte : bytes) value += fmt::format("{:02x}", static_cast<int>(byte));
  else
    value = checksum(bytes);
  entries_.push_back({ns, fmt::format("{} {}: {}", id, place, of), std::move(value)});
}

void AuditedOps::note(const Trace::Call& call) {
  const Device& device = engine_.device();
  const bool is_kernel = call.kind == Trace::Kind::kernel;
  if (!(call.stream.device() == device) || (is_kernel && std::this_thread::get_id() != thread_))
    return;
  // A collective runs beside the phases of its rank; its name has the unit.
  std::string place = "collective";
  if (is_kernel) {
    const std::string unit = device.memory().name();
    place = device.memory().phase() + (unit.empty() ? "" : " " + unit);
  }
  std::string track = call.track;
  std::erase(track, ' ');
  // A collective is where the program calls it: after its inputs, and before those that wait for
  // it.
  const int64_t ns = is_kernel ? device.trace()->now_ns() : call.queued_ns;
  if (!is_kernel) {
    const std::lock_guard lock(mutex_);
    std::string id = fmt::format("{}/{}", track, calls_[track]++);
    for (const int rank : call.ranks) id += fmt::format(" {}", rank);
    entries_.push_back({.ns = ns, .call = std::move(id)});
  }
  for (const auto& [name, tensor] : call.outputs) {
    if (!tensor || tensor.numel() == 0) continue;
    std::span<const std::byte> bytes(tensor.raw(), static_cast<size_t>(tensor.bytes()));
    std::vector<std::byte> copied;
    if (!host_reaches(tensor)) {
      copied.resize(bytes.size());
      call.stream.copy(copied.data(), bytes.data(), bytes.size());
      call.stream.synchronize();
      bytes = copied;
    }
    add(ns, track, place,
        fmt::format("{} {} {} {}", call.name, name, tensor.dtype(), tensor.shape()), bytes);
  }
}

void AuditedOps::note_masters() {
  const Parameter* current = nullptr;
  std::vector<float> values;
  const auto flush = [&] {
    if (current)
      add(INT64_MIN + current->index, "masters",  // in the model's order, before all with a time
          "before the step " + current->unit->name,
          fmt::format("{} f32 [{}]", current->name, values.size()),
          std::as_bytes(std::span(values)));
    values.clear();
  };
  engine_.visit_masters([&](const Parameter& parameter, int64_t, std::span<const float> x, bool) {
    if (&parameter != current) flush();
    current = &parameter;
    values.insert(values.end(), x.begin(), x.end());
  });
  flush();
}

Json AuditedOps::end(Communicator* group) {
  watch_.reset();
  if (failure_) std::rethrow_exception(failure_);
  std::ranges::stable_sort(entries_, {}, &Entry::ns);
  Json own = Json::array();
  for (const Entry& entry : entries_) own.push_back({entry.name, entry.hash, entry.call});
  std::vector<Json> ranks;
  for (const std::string& text : group ? gather_texts(*group, own.dump()) : std::vector{own.dump()})
    ranks.push_back(Json::parse(text));
  std::map<std::string, size_t> members;  // by collective, those that have not left it
  for (const Json& entries : ranks)
    for (const Json& entry : entries) ++members[entry[2]];
  std::vector<size_t> at(ranks.size());
  Json ops = Json::object();  // names differ by their numbers: no search for an equal one
  // Each rank goes on to its next collective; those leave one that all have reached. If ranks call
  // collectives in different orders, none is such, and those at the first by name leave it.
  for (;;) {
    std::map<std::string, std::vector<size_t>> arrived;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (; at[rank] < ranks[rank].size(); ++at[rank]) {
        const Json& entry = ranks[rank][at[rank]];
        if (entry[2] != "") {
          arrived[entry[2]].push_back(rank);
          break;
        }
        ops.get_ref<Json::object_t&>().emplace_back(entry[0], entry[1]);
      }
    if (arrived.empty()) return ops;
    auto leaves = std::ranges::find_if(
        arrived, [&](const auto& call) { return call.second.size() == members[call.first]; });
    if (leaves == arrived.end()) leaves = arrived.begin();
    for (const size_t rank : leaves->second) ++at[rank];
    members[leaves->first] -= leaves->second.size();
  }
}

}  // namespace zg::zero
