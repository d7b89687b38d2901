#include "tools/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace zg::tools {
namespace {

// A handler reaches nothing but globals.
volatile std::sig_atomic_t noted = 0;

void note(int signal) { noted = signal; }

void handle(int signal, void (*handler)(int), unsigned flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(flags);
  sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptScope::InterruptScope() {
  noted = 0;
  // Used up by the first arrival: the next one has the default effect.
  for (int signal : {SIGINT, SIGTERM}) handle(signal, note, SA_RESETHAND | SA_RESTART);
  // Saving prints as well, and that must not end it.
  handle(SIGPIPE, note, SA_RESTART);
}

InterruptScope::~InterruptScope() {
  for (int signal : {SIGINT, SIGTERM, SIGPIPE}) handle(signal, SIG_DFL, 0);
}

int InterruptScope::signal() const { return noted; }

}  // namespace zg::tools
