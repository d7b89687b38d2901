#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

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
// fields by name. Hashes of units are left out if one has none, and a library that one process
// alone has loaded, such as a plugin of MPI.
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
  const bool have_units = in_both("units.");
  std::vector<AuditDifference> found;
  const auto add = [&](const std::string& name, const std::string& first,
                       const std::string& second) {
    const bool is_alone = first == "-" || second == "-";
    if (first != second && takes(name) && (have_units || !begins(name, "units.")) &&
        !(is_alone && begins(name, "run.build.")))
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

bool is_op(const std::string& name) { return begins(name, "ops."); }

/// An output of a record, "ops.0/compute/17 backward block.0: matmul c f32 [4, 6]".
struct Output {
  const std::string *name, *value;
  std::string track;  ///< "ops.0/compute"
  std::string in;     ///< "ops.0/compute backward block.0: matmul c f32 [4, 6]"
  std::string of;     ///< "ops.0/compute matmul c f32 [4, 6]"
  std::string shape;  ///< the same without the dtype
  size_t at;          ///< its place in the record
  const Output* pair = nullptr;
  bool is_collective() const { return track.find("/communication") != track.npos; }
};

std::vector<Output> outputs_in(const Fields& fields) {
  std::vector<Output> outputs;
  for (const auto& [name, value] : fields) {
    if (!is_op(name)) continue;
    const std::string id = name.substr(0, name.find(' '));
    const std::string track = id.substr(0, id.rfind('/'));
    const std::string of = track + name.substr(std::min(name.find(": ") + 1, name.size()));
    const size_t end = of.rfind(" ["), begin = of.rfind(' ', end - 1);
    const std::string shape = end < of.size() ? of.substr(0, begin) + of.substr(end) : of;
    outputs.push_back(
        {&name, &value, track, track + name.substr(id.size()), of, shape, outputs.size()});
  }
  return outputs;
}

// Whether the values of an output are equal: hashes, or its bytes in hex.
bool are_equal(const std::string& a, const std::string& b) {
  const auto hash_of = [](const std::string& hex) {
    std::vector<uint8_t> bytes;
    for (size_t i = 1; i + 2 < hex.size(); i += 2)
      bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return '"' + checksum(std::as_bytes(std::span(bytes))) + '"';
  };
  return a == b || (a.size() != b.size() && (hash_of(a) == b || a == hash_of(b)));
}

// Sets the pairs: first outputs of the same op with equal values, wherever they are, then those
// left of the same op and place. In a track whose names are equal in both, names decide alone.
void pair_outputs(std::vector<Output>& a, std::vector<Output>& b, bool is_equal_step) {
  std::unordered_map<std::string_view, Output*> names;          // of b
  std::unordered_map<std::string, Output*> values_a, values_b;  // by op and value
  std::unordered_map<std::string_view, int64_t> counts;         // in a, less those in b
  std::unordered_map<std::string_view, bool> is_moved;          // by track: their names differ
  for (Output& y : b) {
    names[*y.name] = &y;
    values_b.emplace(y.of + *y.value, &y);
    --counts[y.in];
    --counts[y.track];
  }
  for (Output& x : a) {
    values_a.emplace(x.of + *x.value, &x);
    ++counts[x.in];
    ++counts[x.track];
    is_moved[x.track] |= !names.contains(*x.name);
  }
  for (auto& [track, moved] : is_moved) moved |= counts[track] != 0;
  std::unordered_map<std::string_view, std::vector<Output*>> left;  // of b, the first at the end
  for (Output& y : b | std::views::reverse)
    if (const auto found = values_a.find(y.of + *y.value); found != values_a.end())
      y.pair = found->second;
    else
      left[y.in].push_back(&y);
  for (Output& x : a) {
    if (!is_moved[x.track]) {
      x.pair = names[*x.name];
      names[*x.name]->pair = &x;
    } else if (const auto found = values_b.find(x.of + *x.value); found != values_b.end()) {
      x.pair = found->second;
    } else if (auto& others = left[x.in];
               !others.empty() && (counts[x.in] == 0 || !(is_equal_step || x.is_collective()))) {
      x.pair = others.back();
      others.back()->pair = &x;
      others.pop_back();
    }
  }
}

// The outputs that differ, in the order of `b`. `is_equal_step`: no other field of the step does.
std::vector<AuditDifference> different_ops(const Fields& fields_a, const Fields& fields_b,
                                           bool is_equal_step) {
  std::vector<Output> a = outputs_in(fields_a), b = outputs_in(fields_b);
  if (a.empty() || b.empty()) return {};
  pair_outputs(a, b, is_equal_step);
  // Buckets divide collectives: one that a record alone has counts if the dtype alone is another.
  // Recomputation divides fused ops: one whose value another op of the other record has is equal.
  struct Known {
    std::unordered_set<std::string_view> unpaired_shapes, values;
    explicit Known(const std::vector<Output>& outputs) {
      for (const Output& output : outputs) {
        values.insert(*output.value);
        if (!output.pair) unpaired_shapes.insert(output.shape);
      }
    }
  };
  const auto is_alone = [&](const Output& output, const Known& others) {
    return !output.pair && !is_equal_step &&
           (output.is_collective() ? others.unpaired_shapes.contains(output.shape)
                                   : !others.values.contains(*output.value));
  };
  const Known of_a(a), of_b(b);
  std::multimap<size_t, AuditDifference> found;  // by place
  size_t place = 0;
  for (const Output& x : a) {
    if (x.pair) place = 2 * x.pair->at + 2;
    if (x.pair && !are_equal(*x.value, *x.pair->value))
      found.insert(
          {place,
           {*x.name, *x.value, *x.pair->value, *x.name == *x.pair->name ? "" : *x.pair->name}});
    else if (is_alone(x, of_b))
      found.insert({place + 1, {*x.name, *x.value, "-"}});
  }
  for (const Output& y : b)
    if (is_alone(y, of_a)) found.insert({2 * y.at + 2, {*y.name, "-", *y.value}});
  std::vector<AuditDifference> ops;
  for (auto& [at, difference] : found) ops.push_back(std::move(difference));
  return ops;
}

}  // namespace

namespace {

/// A line whose hash is that of its text.
struct ChainedLine {
  Json json;
  std::string hash, where;  ///< `where`: file, line and step, for errors
};

// Throws FileError unless the line is whole and follows a record with the hash `last_hash`.
ChainedLine chained(const std::string& path, int64_t number, const std::string& line,
                    const std::string& last_hash) {
  const size_t suffix = before_hash.size() + hash_digits + after_hash.size();
  const std::string_view text =
      std::string_view(line).substr(0, line.size() - std::min(line.size(), suffix));
  ChainedLine found{.hash = checksum(std::as_bytes(std::span(text)))};
  try {
    found.json = parse_json_object<Json>(line, path, {.line = number});
  } catch (const FileError& error) {
    raise<FileError>("{}; expected a record of an audit trail", error.what());
  }
  const Json& json = found.json;
  found.where = fmt::format("{}: line {}{}", path, number, step_in(json));
  if (!json.contains("hash") || !json.contains("previous"))
    raise<FileError>("{}: expected a record of an audit trail, got an object without its hashes",
                     found.where);
  if (line != fmt::format("{}{}{}{}", text, before_hash, found.hash, after_hash))
    raise<FileError>(
        "{}: the record was changed: expected the hash {} of its text, got {}; every record "
        "after it is in doubt",
        found.where, found.hash, printable(json["hash"].dump()));
  if (const Json& previous = json["previous"]; previous != last_hash)
    raise<FileError>(
        "{}: records before it were added, removed or replaced: expected the previous hash '{}', "
        "got {}",
        found.where, last_hash, printable(previous.dump(), 60));
  return found;
}

}  // namespace

AuditTrail AuditTrail::read(const std::string& path) {
  AuditTrail trail{.path = path};
  std::ifstream file(path, std::ios::binary);
  if (!file) raise<FileError>("{} cannot be read: {}", path, std::strerror(errno));
  int64_t number = 0, next = -1, interval = 0;
  for (std::string line; std::getline(file, line);) {
    trail.is_cut = file.eof();
    if (trail.is_cut) break;
    ++number;
    auto [json, own, where] = chained(path, number, line, trail.last_hash);
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
    for (const char* hash : {"previous", "hash"}) json.erase(hash);
    const size_t run = is_step ? trail.records.back().run : trail.records.size();
    Record& record = trail.records.emplace_back(Record{.is_step = is_step,
                                                       .step = at,
                                                       .line = number,
                                                       .begin = trail.bytes,
                                                       .run = run,
                                                       .hash = own});
    flatten(json, "", record.fields);
    for (const auto& [name, value] : record.fields)
      if (name == "layout.interval") interval = std::strtoll(value.c_str(), nullptr, 10);
    if (is_step && interval > 0 && next % interval == 0 && !json.contains("units"))
      raise<FileError>(
          "{}: the record was changed: expected hashes of units, as after every {} steps, got none",
          where, interval);
    trail.last_hash = own;
    trail.bytes += std::ssize(line) + 1;
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
    const bool with_units = result.step.empty();
    auto fields = differences(record.fields, other->fields, [&](const std::string& name) {
      return !is_op(name) && (with_units || !begins(name, "units."));
    });
    if (in_runs(step, is_layout).empty()) {
      const auto ops = different_ops(record.fields, other->fields, with_units && fields.empty());
      const auto units = std::ranges::find_if(fields, [](const AuditDifference& difference) {
        return begins(difference.field, "units.");
      });
      fields.insert(units, ops.begin(), ops.end());
    }
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
