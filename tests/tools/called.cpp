// The command's functions, called in this process. Binaries of another command do not link this.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "tests/tools/command.h"
#include "tools/commands/subcommands.h"
#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/text/format.h"

namespace zg::testing {
namespace {

/// Redirects a stream of this process to a file without a name, and back.
class Caught {
 public:
  explicit Caught(std::FILE* stream)
      : stream_(stream), before_(dup(fileno(stream))), file_(memfd_create("caught", MFD_CLOEXEC)) {
    std::fflush(stream_);
    dup2(file_, fileno(stream_));
  }
  ~Caught() {
    close(file_);
    close(before_);
  }
  Caught(const Caught&) = delete;

  /// Ends it; what was written meanwhile.
  std::string text() {
    std::fflush(stream_);
    dup2(before_, fileno(stream_));
    std::string all(static_cast<size_t>(lseek(file_, 0, SEEK_END)), ' ');
    if (pread(file_, all.data(), all.size(), 0) < 0) throw std::runtime_error("no output");
    return all;
  }

 private:
  std::FILE* const stream_;
  const int before_, file_;
};

}  // namespace

Outcome in_process(const std::function<int()>& call) {
  Outcome outcome{};
  Caught out(stdout), error(stderr);
  try {
    outcome.status = call();
  } catch (const Error& thrown) {
    outcome.status = cpu::exit_status_of(thrown.type());
    print_line(stderr, "error: {}: {}", thrown.type(), thrown.what());
  } catch (const std::exception& thrown) {
    outcome.status = cpu::exit_status_of("Error");
    print_line(stderr, "error: Error: {}", thrown.what());
  }
  outcome.out = out.text();
  outcome.error = error.text();
  return outcome;
}

Outcome called(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  for (const tools::Subcommand& subcommand : tools::subcommands)
    if (!words.empty() && words.front() == subcommand.name)
      return in_process([&] { return subcommand.run({words.begin() + 1, words.end()}); });
  return zerograd(words);
}

void check_refused(const std::string& line, int status, const std::string& part) {
  CAPTURE(line);
  CHECK(contains(checked(called(line), status).error, part));
}

}  // namespace zg::testing
