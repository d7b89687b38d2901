#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "tools/run/child.h"

namespace zg::tools {

/// Runs train's command line in a child, and starts it again up to --max-restarts times.
/// start(words) gets the command line with --restarted K at its end, where K is the number of
/// restarts so far; a line on stderr announces each restart. A run that a signal ended is not
/// restarted, nor one whose error would occur again (usage, memory, files, unsupported features).
/// Returns how the last child ended. ConfigError without --save.
ChildEnd run_with_restarts(const TrainOptions& options, const std::vector<std::string>& words,
                           const std::function<ChildEnd(std::vector<std::string>)>& start);

/// Whether this process must call run_with_restarts(): --max-restarts was given and this process is
/// not the child. ConfigError in a process of mpirun, which cannot start the other processes again.
bool restarts(const TrainOptions& options);

/// In a restarted child: resumes from the newest checkpoint in --save if there is one, else as the
/// command line says. If the parent process is killed, the child saves and ends.
void go_on_after_restart(TrainOptions& options);

}  // namespace zg::tools
