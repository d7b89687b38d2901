#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <unordered_map>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/zero/audit.h"

namespace zg::zero {
namespace {

using Json = nlohmann::ordered_json;
using Record = AuditTrail::Record;
using Fields = AuditTrail::Fields;

constexpr std::string_view before_hash = ",\"hash\":\"", after_hash = "\"}";
constexpr size_t hash_digits = 32;

void flatten(const Json& json, const std::string& prefix, Fields& fields) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object())
      flatten(value, prefix + name + ".", fields);
    else
      fields.emplace_back(prefix + name, value.dump());
  }
}

// The step of a line whose hash is not checked yet: ", step 5".
std::string step_in(const Json& json) {
  const auto found = json.find("step");
  return found != json.end() && found->is_number_integer()
             ? fmt::format(", step {}", found->get<int64_t>())
             : "";
}

bool begins(const std::string& text, const char* prefix) { return text.starts_with(prefix); }

// The interval of an audit is not a part of the layout.
bool is_layout(const std::string& name) {
  return begins(name, "layout.") && name != "layout.interval";
}

// The fields of both that differ, in the order of `a`, then those of `b` alone. `takes` chooses
// fields by name. Hashes of units, and of ops, are left out if one has none.
template <class Takes>
std::vector<AuditDifference> differences(const Fields& a, const Fields& b, const Takes& takes) {
  const auto has = [](const Fields& fields, const char* prefix) {
    return std::ranges::any_of(fields,
                               [&](const auto& field) { return begins(field.first, prefix); });
  };
  const auto in_both = [&](const char* prefix) { return has(a, prefix) && has(b, prefix); };
  const bool have_units = in_both("units."), have_ops = in_both("ops.");
  const auto compared = [&](const std::string& name) {
    return takes(name) && (have_units || !begins(name, "units.")) &&
           (have_ops || !begins(name, "ops."));
  };
  const auto by_name = [](const Fields& fields) {
    std::unordered_map<std::string_view, const std::string*> values;
    for (const auto& [name, value] : fields) values[name] = &value;
    return values;
  };
  const auto of_a = by_name(a), of_b = by_name(b);
  std::vector<AuditDifference> found;
  for (const auto& [name, value] : a) {
    const auto other = of_b.find(name);
    if (compared(name) && (other == of_b.end() || *other->second != value))
      found.push_back({name, value, other == of_b.end() ? "-" : *other->second});
  }
  for (const auto& [name, value] : b)
    if (!of_a.contains(name) && compared(name)) found.push_back({name, "-", value});
  return found;
}

}  // namespace

AuditTrail AuditTrail::read(const std::string& path) {
  AuditTrail trail{.path = path};
  std::ifstream file(path, std::ios::binary);
  if (!file) raise<FileError>("{} cannot be read: {}", path, std::strerror(errno));
  int64_t number = 0, next = -1;
  for (std::string line; std::getline(file, line);) {
    trail.is_cut = file.eof();
    if (trail.is_cut) break;
    ++number;
    const size_t suffix = before_hash.size() + hash_digits + after_hash.size();
    const size_t end = line.size() - std::min(line.size(), suffix);
    const std::string_view text = std::string_view(line).substr(0, end);
    const std::string hash =
        line.substr(line.size() - std::min(line.size(), hash_digits + 2), hash_digits);
    Json json;
    try {
      json = parse_json_object<Json>(line, path, {.line = number});
    } catch (const FileError& error) {
      raise<FileError>("{}; expected a record of an audit trail", error.what());
    }
    const std::string where = fmt::format("{}: line {}{}", path, number, step_in(json));
    const std::string own = checksum(std::as_bytes(std::span(text)));
    if (line != fmt::format("{}{}{}{}", text, before_hash, own, after_hash))
      raise<FileError>(
          "{}: the record was changed: expected the hash {} of its text, got {}; every record "
          "after "
          "it is in doubt",
          where, own, printable(hash));
    if (const Json previous = json.value("previous", Json()); previous != trail.last_hash)
      raise<FileError>(
          "{}: records before it were added, removed or replaced: expected the previous hash '{}', "
          "got {}",
          where, trail.last_hash, printable(previous.dump(), 60));
    const bool is_step = json.contains("step");
    const Json step = json.value(is_step ? "step" : "before_step", Json());
    if (!step.is_number_integer() || (is_step && step != next) || step < next)
      raise<FileError>("{}: expected {}, got {}", where,
                       next < 0 ? "the record that begins a run" : fmt::format("step {}", next),
                       is_step ? fmt::format("step {}", step.dump()) : step.dump());
    next = step.get<int64_t>() + (is_step ? 1 : 0);
    for (const char* chained : {"previous", "hash"}) json.erase(chained);
    Record& record = trail.records.emplace_back(Record{
        .is_step = is_step, .step = step, .line = number, .begin = trail.bytes, .hash = own});
    flatten(json, "", record.fields);
    trail.last_hash = own;
    trail.bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return trail;
}

const Record* AuditTrail::step(int64_t step) const {
  const auto found = std::ranges::partition_point(
      records, [&](const Record& record) { return record.step + record.is_step <= step; });
  return found != records.end() && found->is_step && found->step == step ? &*found : nullptr;
}

const Record& AuditTrail::run_of(int64_t step) const {
  const Record* run = &records.front();
  for (const Record& record : records)
    if (!record.is_step && record.step <= step) run = &record;
  return *run;
}

Fields AuditTrail::units_before(int64_t before) const {
  const Record* record = step(before - 1);
  for (const Record& begin : records)
    if (!begin.is_step && begin.step == before) record = &begin;
  Fields units = record ? record->fields : Fields();
  std::erase_if(units, [](const auto& field) { return !begins(field.first, "units."); });
  return units;
}

std::vector<AuditDifference> compare(const Fields& a, const Fields& b) {
  return differences(a, b, [](const std::string&) { return true; });
}

AuditComparison compare(const AuditTrail& a, const AuditTrail& b, int64_t first, int64_t last) {
  AuditComparison result;
  for (const Record& record : a.records) {
    if (!record.is_step || record.step < first || record.step > last) continue;
    const Record* other = b.step(record.step);
    if (!other) continue;
    const auto same_layout = [&] {
      return differences(a.run_of(record.step).fields, b.run_of(record.step).fields, is_layout)
          .empty();
    };
    const bool with_ops = same_layout();
    result.step = differences(record.fields, other->fields, [&](const std::string& name) {
      return with_ops || !begins(name, "ops.");
    });
    if (!result.step.empty()) {
      result.differs_at = record.step;
      break;
    }
    result.equal.push_back(record.step);
  }
  if (a.records.empty() || b.records.empty()) return result;
  const int64_t step = result.differs_at.value_or(result.equal.empty() ? 0 : result.equal.back());
  const Record &run = a.run_of(step), &other = b.run_of(step);
  result.layout = differences(run.fields, other.fields, is_layout);
  const bool same_begin = run.step == other.step;
  result.settings = differences(run.fields, other.fields, [&](const std::string& name) {
    return begins(name, "run.") || begins(name, "settings.") ||
           (same_begin && begins(name, "units."));
  });
  return result;
}

}  // namespace zg::zero
