#include "zerograd/zero/diverge.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

using Fields = AuditTrail::Fields;
using Differences = std::vector<AuditDifference>;

/// RAII: a file without a name that this process and its children open by this path.
struct UnnamedFile {
  const int descriptor = memfd_create("audit", 0);
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  UnnamedFile() {
    if (descriptor < 0) raise<FileError>("replay: memfd_create: {}", std::strerror(errno));
  }
  ~UnnamedFile() { close(descriptor); }
  UnnamedFile(const UnnamedFile&) = delete;
};

// Where a replay begins that shall have the state before `step`.
int64_t begin_before(const AuditedRun& run, int64_t step) {
  int64_t begin = -1;
  if (run.trail.records.empty() || run.trail.records.front().step == 0) begin = 0;
  for (const int64_t steps : run.checkpoints)
    if (steps <= step) begin = std::max(begin, steps);
  if (begin < 0)
    raise<ConfigError>(
        "replay: {}: expected a checkpoint of at most {} steps, got none; the record begins with "
        "step {}; try the folder of its checkpoints, if it was moved",
        run.trail.path, step, run.trail.records.front().step);
  return begin;
}

AuditTrail replay(const AuditedRun& run, int64_t first, int64_t end, AuditOptions audit = {}) {
  const UnnamedFile file;
  audit.path = file.path;
  audit.interval = 1;
  run.replay(first, end, audit);
  AuditTrail trail = AuditTrail::read(file.path);
  trail.path = "the replay of " + run.trail.path;
  for (const int64_t step : {first, end - 1})
    if (end != INT64_MAX && !trail.step(step))
      raise<ConfigError>("replay: {}: expected steps {} to {}, got a run without step {}",
                         run.trail.path, first, end - 1, step);
  return trail;
}

// The steps from `first` to `last` whose ops one of the records has, to compute these again.
AuditOptions with_ops(std::initializer_list<const AuditTrail*> trails, int64_t first,
                      int64_t last) {
  AuditOptions audit{.first_op_step = INT64_MAX};
  for (const AuditTrail* trail : trails)
    for (const AuditTrail::Record& record : trail->records) {
      const auto is_op = [](const auto& field) { return field.first.starts_with("ops."); };
      if (!record.is_step || record.step < first || record.step > last ||
          std::ranges::none_of(record.fields, is_op))
        continue;
      audit.first_op_step = std::min(audit.first_op_step, record.step);
      audit.end_op_step = std::max(audit.end_op_step, record.step + 1);
    }
  return audit;
}

// "c f32 [44, 96]": the dtype is the word before the shape.
std::optional<DType> dtype_in(const std::string& op) {
  const std::string words = op.substr(0, op.rfind(" ["));
  const std::string word = words.substr(words.rfind(' ') + 1);
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
    if (word == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  return std::nullopt;
}

// The first element that differs of two outputs in hex.
std::optional<Divergence::Element> first_difference(const std::string& a, const std::string& b,
                                                    DType dtype) {
  const auto digits = static_cast<size_t>(2 * size_of(dtype));
  const auto at = std::ranges::mismatch(a, b).in1 - a.begin() - 1;  // after a quote
  const size_t index = static_cast<size_t>(at) / digits;
  const size_t begin = 1 + index * digits;
  if (a.size() != b.size() || begin + digits > a.size()) return std::nullopt;
  const auto shown = [&](const std::string& hex) {
    std::vector<uint8_t> bytes;
    std::string bits;
    for (size_t i = begin; i < begin + digits; i += 2) {
      bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
      bits = hex.substr(i, 2) + bits;
    }
    const Tensor x =
        Tensor::from(bytes, {size_of(dtype)}, Device::cpu(0, {.threads = 1, .separate = true}));
    return fmt::format("{} (0x{})", static_cast<float>(x.alias(0, {1}, dtype).item()), bits);
  };
  return Divergence::Element{static_cast<int64_t>(index), shown(a), shown(b)};
}

// At most three fields, with both values.
std::string text_of(const Differences& fields) {
  constexpr size_t shown = 3, width = 60;
  std::string text;
  for (size_t i = 0; i < std::min(shown, fields.size()); ++i)
    text += fmt::format("{}{}: {} and {}", i ? "; " : "", fields[i].field,
                        printable(fields[i].first, width), printable(fields[i].second, width));
  if (fields.size() > shown) text += fmt::format("; and {} more", fields.size() - shown);
  return text;
}

bool is_op(const AuditDifference& difference) { return difference.field.starts_with("ops."); }

// " The first output that differs is on rank 0, backward block.0: matmul c f32 [4, 6] (output
// 0/compute/17): element 3 is 1 (0x3f800000) and 2 (0x40000000)."
std::string text_of_op(const Divergence& found, const std::string& a, const std::string& b) {
  const std::string& op = found.op->field;  // "0/compute/17 backward block.0: matmul c f32 [4, 6]"
  const size_t end = op.find(' ');
  std::string text = fmt::format(" The first output that differs is{} on rank {}, {} (output {})",
                                 found.op_step < found.steps ? " in the step before" : "",
                                 op.substr(0, op.find('/')), op.substr(end + 1), op.substr(0, end));
  std::string of[] = {a, b};
  if (found.kind == Divergence::Kind::fault) {
    if (found.is_first) of[0] = of[1] = *found.is_first ? a : b;
    of[1] = "the replay of " + of[1];
  }
  const bool is_of_a = found.op->second == "-";
  if (is_of_a || found.op->first == "-")
    text += fmt::format(", of {}; {} has {} there", of[!is_of_a], of[is_of_a],
                        found.other_op.empty() ? "none" : found.other_op);
  if (found.element)
    text += fmt::format(": element {} is {} and {}", found.element->index, found.element->first,
                        found.element->second);
  return text + ".";
}

// The first sentence: the steps that are equal, or the step that differs and the run with a fault.
std::string text_of_step(const Divergence& found, const AuditTrail& trail_a,
                         const AuditTrail& trail_b, bool replays_differ) {
  const std::string &a = trail_a.path, &b = trail_b.path;
  const std::string fields = text_of(found.fields);
  if (found.kind == Divergence::Kind::equal) {
    std::string text = fmt::format("equal: {} steps of {} and {}.", found.steps, a, b);
    for (const std::string& more : {more_steps(trail_a, trail_b), more_steps(trail_b, trail_a)})
      if (!more.empty()) text += fmt::format(" {}.", more);
    return text;
  }
  if (found.kind == Divergence::Kind::reproduced)
    return fmt::format("{} and {} differ first in step {} ({}).", a, b, found.steps, fields);
  if (found.is_first)
    return fmt::format(
        "{} and {} differ in their records{}: {} has in step {} what its replay has not ({}).", a,
        b, replays_differ ? "" : ", and their replays are equal", *found.is_first ? a : b,
        found.steps, fields);
  return fmt::format(
      "{} and {} differ in step {} of their records ({}), and no replay shows it: they are equal "
      "to each other and to the records where these have the same fields.",
      a, b, found.steps, fields);
}

// Why a record is not what its replay computes.
std::string text_of_cause(const Divergence& found, const std::string& run) {
  if (!found.replay_settings.empty())
    return fmt::format(" The replay of {} has other settings than its record: {}.", run,
                       text_of(found.replay_settings));
  if (found.kind == Divergence::Kind::reproduced)
    return fmt::format(
        " The replay of {} is not equal to its record either: its results change from run to run, "
        "as by a race, or are of a build or machine that it does not name.",
        run);
  return fmt::format(
      "{} is a race, a transient fault, or a build or machine that the record does not name.",
      found.begins_apart ? " The parameters before the step differ: a checkpoint or a file of "
                           "initial weights may have changed. Else it"
                         : " It");
}

std::string text_of(const Divergence& found, const AuditedRun& run_a, const AuditedRun& run_b,
                    bool replays_differ) {
  const std::string &a = run_a.trail.path, &b = run_b.trail.path;
  const bool is_reproduced = found.kind == Divergence::Kind::reproduced;
  std::string text = text_of_step(found, run_a.trail, run_b.trail, replays_differ);
  const auto unit = std::ranges::find_if(
      found.fields, [](const AuditDifference& field) { return field.field.starts_with("units."); });
  if (is_reproduced && unit != found.fields.end())
    text += fmt::format(" The first unit of parameters that differs is {}.",
                        unit->field.substr(std::strlen("units.")));
  if (found.op) text += text_of_op(found, a, b);
  if (!found.settings.empty()) {
    text += fmt::format(" Settings that differ: {}.", text_of(found.settings));
  } else if (is_reproduced) {
    text += " No recorded setting differs.";
    if (const Differences flags = compare(run_a.command, run_b.command); !flags.empty())
      text += fmt::format(" Flags that differ: {}.", text_of(flags));
  }
  if (!found.layout.empty()) text += fmt::format(" Layouts: {}.", text_of(found.layout));
  return found.is_first ? text + text_of_cause(found, *found.is_first ? a : b) : text;
}

/// The replays of two runs, from the last step before which their parameters are known to be equal.
struct Replays {
  int64_t from_a, from_b;  ///< the steps at which they begin
  AuditTrail a, b;
  int64_t begin() const { return std::max(from_a, from_b); }
};

Replays replays_of(const AuditedRun& a, const AuditedRun& b, const AuditComparison& records) {
  const int64_t last = *records.differs_at;
  int64_t known = records.equal.empty() ? last : records.equal.front();
  const auto look_at = [&](int64_t step) {
    const Fields of_a = a.trail.units_before(step);
    if (!of_a.empty() && compare(of_a, b.trail.units_before(step)).empty()) known = step;
  };
  for (const int64_t step : records.equal) look_at(step);
  look_at(last);
  Replays replays{.from_a = begin_before(a, known), .from_b = begin_before(b, known)};
  const AuditOptions audit = with_ops({&a.trail, &b.trail}, replays.begin(), last);
  replays.a = replay(a, replays.from_a, last + 1, audit);
  replays.b = replay(b, replays.from_b, last + 1, audit);
  return replays;
}

// Notes the first of the outputs that differ between two trails.
void note_op(Divergence& result, const AuditDifference& op, const AuditTrail& a,
             const AuditTrail& b) {
  result.op = op;
  result.op->field = op.field.substr(std::strlen("ops."));
  const std::string id = op.field.substr(0, op.field.find(' ') + 1);
  if (op.first != "-" && op.second != "-") return;
  for (const auto& [name, value] : (op.first == "-" ? a : b).step(result.op_step)->fields)
    if (name.starts_with(id)) result.other_op = name.substr(id.size());
}

// Finds the first output that differs, and its first element, by replays with ops.
void find_op(Divergence& result, const AuditedRun& a, const AuditedRun& b, const Replays& replays) {
  AuditTrail trail_a, trail_b;
  const int64_t end = result.steps + 1;
  // The ops that differ in the first step that has such ones.
  const auto ops_from = [&](int64_t first, const std::string& of_a, const std::string& of_b) {
    AuditOptions audit{.first_op_step = first, .end_op_step = end, .tensor = of_a};
    trail_a = replay(a, replays.from_a, end, audit);
    audit.tensor = of_b;
    trail_b = replay(b, replays.from_b, end, audit);
    Differences ops;
    for (int64_t step = first; ops.empty() && step < end; ++step) {
      ops = compare(trail_a, trail_b, step, step).step;
      std::erase_if(ops, [](const AuditDifference& one) { return !is_op(one); });
      result.op_step = step;
    }
    return ops;
  };
  // The step before it may have sent parameters that its own record does not have.
  const Differences ops = ops_from(std::max(replays.begin(), result.steps - 1), "", "");
  if (ops.empty()) return;
  const AuditDifference& first = ops.front();
  note_op(result, first, trail_a, trail_b);
  const std::optional<DType> dtype = dtype_in(first.field);
  if (!dtype || first.first == "-" || first.second == "-") return;
  const auto id_of = [](const std::string& field) {
    return field.substr(std::strlen("ops."), field.find(' ') - std::strlen("ops."));
  };
  for (const AuditDifference& op : ops_from(result.op_step, id_of(first.field),
                                            id_of(first.other.empty() ? first.field : first.other)))
    if (op.field == first.field) result.element = first_difference(op.first, op.second, *dtype);
}

}  // namespace

AuditTrail recorded(const AuditedRun& run) { return replay(run, 0, INT64_MAX); }

AuditTrail replayed(const AuditedRun& run, int64_t first, int64_t last) {
  return replay(run, begin_before(run, first), last + 1, with_ops({&run.trail}, first, last));
}

Divergence diverge(const AuditedRun& a, const AuditedRun& b) {
  AuditComparison records = compare(a.trail, b.trail);
  if (!records.differs_at && records.equal.empty())
    raise<ConfigError>("diverge: expected steps that {} and {} both have, got none", a.trail.path,
                       b.trail.path);
  Divergence result{.steps = std::ssize(records.equal),
                    .settings = std::move(records.settings),
                    .layout = std::move(records.layout)};
  bool replays_differ = false;
  const auto finish = [&] {
    result.text = text_of(result, a, b, replays_differ);
    return result;
  };
  if (!records.differs_at) return finish();

  constexpr int64_t never = INT64_MAX;
  const int64_t last = *records.differs_at;
  const Replays replays = replays_of(a, b, records);
  const int64_t begin = replays.begin();
  const AuditComparison apart = compare(replays.a, replays.b, begin, last);
  const AuditComparison fault_a = compare(a.trail, replays.a, begin, last);
  const AuditComparison fault_b = compare(b.trail, replays.b, begin, last);
  const int64_t apart_at = apart.differs_at.value_or(never);
  const bool is_first =
      fault_a.differs_at && *fault_a.differs_at <= fault_b.differs_at.value_or(never);
  const AuditComparison& fault = is_first ? fault_a : fault_b;
  const int64_t fault_at = fault.differs_at.value_or(never);
  replays_differ = apart_at != never;
  if (!replays_differ && fault_at == never) {
    result.kind = Divergence::Kind::fault;
    result.steps = last;
    result.fields = std::move(records.step);
    return finish();
  }
  // A record that is not its replay explains the difference, unless the replays differ as early,
  // and as the records do.
  const bool is_reproduced = apart_at < fault_at || (apart_at == fault_at && apart_at >= last);
  if (!is_reproduced || fault_at == apart_at) {
    result.is_first = is_first;
    result.replay_settings = fault.settings;
  }
  result.kind = is_reproduced ? Divergence::Kind::reproduced : Divergence::Kind::fault;
  result.steps = is_reproduced ? apart_at : fault_at;
  result.fields = is_reproduced ? apart.step : fault.step;
  if (is_reproduced) {
    if (apart.layout.empty()) find_op(result, a, b, replays);
    return finish();
  }
  const AuditTrail& record = is_first ? a.trail : b.trail;
  const AuditTrail& replayed = is_first ? replays.a : replays.b;
  result.begins_apart =
      !compare(record.units_before(fault_at), replayed.units_before(fault_at)).empty();
  result.op_step = fault_at;
  if (const auto op = std::ranges::find_if(fault.step, is_op); op != fault.step.end())
    note_op(result, *op, record, replayed);
  return finish();
}

}  // namespace zg::zero
