#pragma once

#include <string>

#include "tests/zero/perceptron.h"
#include "zerograd/zero/audit.h"

namespace zg::testing {

using zero::AuditComparison;
using zero::AuditTrail;

/// For TEST_CASE_FIXTURE: a job of ten steps, with an audit.
struct Audited : TenSteps {
  std::string at(const std::string& name) const { return folder / name; }

  // Runs the job with one option more: the audit.
  AuditTrail audit(const std::string& name, Job job, int64_t interval = 3) const {
    job.options.audit = {.path = at(name), .interval = interval};
    Outcome outcome;
    run_ranks(job.world, program_of(job, outcome),
              {.local = {.device = {.swap = {.directory = folder.path()}}}});
    return AuditTrail::read(at(name));
  }
  AuditTrail first() const { return audit("first", {.options = options}); }
};

inline std::string text_of(const AuditComparison& comparison) {
  std::string text = comparison.differs_at ? "step " + std::to_string(*comparison.differs_at)
                                           : std::to_string(comparison.equal.size()) + " equal";
  for (const zero::AuditDifference& field : comparison.step)
    text += "; " + field.field + " " + field.first + " " + field.second;
  return text;
}

/// A field of a step's record, or of its run's; "" without it.
inline std::string value_of(const AuditTrail::Record& record, const std::string& field) {
  for (const auto& [name, value] : record.fields)
    if (name == field) return value;
  return "";
}

/// "loss squares "
inline std::string names_of(const std::vector<zero::AuditDifference>& differences) {
  std::string fields;
  for (const zero::AuditDifference& difference : differences) fields += difference.field + " ";
  return fields;
}

}  // namespace zg::testing
