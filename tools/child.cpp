#include "tools/child.h"

#include <spawn.h>
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
  pid_t child = 0;
  if (const int error =
          posix_spawnp(&child, pointers[0], nullptr, nullptr, pointers.data(), environ))
    throw Unsupported(words[0] + " cannot be started: " + std::strerror(error) + "; " + advice);
  started = child;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  started = 0;
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), received};
}

}  // namespace zg::tools
