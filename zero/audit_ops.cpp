#include "zerograd/zero/audit_ops.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {

using Json = nlohmann::ordered_json;

std::vector<std::string> gather_sealed(Communicator* group, const Json& own) {
  std::string text = own.dump();
  text = checksum(std::as_bytes(std::span(text))) + text;
  return group ? gather_texts(*group, text) : std::vector{text};
}

Json opened(const std::string& text, size_t rank) {
  const size_t digits = checksum({}).size();
  const std::string json = text.substr(std::min(digits, text.size()));
  if (checksum(std::as_bytes(std::span(json))) + json != text)
    raise<CommError>(
        "audit: the text of rank {} is not what the rank has sent: expected its checksum, got {}; "
        "a message was damaged; try to resume from the last checkpoint",
        rank, printable(text, 60));
  return Json::parse(json);
}

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

size_t AuditedOps::add(int64_t ns, const std::string& track, const std::string& place,
                       const std::string& of, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  std::string id = fmt::format("{}/{}/{}", engine_.world().rank(), track, counts_[track]++);
  std::string value;
  if (id == tensor_)
    for (const std::byte byte : bytes) value += fmt::format("{:02x}", static_cast<int>(byte));
  else
    value = checksum(bytes);
  entries_.push_back({ns, fmt::format("{} {}: {}", id, place, of), std::move(value)});
  return entries_.size() - 1;
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
  // it. A rank that only receives may call it long before: there it is where the program waits.
  const int64_t ns =
      call.kind == Trace::Kind::collective ? call.queued_ns : device.trace()->now_ns();
  const bool sends = std::ranges::find(call.ranks, engine_.world().rank()) != call.ranks.end();
  std::vector<Received> received;
  if (!is_kernel) {
    const std::lock_guard lock(mutex_);
    if (call.kind == Trace::Kind::wait) {
      std::erase_if(received_[track], [&](const Received& one) {
        const bool is_awaited = one.queued_ns <= call.queued_ns;
        if (is_awaited) entries_[one.entry].ns = ns;
        return is_awaited;
      });
      return;
    }
    std::string id = fmt::format("{}/{}", track, calls_[track]++);
    for (const int rank : call.ranks) id += fmt::format(" {}", rank);
    received.push_back({call.queued_ns, entries_.size()});
    entries_.push_back({.ns = ns, .call = std::move(id), .sends = sends});
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
    const size_t entry =
        add(ns, track, place,
            fmt::format("{} {} {} {}", call.name, name, tensor.dtype(), tensor.shape()), bytes);
    received.push_back({call.queued_ns, entry});
  }
  if (is_kernel || sends) return;
  const std::lock_guard lock(mutex_);
  auto& all = received_[track];
  all.insert(all.end(), received.begin(), received.end());
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
  for (const Entry& entry : entries_)
    own.push_back({entry.name, entry.hash, entry.call, entry.sends});
  std::vector<std::vector<Entry>> ranks;
  for (const std::string& text : gather_sealed(group, own)) {
    const Json entries = opened(text, ranks.size());
    std::vector<Entry>& of_rank = ranks.emplace_back();
    for (const Json& entry : entries)
      of_rank.push_back({.name = entry[0], .hash = entry[1], .call = entry[2], .sends = entry[3]});
  }
  return merged(ranks);
}

// Takes the outputs of each rank up to its next collective, again and again. Ranks pass a
// collective when all its senders have reached it. If ranks call collectives in different orders,
// there may be none such; then the ranks at the first one by name pass.
Json AuditedOps::merged(const std::vector<std::vector<Entry>>& ranks) {
  std::map<std::string, size_t> senders;  // by collective, those that have not reached it
  for (const std::vector<Entry>& entries : ranks)
    for (const Entry& entry : entries) senders[entry.call] += entry.sends;
  std::vector<size_t> at(ranks.size());
  std::vector<bool> is_counted(ranks.size());
  Json ops = Json::object();  // names differ by their numbers: no search for an equal one
  for (;;) {
    std::map<std::string, std::vector<size_t>> arrived;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (; at[rank] < ranks[rank].size(); ++at[rank]) {
        const Entry& entry = ranks[rank][at[rank]];
        if (!entry.call.empty()) {
          arrived[entry.call].push_back(rank);
          if (entry.sends && !is_counted[rank]) --senders[entry.call];
          is_counted[rank] = true;
          break;
        }
        ops.get_ref<Json::object_t&>().emplace_back(entry.name, entry.hash);
      }
    if (arrived.empty()) return ops;
    const bool is_stuck =
        std::ranges::none_of(arrived, [&](const auto& call) { return senders[call.first] == 0; });
    for (const auto& [call, waiting] : arrived) {
      if (senders[call] > 0 && !(is_stuck && call == arrived.begin()->first)) continue;
      for (const size_t rank : waiting) {
        ++at[rank];
        is_counted[rank] = false;
      }
    }
  }
}

}  // namespace zg::zero
