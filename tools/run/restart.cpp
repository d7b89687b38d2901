#include "tools/run/restart.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "tools/run/checkpoints.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

bool is_worth_a_restart(const ChildEnd& end) {
  constexpr int final[] = {
      0, 2, 3, 5, 6, 126, 127, 128 + SIGINT, 128 + SIGTERM, 128 + SIGHUP, 128 + SIGPIPE};
  return end.signal == 0 &&
         std::find(std::begin(final), std::end(final), end.status) == std::end(final);
}

std::string cause_of(int status) {
  if (status == 4) return "CommError";
  return status > 128 ? strsignal(status - 128) : "an error";
}

}  // namespace

bool restarts(const TrainOptions& options) {
  if (options.max_restarts == 0 || options.given.count("--restarted")) return false;
  if (process_rank())
    throw ConfigError(
        "--max-restarts: expected a run that this process can start again, got one of mpirun, "
        "which starts nothing twice; try zerograd launch ... train ... --max-restarts N");
  return true;
}

ChildEnd run_with_restarts(const TrainOptions& options, const std::vector<std::string>& words,
                           const std::function<ChildEnd(std::vector<std::string>)>& start) {
  if (options.save.empty())
    throw ConfigError("--max-restarts: expected --save DIR to go on from, got none");
  for (int64_t restarted = 0;; ++restarted) {
    std::vector<std::string> attempt = words;
    attempt.insert(attempt.end(), {"--restarted", std::to_string(restarted)});
    const ChildEnd end = start(attempt);
    if (!is_worth_a_restart(end)) return end;
    const std::string ended =
        text("the run ended with status %d (%s)", end.status, cause_of(end.status).c_str());
    if (restarted == options.max_restarts) {
      std::fprintf(stderr, "no restart is left of %lld: %s\n", (long long)restarted, ended.c_str());
      return end;
    }
    const Checkpoint checkpoint = checkpoint_to_resume("auto", options.save);
    std::fprintf(stderr, "restart %lld of %lld: %s; %s\n", (long long)restarted + 1,
                 (long long)options.max_restarts, ended.c_str(),
                 checkpoint ? ("it goes on from " + checkpoint->path()).c_str()
                            : "nothing was saved yet, so it begins again");
  }
}

void go_on_after_restart(TrainOptions& options) {
  if (!options.given.count("--restarted")) return;
  options.injection.struck = options.restarted;
  if (options.restarted == 0 || !checkpoint_to_resume("auto", options.save)) return;
  options.resume = "auto";
  options.initial_weights.clear();
  options.from_hf.clear();
}

}  // namespace zg::tools
