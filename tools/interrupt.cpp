#include "tools/interrupt.h"

#include <csignal>

namespace zg::tools {
namespace {

// A handler reaches nothing but globals.
volatile std::sig_atomic_t noted = 0;

void note(int signal) { noted = signal; }

void handle(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

// Each signal's handler is used up by its first arrival: the next one has the default effect.
InterruptScope::InterruptScope() {
  noted = 0;
  handle(note, static_cast<int>(SA_RESETHAND | SA_RESTART));
}

InterruptScope::~InterruptScope() { handle(SIG_DFL, 0); }

int InterruptScope::signal() const { return noted; }

}  // namespace zg::tools
