#include "zerograd/zero/diverge.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

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
        "replay: {}: expected a checkpoint of at most {} steps, got none; the record "
        "begins with step {}",
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
  return trail;
}

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "c f32 [44, 96]": the dtype is the word before the shape.
std::optional<DType> dtype_in(const std::string& op) {
  const std::string words = op.substr(0, op.rfind(" ["));
  const std::string word = words.substr(words.rfind(' ') + 1);
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
    if (word == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  return std::nullopt;
}

std::optional<Divergence::Element> first_difference(const std::vector<char>& a,
                                                    const std::vector<char>& b, DType dtype) {
  const auto size = static_cast<size_t>(size_of(dtype));
  const auto differs = std::ranges::mismatch(a, b).in1 - a.begin();
  const int64_t index = differs / static_cast<int64_t>(size);
  const size_t at = static_cast<size_t>(index) * size;
  if (a.size() != b.size() || at + size > a.size()) return std::nullopt;
  const auto shown = [&](const std::vector<char>& bytes) {
    const std::vector<uint8_t> element(bytes.begin() + static_cast<int64_t>(at),
                                       bytes.begin() + static_cast<int64_t>(at + size));
    const Tensor x = Tensor::from(element, {static_cast<int64_t>(size)},
                                  Device::cpu(0, {.threads = 1, .separate = true}));
    uint64_t bits = 0;
    std::memcpy(&bits, element.data(), size);
    return fmt::format("{} (0x{:0{}x})", x.alias(0, {1}, dtype).item(), bits, 2 * size);
  };
  return Divergence::Element{index, shown(a), shown(b)};
}

struct Difference {
  int64_t step;
  Differences fields;
};
// The first step that differs, or before which the parameters differ.
std::optional<Difference> first_difference(const AuditTrail& a, const AuditTrail& b, int64_t begin,
                                           int64_t last) {
  AuditComparison found = compare(a, b, begin, last);
  for (int64_t step = begin; step <= found.differs_at.value_or(last); ++step) {
    const Fields of_a = a.units_before(step), of_b = b.units_before(step);
    if (of_a.empty() || of_b.empty()) continue;
    if (Differences units = compare(of_a, of_b); !units.empty())
      return Difference{step, std::move(units)};
  }
  if (!found.differs_at) return std::nullopt;
  return Difference{*found.differs_at, std::move(found.step)};
}

/// The two runs, where each replay begins, and the names for texts.
struct Search {
  const AuditedRun &a, &b;
  int64_t from_a = 0, from_b = 0;

  Differences ops_of(int64_t step) const {
    const AuditOptions audit{.first_op_step = step, .end_op_step = step + 1};
    AuditComparison found =
        compare(replay(a, from_a, step + 1, audit), replay(b, from_b, step + 1, audit), step, step);
    // Settings such as those of prefetching change the order of collectives.
    std::erase_if(found.step, [](const AuditDifference& d) {
      const bool is_alone = d.first == "-" || d.second == "-";
      return !d.field.starts_with("ops.") ||
             (is_alone && d.field.find("/communication") != std::string::npos);
    });
    return found.step;
  }
  std::optional<Divergence::Element> element_of(int64_t step, const std::string& op) const {
    const std::optional<DType> dtype = dtype_in(op);
    if (!dtype) return std::nullopt;
    std::vector<char> bytes[2];
    for (const bool second : {false, true}) {
      const UnnamedFile file;
      replay(second ? b : a, second ? from_b : from_a, step + 1,
             {.first_op_step = step,
              .end_op_step = step + 1,
              .tensor = op.substr(0, op.find(' ')),
              .tensor_path = file.path});
      bytes[second] = bytes_of(file.path);
    }
    return first_difference(bytes[0], bytes[1], *dtype);
  }
};

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

const AuditDifference* first_unit(const Divergence& found) {
  const auto unit = std::ranges::find_if(
      found.fields, [](const AuditDifference& field) { return field.field.starts_with("units."); });
  return unit == found.fields.end() ? nullptr : &*unit;
}

std::string text_of(const Divergence& found, const std::string& a, const std::string& b) {
  if (found.kind == Divergence::Kind::equal)
    return fmt::format("equal: {} steps of {} and {}", found.steps, a, b);
  std::string text;
  if (found.kind == Divergence::Kind::fault) {
    text = fmt::format(
        "{} and {} differ in their records, and their replays are equal: {} has in step {} what "
        "its "
        "replay has not ({}). It is a transient fault, or a build or machine that the record does "
        "not name.",
        a, b, *found.is_first ? a : b, found.steps, text_of(found.fields));
  } else {
    text = fmt::format("{} and {} differ first in step {} ({}).", a, b, found.steps,
                       text_of(found.fields));
    if (const AuditDifference* unit = first_unit(found))
      text += fmt::format(" The first unit of parameters that differs is {}.",
                          unit->field.substr(std::strlen("units.")));
    if (found.op) {
      const std::string& op =
          found.op->field;  // "0/compute/17 backward block.0: matmul c f32 [4, 6]"
      const size_t end = op.find(' ');
      text += fmt::format(" The first output that differs is on rank {}, {} (output {})",
                          op.substr(0, op.find('/')), op.substr(end + 1), op.substr(0, end));
      if (found.element)
        text += fmt::format(": element {} is {} and {}", found.element->index, found.element->first,
                            found.element->second);
      text += ".";
    }
  }
  if (!found.settings.empty())
    text += fmt::format(" Settings that differ: {}.", text_of(found.settings));
  else if (found.kind == Divergence::Kind::reproduced)
    text += " No recorded setting differs.";
  if (!found.layout.empty()) text += fmt::format(" Layouts: {}.", text_of(found.layout));
  return text;
}

}  // namespace

AuditTrail recorded(const AuditedRun& run) { return replay(run, 0, INT64_MAX); }

AuditTrail replayed(const AuditedRun& run, int64_t first, int64_t last) {
  AuditTrail trail = replay(run, begin_before(run, first), last + 1);
  for (const int64_t step : {first, last})
    if (!trail.step(step))
      raise<ConfigError>("replay: {}: expected steps {} to {}, got a run without step {}",
                         run.trail.path, first, last, step);
  return trail;
}

Divergence diverge(const AuditedRun& a, const AuditedRun& b) {
  AuditComparison recorded = compare(a.trail, b.trail);
  Divergence result{.settings = recorded.settings, .layout = recorded.layout};
  std::erase_if(result.settings,
                [](const auto& field) { return field.field.starts_with("units."); });
  const auto finish = [&] {
    result.text = text_of(result, a.trail.path, b.trail.path);
    return result;
  };
  if (!recorded.differs_at && recorded.equal.empty())
    raise<ConfigError>("diverge: expected steps that {} and {} both have, got none", a.trail.path,
                       b.trail.path);
  // The parameters before this step are known to be equal.
  int64_t known = 0;
  bool differs = recorded.differs_at.has_value();
  const auto check_units = [&](int64_t before) {
    const Fields of_a = a.trail.units_before(before), of_b = b.trail.units_before(before);
    if (of_a.empty() || of_b.empty()) return;
    if (compare(of_a, of_b).empty())
      known = before;
    else
      differs = true;
  };
  for (const int64_t step : recorded.equal) check_units(step), check_units(step + 1);
  result.steps = static_cast<int64_t>(recorded.equal.size());
  if (!differs) return finish();

  const int64_t last =
      recorded.differs_at.value_or(recorded.equal.empty() ? 0 : recorded.equal.back());
  const Search search{a, b, begin_before(a, known), begin_before(b, known)};
  const AuditTrail again_a = replay(a, search.from_a, last + 1);
  const AuditTrail again_b = replay(b, search.from_b, last + 1);
  const int64_t begin = std::max(search.from_a, search.from_b);
  const std::optional<Difference> apart = first_difference(again_a, again_b, begin, last);
  std::optional<Difference> fault = first_difference(a.trail, again_a, begin, last);
  const std::optional<Difference> other = first_difference(b.trail, again_b, begin, last);
  result.is_first = fault.has_value() && (!other || fault->step <= other->step);
  if (!*result.is_first) fault = other;
  // A record that is not its replay explains the difference, unless the replays differ as early,
  // and as the records do.
  const bool is_reproduced =
      apart && (!fault || apart->step < fault->step ||
                (apart->step == fault->step && apart->step >= recorded.differs_at.value_or(last)));
  if (!is_reproduced && !fault)
    raise<ConfigError>(
        "diverge: {} and {} differ, and their replays do not show it; expected the "
        "checkpoints of both runs",
        a.trail.path, b.trail.path);
  result.kind = is_reproduced ? Divergence::Kind::reproduced : Divergence::Kind::fault;
  result.steps = is_reproduced ? apart->step : fault->step;
  result.fields = is_reproduced ? apart->fields : fault->fields;
  if (!is_reproduced) return finish();
  result.is_first.reset();
  const AuditComparison again = compare(again_a, again_b, begin, last);
  if (!again.layout.empty()) return finish();
  const Differences ops = search.ops_of(result.steps);
  if (ops.empty()) return finish();
  result.op = ops.front();
  result.op->field = result.op->field.substr(std::strlen("ops."));
  if (result.op->first != "-" && result.op->second != "-")
    result.element = search.element_of(result.steps, result.op->field);
  return finish();
}

}  // namespace zg::zero
