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
// fields by name. Hashes of units, and of ops, are left out if one has none, and a library that one
// process alone has loaded, such as a plugin of MPI.
template <class Takes>
std::vector<AuditDifference> differences(const Fields& a, const Fields& b, const Takes& takes) {
  const auto by_name = [](const Fields& fields) {
    std::unordered_map<std::string_view, const std::string*> values;
    for (const auto& [name, value] : fields) values[name] = &value;
    return values;
  };
  const auto of_a = by_name(a), of_b = by_name(b);
  const auto in_both = [&](const char* prefix) {
    const auto has = [&](const auto& field) { return begins(field.first, prefix); };
    return std::ranges::any_of(a, has) && std::ranges::any_of(b, has);
  };
  const bool have_units = in_both("units."), have_ops = in_both("ops.");
  std::vector<AuditDifference> found;
  const auto add = [&](const std::string& name, const std::string& first,
                       const std::string& second) {
    const bool is_alone = first == "-" || second == "-";
    if (first != second && takes(name) && (have_units || !begins(name, "units.")) &&
        (have_ops || !begins(name, "ops.")) && !(is_alone && begins(name, "run.build.")))
      found.push_back({name, first, second});
  };
  for (const auto& [name, value] : a) {
    const auto other = of_b.find(name);
    add(name, value, other == of_b.end() ? "-" : *other->second);
  }
  for (const auto& [name, value] : b)
    if (!of_a.contains(name)) add(name, "-", value);
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
    Json json;
    try {
      json = parse_json_object<Json>(line, path, {.line = number});
    } catch (const FileError& error) {
      raise<FileError>("{}; expected a record of an audit trail", error.what());
    }
    const std::string where = fmt::format("{}: line {}{}", path, number, step_in(json));
    if (!json.contains("hash") || !json.contains("previous"))
      raise<FileError>("{}: expected a record of an audit trail, got an object without its hashes",
                       where);
    const std::string own = checksum(std::as_bytes(std::span(text)));
    if (line != fmt::format("{}{}{}{}", text, before_hash, own, after_hash))
      raise<FileError>(
          "{}: the record was changed: expected the hash {} of its text, got {}; every record "
          "after it is in doubt",
          where, own, printable(json["hash"].dump()));
    if (const Json& previous = json["previous"]; previous != trail.last_hash)
      raise<FileError>(
          "{}: records before it were added, removed or replaced: expected the previous hash '{}', "
          "got {}",
          where, trail.last_hash, printable(previous.dump(), 60));
    const bool is_step = json.contains("step");
    const Json run_of = json.value("run", Json());
    if (const Json schema = run_of.is_object() ? run_of.value("schema", Json()) : Json();
        !is_step && schema != audit_schema)
      raise<FileError>("{}: expected a run of \"{}\", got {}: the audit is of another version",
                       where, audit_schema, printable(schema.dump(), 60));
    const Json step = json.value(is_step ? "step" : "before_step", Json());
    const int64_t at = step.is_number_unsigned() && step < INT64_MAX ? step.get<int64_t>() : -1;
    if (at < std::max<int64_t>(next, 0) || (is_step && at != next))
      raise<FileError>("{}: expected {}, got {}", where,
                       next < 0 ? "the record that begins a run" : fmt::format("step {}", next),
                       is_step ? fmt::format("step {}", step.dump()) : step.dump());
    next = at + (is_step ? 1 : 0);
    for (const char* chained : {"previous", "hash"}) json.erase(chained);
    const size_t run = is_step ? trail.records.back().run : trail.records.size();
    Record& record = trail.records.emplace_back(Record{.is_step = is_step,
                                                       .step = at,
                                                       .line = number,
                                                       .begin = trail.bytes,
                                                       .run = run,
                                                       .hash = own});
    flatten(json, "", record.fields);
    trail.last_hash = own;
    trail.bytes += static_cast<int64_t>(line.size()) + 1;
  }
  if (file.bad()) raise<FileError>("{} cannot be read: {}", path, std::strerror(errno));
  return trail;
}

size_t AuditTrail::records_before(int64_t step) const {
  const auto end = std::ranges::partition_point(
      records, [&](const Record& record) { return record.step + record.is_step <= step; });
  return static_cast<size_t>(end - records.begin());
}

const Record* AuditTrail::step(int64_t step) const {
  const size_t before = records_before(step);
  return before < records.size() && records[before].step == step ? &records[before] : nullptr;
}

const Record& AuditTrail::run_of(int64_t step) const {
  return records[records[std::max<size_t>(records_before(step), 1) - 1].run];
}

Fields AuditTrail::units_before(int64_t step) const {
  const size_t before = records_before(step);
  if (before == 0 || records[before - 1].step + records[before - 1].is_step != step) return {};
  Fields units = records[before - 1].fields;
  std::erase_if(units, [](const auto& field) { return !begins(field.first, "units."); });
  return units;
}

std::vector<AuditDifference> compare(const Fields& a, const Fields& b) {
  return differences(a, b, [](const std::string&) { return true; });
}

AuditComparison compare(const AuditTrail& a, const AuditTrail& b, int64_t first, int64_t last) {
  AuditComparison result;
  const auto in_runs = [&](int64_t step, const auto& takes) {
    return differences(a.run_of(step).fields, b.run_of(step).fields, takes);
  };
  for (const Record& record : a.records) {
    const int64_t step = record.step;
    if (!record.is_step || step < first || step > last) continue;
    const Record* other = b.step(step);
    if (!other) continue;
    result.step = compare(a.units_before(step), b.units_before(step));
    const bool with_units = result.step.empty(), with_ops = in_runs(step, is_layout).empty();
    const auto fields = differences(record.fields, other->fields, [&](const std::string& name) {
      return begins(name, "ops.") ? with_ops : with_units || !begins(name, "units.");
    });
    result.step.insert(result.step.end(), fields.begin(), fields.end());
    if (!result.step.empty()) {
      result.differs_at = step;
      break;
    }
    result.equal.push_back(step);
  }
  if (a.records.empty() || b.records.empty()) return result;
  const int64_t step = result.differs_at.value_or(result.equal.empty() ? 0 : result.equal.back());
  result.layout = in_runs(step, is_layout);
  result.settings = in_runs(step, [](const std::string& name) {
    return begins(name, "run.") || begins(name, "settings.");
  });
  std::ranges::stable_partition(result.settings, [](const AuditDifference& difference) {
    return !begins(difference.field, "run.build.");
  });
  return result;
}

std::string more_steps(const AuditTrail& a, const AuditTrail& b) {
  std::vector<int64_t> more;
  for (const Record& record : a.records)
    if (record.is_step && !b.step(record.step)) more.push_back(record.step);
  return more.empty() ? ""
                      : fmt::format("{} has {} more steps, {} to {}", a.path, more.size(),
                                    more.front(), more.back());
}

}  // namespace zg::zero
