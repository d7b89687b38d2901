#pragma once

#include <string>
#include <vector>

#include "zerograd/zero/diverge.h"

namespace zg::tools {

/// A run as the user of audit and diverge names it.
struct RunSource {
  std::string title;         ///< of a command line, in texts
  std::string name = {};     ///< an audit's file, or a command line: "train --data sort --lr 1e-3"
  std::string program = {};  ///< that replays an audit; empty: this one
  std::string checkpoints = {};         ///< a folder of step_N, or one; empty: those in the record
  std::vector<std::string> flags = {};  ///< of train, after those of the record
};

/// A child process that replayed steps has failed; its output is on stderr.
struct ReplayFailed {
  int status;
};

/// Throws FileError for a file without records, too.
zero::AuditTrail read_audit(const std::string& path);

/// The run, replayed by child processes that train. The command line is that of the record, without
/// its outputs and its --inject; the record of a run that is given as a command line is made first.
/// A command line may begin with variables and a program, "ZG_CPU_ISA=portable build/zerograd
/// train ...". A replay throws ReplayFailed.
zero::AuditedRun audited_run(const RunSource& source);

}  // namespace zg::tools
