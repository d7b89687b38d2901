#include "tools/run/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iterator>

#include "tools/run/inputs.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/interrupt.h"

namespace zg::tools {
namespace {

volatile pid_t started = 0;
volatile std::sig_atomic_t received_signal = 0;
volatile std::time_t asked_at = 0;  // the time of the first signal; 0: none

// Forwards a signal that was sent only to this process. A Ctrl-C in a terminal is sent to the
// child, too.
void pass_on(int signal, siginfo_t* info, void*) {
  received_signal = signal;
  if (info->si_code <= 0 && started > 0) kill(started, signal);
}

// For Open MPI's mpirun. After SIGTERM it kills its processes and reads no output, so that some
// wait for it instead of saving. SIGUSR1 it passes on, and they save and end; the timer repeats it,
// because mpirun loses one that comes before the processes exist.
void ask_to_end(int signal, siginfo_t*, void*) {
  const std::time_t now = std::time(nullptr);
  if (asked_at == 0) asked_at = now;
  const bool is_second = signal != SIGALRM && now - asked_at > 1;
  if (signal != SIGALRM) received_signal = signal;
  if (started > 0) kill(started, is_second ? SIGTERM : SIGUSR1);
  alarm(2);
}

// The child is not in the terminal's group, which gets SIGTSTP.
void stop_with_child(int, siginfo_t*, void*) {
  if (started > 0) kill(started, SIGTSTP);
  std::raise(SIGSTOP);
  if (started > 0) kill(started, SIGCONT);
}

struct Start {
  int death_signal = SIGTERM;  // sent to the child when its parent dies
  // Pipe for both streams of the child; -1: the child inherits its parent's streams.
  int output = -1;
  bool asks_first = false;  // the child is Open MPI's mpirun, in a process group of its own
};

constexpr int passed_on[] = {SIGINT, SIGTERM, SIGHUP};

// Runs in the child, which must end when its parent dies for any reason. Returns the error of exec.
int exec_child(char* const* words, pid_t parent, const Start& how) {
  prctl(PR_SET_PDEATHSIG, how.death_signal);
  if (getppid() != parent) _exit(128 + SIGTERM);
  if (how.asks_first) setpgid(0, 0);
  for (int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (how.output >= 0) dup2(how.output, stream);
  for (int signal : passed_on)
    if (!zero::is_ignored(signal)) std::signal(signal, SIG_DFL);
  execvp(std::strcmp(words[0], this_program) == 0 ? "/proc/self/exe" : words[0], words);
  return errno;
}

// Throws when there is no such program: the pipe closes on a successful exec, and otherwise carries
// the error of the child.
pid_t start(std::vector<std::string>& words, const std::string& advice, const Start& how) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  struct sigaction action {};
  action.sa_sigaction = how.asks_first ? ask_to_end : pass_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (int signal : passed_on)
    if (signal != SIGHUP || !zero::is_ignored(signal)) sigaction(signal, &action, nullptr);
  if (how.asks_first) {
    sigaction(SIGALRM, &action, nullptr);
    action.sa_sigaction = stop_with_child;
    sigaction(SIGTSTP, &action, nullptr);
  }
  std::fflush(nullptr);
  const auto refuse = [&](int error) {
    raise<Unsupported>("{} cannot be started: {}; {}", words[0], std::strerror(error), advice);
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) refuse(errno);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    const int why = exec_child(pointers.data(), parent, how);
    [[maybe_unused]] const ssize_t written = ::write(ends[1], &why, sizeof why);
    _exit(127);
  }
  int error = child < 0 ? errno : 0;
  close(ends[1]);
  if (child > 0 && ::read(ends[0], &error, sizeof error) > 0) waitpid(child, nullptr, 0);
  close(ends[0]);
  if (error != 0) refuse(error);
  return child;
}

ChildEnd end_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  started = 0;
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), received_signal};
}

}  // namespace

ChildEnd run_child(std::vector<std::string> words, const std::string& advice, bool is_mpirun) {
  started = start(words, advice, {.asks_first = is_mpirun});
  return end_of(started);
}

CapturedEnd capture_child(std::vector<std::string> words, const std::string& advice,
                          double seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  if (received_signal != 0)
    return {.end = {128 + received_signal, received_signal}, .output = "", .timed_out = false};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) raise<Unsupported>("pipe: {}", std::strerror(errno));
  CapturedEnd captured{};
  const pid_t child = start(words, advice, {.death_signal = SIGKILL, .output = ends[1]});
  close(ends[1]);
  // Poll interval: checks the time, and signals that came just before poll.
  constexpr int poll_interval_ms = 50;
  for (pollfd waiting{ends[0], POLLIN, 0};;) {
    captured.timed_out = Clock::now() >= end;
    if (captured.timed_out || received_signal != 0) {
      kill(child, SIGKILL);
      break;
    }
    if (poll(&waiting, 1, poll_interval_ms) <= 0) continue;
    char bytes[4096];
    const ssize_t count = ::read(ends[0], bytes, sizeof bytes);
    if (count <= 0) break;
    captured.output.append(bytes, static_cast<size_t>(count));
  }
  close(ends[0]);
  captured.end = end_of(child);
  return captured;
}

namespace {

bool is_worth_a_restart(const ChildEnd& end) {
  constexpr int final[] = {
      0, 2, 3, 5, 6, 126, 127, 128 + SIGINT, 128 + SIGTERM, 128 + SIGHUP, 128 + SIGPIPE};
  return end.signal == 0 && std::ranges::find(final, end.status) == std::end(final);
}

std::string cause_of(int status) {
  if (status == 4) return "CommError";
  return status > 128 ? strsignal(status - 128) : "an error";
}

}  // namespace

bool must_supervise(const TrainOptions& options) {
  if (options.max_restarts == 0 || options.has("--restarted")) return false;
  if (process_rank())
    throw ConfigError(
        "--max-restarts: expected a run that this process can start again, got a process of "
        "mpirun, which starts none twice; try zerograd launch ... train ... --max-restarts N");
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
    if (end.status == fails_again) return {.status = 1, .signal = end.signal};
    if (!is_worth_a_restart(end)) return end;
    const std::string ended =
        fmt::format("the run ended with status {} ({})", end.status, cause_of(end.status));
    if (restarted == options.max_restarts) {
      print_line(stderr, "no restart is left of {}: {}", restarted, ended);
      return end;
    }
    const Checkpoint checkpoint = checkpoint_to_resume("auto", options.save);
    print_line(stderr, "restart {} of {}: {}; {}", restarted + 1, options.max_restarts, ended,
               checkpoint ? "it goes on from " + checkpoint->path()
                          : "nothing was saved yet, so it begins again");
  }
}

void apply_restart(TrainOptions& options) {
  if (!options.has("--restarted")) return;
  options.injection.injected_before = options.restarted;
  if (options.restarted == 0 || !checkpoint_to_resume("auto", options.save)) return;
  options.resume = "auto";
}

}  // namespace zg::tools
