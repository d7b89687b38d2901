#include "tools/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <initializer_list>

namespace zg::tools {
namespace {

// A handler reaches nothing but globals; it runs on any thread, and ranks read what it noted.
std::atomic<int> noted = 0;
std::atomic<int64_t> noted_at_ms = 0;
std::atomic<bool> warned = false, under_mpirun = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a handler takes no locks");

// `timeout` and others send a signal to the process and to its group: within this time two are one.
constexpr int64_t echo_ms = 300;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void note(int signal, siginfo_t* info, void*) {
  // Slurm and others wait longer, but do not start processes under this name.
  if (signal == SIGTERM && info->si_pid == getppid() && under_mpirun) warned = true;
  int before = noted;
  if ((before == 0 || before == SIGPIPE) && noted.compare_exchange_strong(before, signal)) {
    noted_at_ms = now_ms();
  } else if (now_ms() - noted_at_ms > echo_ms) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // arrives when this handler returns
  }
}

void note_pipe(int signal, siginfo_t*, void*) {
  int before = 0;
  noted.compare_exchange_strong(before, signal);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptScope::InterruptScope() {
  noted = 0;
  under_mpirun = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  for (int signal : {SIGINT, SIGTERM}) handle(signal, note);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its write
  handle(SIGPIPE, note_pipe);     // saving prints as well, and that must not end it
}

InterruptScope::~InterruptScope() {
  for (int signal : {SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);
}

bool last_warning() { return warned; }

int InterruptScope::signal() const { return noted; }

void InterruptScope::release() const {
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  if (const int number = noted; number == SIGINT || number == SIGTERM) std::raise(number);
}

}  // namespace zg::tools
