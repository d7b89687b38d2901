#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/zero/audit.h"

// Finds where two audited runs part, by computing their steps again.
namespace zg::zero {

/// A run with an audit, and how its steps are computed again.
struct AuditedRun {
  AuditTrail trail;
  /// Counts of steps at which a replay can begin, besides 0: those of its checkpoints.
  std::vector<int64_t> checkpoints = {};
  /// Computes the steps [first, end) and writes this audit of them. `first`: 0 or one of
  /// `checkpoints`; `end`: INT64_MAX for the whole run. It may be called several times, in this
  /// process or by a child, and the file of the audit is complete when it returns. In a Trainer the
  /// audit is TrainerOptions::audit with the settings of the run, and `end` ends it, for example by
  /// TrainerOptions::stop_interval.
  std::function<void(int64_t first, int64_t end, const AuditOptions& audit)> replay = {};
  /// The flags of its command line, compared if no recorded setting differs.
  AuditTrail::Fields command = {};
};

/// The audit of the steps from the nearest checkpoint before `first` to `last`, computed again,
/// with units in each record. Throws ConfigError if the replay does not have these steps.
ZG_API AuditTrail replayed(const AuditedRun& run, int64_t first, int64_t last);

/// The audit of the whole run, computed now, with units in each record.
ZG_API AuditTrail recorded(const AuditedRun& run);

struct Divergence {
  enum class Kind : uint8_t {
    equal,       ///< all steps that both records have
    reproduced,  ///< the replays differ
    fault  ///< the replays are equal, so a record or a checkpoint is not what its run computes
  } kind = Kind::equal;
  int64_t steps = 0;  ///< equal: the number of steps; otherwise the first step that differs
  /// The fields of this step that differ: of the replays; of a fault: of the record, and of its
  /// replay. The first field of parameters is the first unit, "units.block.0".
  std::vector<AuditDifference> fields;
  /// The settings and the layouts of the two runs that differ.
  std::vector<AuditDifference> settings, layout;
  /// The run whose record is not what its replay computes: whether it is the first; absent: none,
  /// also of a fault that no replay shows.
  std::optional<bool> is_first;
  bool begins_apart = false;  ///< a fault: the parameters before the step differ already
  /// The settings of this record, and of its replay, that differ: other data, build or machine.
  std::vector<AuditDifference> replay_settings;
  /// The first output of an op that differs, and its hashes: of the replays; of a fault: of the
  /// record, if it has ops, and of its replay. Absent: layouts differ, or all ops were equal.
  std::optional<AuditDifference> op;
  std::string other_op;  ///< if one run alone has it: the other run's output with this number
  int64_t op_step = 0;   ///< `steps`, or the one before it, whose last outputs no record has
  /// The first element of this output that differs.
  struct Element {
    int64_t index = 0;
    std::string first, second;
  };
  std::optional<Element> element;
  std::string text;  ///< all of this as a paragraph
};

/// Compares the records of two runs. Where they differ, replays both from the nearest checkpoints:
/// with the parameters of every step, then with the ops of the first step that differs, then with
/// the tensor that differs first. Throws ConfigError if the records have no step in common.
ZG_API Divergence diverge(const AuditedRun& a, const AuditedRun& b);

}  // namespace zg::zero
