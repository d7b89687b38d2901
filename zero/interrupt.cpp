#include "zerograd/zero/interrupt.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>

namespace zg::zero {
namespace {

// A signal handler can use only global variables. It runs on any thread. Ranks read
// `recorded_signal`.
std::atomic<int> recorded_signal = 0;
std::atomic<int64_t> recorded_at_ms = 0;
std::atomic<bool> saves_before_end = false, was_warned = false, under_mpirun = false,
                  handles_hangup = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a handler takes no locks");

// `timeout` and others signal the process and its group. Two signals within this time count as one.
constexpr int64_t echo_ms = 300;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void end_process_by(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // in a signal handler it is delivered after the handler returns
}

void record_signal(int signal, siginfo_t* info, void*) {
  const bool asks = signal == SIGUSR1;
  if (asks) signal = SIGTERM;
  // Slurm and others wait longer before SIGKILL. They do not set OMPI_COMM_WORLD_RANK.
  const bool warns = !asks && signal == SIGTERM && info->si_pid == getppid() && under_mpirun;
  if (warns) was_warned = true;
  // After mpirun's SIGTERM the process does not end at once: first it reports where it waits for
  // the failed rank.
  if (!saves_before_end && !warns) return end_process_by(signal);
  int before = recorded_signal;
  if ((before == 0 || before == SIGPIPE) && recorded_signal.compare_exchange_strong(before, signal))
    recorded_at_ms = now_ms();
  else if (!asks && now_ms() - recorded_at_ms > echo_ms)
    end_process_by(signal);
}

void record_pipe_signal(int signal, siginfo_t*, void*) {
  int before = 0;
  recorded_signal.compare_exchange_strong(before, signal);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(signal, &action, nullptr);
}

void set_default() {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
  if (handles_hangup) std::signal(SIGHUP, SIG_DFL);
}

}  // namespace

bool is_ignored(int signal) {
  struct sigaction before {};
  return sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
}

InterruptScope::InterruptScope() {
  recorded_signal = 0;
  saves_before_end = false;
  under_mpirun = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  handles_hangup = !is_ignored(SIGHUP);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) handle(signal, record_signal);
  if (handles_hangup) handle(SIGHUP, record_signal);
  size_handler_before_ = std::signal(SIGXFSZ, SIG_IGN);
  handle(SIGPIPE, record_pipe_signal);  // saving prints lines, and a closed pipe must not stop it
}

InterruptScope::~InterruptScope() {
  set_default();
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, size_handler_before_);
}

bool last_warning() { return was_warned; }

void InterruptScope::save_from_now() const { saves_before_end = true; }

int InterruptScope::signal() const { return recorded_signal; }

void InterruptScope::release() const {
  set_default();
  if (const int number = recorded_signal; number != 0 && number != SIGPIPE) std::raise(number);
}

CommonStop::CommonStop(int64_t ranks, const InterruptScope& interrupt)
    : interrupt_(interrupt), passed_(static_cast<size_t>(ranks)) {}

bool CommonStop::reached(int rank) {
  const std::lock_guard lock(mutex_);
  int64_t& passed = passed_[static_cast<size_t>(rank)];
  if (stop_ < 0 && interrupt_.signal() != 0) stop_ = *std::ranges::max_element(passed_);
  if (stop_ >= 0 && passed >= stop_) return true;
  ++passed;
  return false;
}

}  // namespace zg::zero
