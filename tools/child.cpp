#include "tools/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "runtime/error.h"

namespace zg::tools {
namespace {

volatile pid_t started = 0;
volatile std::sig_atomic_t received = 0;

// A terminal's Ctrl-C reaches the child as well; what somebody sends to this process alone does
// not.
void pass_on(int signal, siginfo_t* info, void*) {
  received = signal;
  if (info->si_code <= 0 && started > 0) kill(started, signal);
}

// Of the child: it ends with its parent, whatever ends that. Returns why there is no such program.
int become(char* const* words, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(128 + SIGTERM);
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  execvp(words[0], words);
  return errno;
}

// The child's pid. A pipe that exec closes brings back the error of one that did not come so far.
pid_t start(char* const* words, int& error) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return error = errno, -1;
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    const int why = become(words, parent);
    [[maybe_unused]] const ssize_t written = write(ends[1], &why, sizeof why);
    _exit(127);
  }
  error = child < 0 ? errno : 0;
  close(ends[1]);
  if (child > 0 && read(ends[0], &error, sizeof error) > 0) waitpid(child, nullptr, 0);
  close(ends[0]);
  return child;
}

}  // namespace

ChildEnd run_child(std::vector<std::string> words, const std::string& advice) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  struct sigaction action {};
  action.sa_sigaction = pass_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  std::fflush(nullptr);
  int error = 0;
  const pid_t child = start(pointers.data(), error);
  if (error != 0)
    throw Unsupported(words[0] + " cannot be started: " + std::strerror(error) + "; " + advice);
  started = child;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  started = 0;
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), received};
}

}  // namespace zg::tools
