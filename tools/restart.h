#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/child.h"
#include "tools/options.h"

namespace zg::tools {

/// Runs train's command line in a child for as long as --max-restarts allows: start(words) gets the
/// command line with --restarted K at its end, K restarts so far, and a line on stderr announces
/// each. What a signal ended, and what would only fail again the same way (usage, memory, files,
/// what is not supported), is not restarted. How the last child ended. ConfigError without --save.
ChildEnd run_with_restarts(const TrainOptions& options, const std::vector<std::string>& words,
                           const std::function<ChildEnd(std::vector<std::string>)>& start);

/// Whether this process shall do so: --max-restarts was given and it is not itself the child.
/// ConfigError in a process of mpirun, which cannot start the others again.
bool restarts(const TrainOptions& options);

/// In a child that was started again: it goes on from the newest checkpoint in --save, if there is
/// one, else as the command line says. Where its parent is killed it ends too, saving.
void go_on_after_restart(TrainOptions& options);

}  // namespace zg::tools
