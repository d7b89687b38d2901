#include "zerograd/zero/audit_ops.h"

#include <algorithm>
#include <chrono>
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
  const std::string place =
      is_kernel ? fmt::format("{} {}", device.memory().phase(), device.memory().name())
                : "collective";
  std::string track = call.track;
  std::erase(track, ' ');
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
    // The clock of all processes of a machine, so that a call comes after those that it depends on.
    add(std::chrono::steady_clock::now().time_since_epoch().count(), track, place,
        fmt::format("{} {} {} {}", call.name, name, tensor.dtype(), tensor.shape()), bytes);
  }
}

void AuditedOps::note_masters() {
  const Parameter* current = nullptr;
  std::vector<float> values;
  // In the model's order, before all that has a time.
  const int64_t stage = engine_.mesh() ? engine_.mesh()->stage : 0;
  const auto flush = [&] {
    if (current)
      add(INT64_MIN + (stage << 32) + current->index, "masters",
          "before the step " + current->unit->name,
          fmt::format("{} f32 [{}]", current->name, values.size()),
          std::as_bytes(std::span(values)));
    values.clear();
  };
  engine_.visit_masters([&](const Parameter& parameter, int64_t, std::span<const float> x) {
    if (&parameter != current) flush();
    current = &parameter;
    values.insert(values.end(), x.begin(), x.end());
  });
  flush();
}

Json AuditedOps::end(Communicator* group) {
  watch_.reset();
  if (failure_) std::rethrow_exception(failure_);
  if (group) {
    Json own = Json::array();
    for (const Entry& entry : entries_) own.push_back({entry.ns, entry.name, entry.hash});
    entries_.clear();
    for (const std::string& text : gather_texts(*group, own.dump()))
      for (const Json& entry : Json::parse(text))
        entries_.push_back({entry[0], entry[1], entry[2]});
    std::ranges::stable_sort(entries_, {}, &Entry::ns);
  }
  Json ops = Json::object();  // names differ by their numbers: no search for an equal one
  for (Entry& entry : entries_)
    ops.get_ref<Json::object_t&>().emplace_back(std::move(entry.name), std::move(entry.hash));
  return ops;
}

}  // namespace zg::zero
