#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/options/options.h"

namespace zg::tools {

/// As the first word of a command line it stands for the executable of this process. The child gets
/// the word as its process name.
inline constexpr const char* this_program = "zerograd";

struct ChildEnd {
  int status;  ///< as in a shell: 128 + N after signal N
  int signal;  ///< SIGINT, SIGTERM or SIGHUP that this process received meanwhile; 0: none
};

/// The status by which a restarted child says that a restart would fail in the same way.
inline constexpr int fails_again = 7;

/// Runs this_program, or another program found as by execvp, until it ends. No shell interprets the
/// words. A SIGINT, SIGTERM or SIGHUP sent only to this process is forwarded to the child (an
/// ignored SIGHUP stays ignored in both). If this process dies, the child receives SIGTERM. Throws
/// Unsupported if the program cannot be started; the message ends with `advice`. `is_mpirun`: the
/// child is Open MPI's mpirun. It gets SIGUSR1, which it passes on, for the first signal, and
/// SIGTERM for a second one, more than a second later.
ChildEnd run_child(std::vector<std::string> words, const std::string& advice,
                   bool is_mpirun = false);

struct CapturedEnd {
  ChildEnd end;
  std::string output;  ///< stdout and stderr, in the order of their writes
  bool timed_out;
};

/// Like run_child(), but for at most `seconds`, and captures the child's output. At the time limit,
/// at SIGINT, SIGTERM or SIGHUP, and if this process dies, the child is killed at once.
CapturedEnd capture_child(std::vector<std::string> words, const std::string& advice,
                          double seconds);

/// Runs train's command line in a child, and starts it again up to --max-restarts times.
/// start(words) gets the command line with --restarted K at its end, where K is the number of
/// restarts so far; a line on stderr announces each restart. A run that a signal ended is not
/// restarted, nor one whose error would occur again (usage, memory, files, unsupported features).
/// Returns how the last child ended. Throws ConfigError without --save.
ChildEnd run_with_restarts(const TrainOptions& options, const std::vector<std::string>& words,
                           const std::function<ChildEnd(std::vector<std::string>)>& start);

/// Whether this process must call run_with_restarts(): --max-restarts was given and this process is
/// not the child. Throws ConfigError in a process of mpirun, which cannot start the other processes
/// again.
bool must_supervise(const TrainOptions& options);

/// In a restarted child: resumes from the newest checkpoint in --save, if there is one. Otherwise
/// the run starts as its command line says. If the parent process is killed, the child saves and
/// ends.
void apply_restart(TrainOptions& options);

}  // namespace zg::tools
