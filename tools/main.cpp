#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "tools/commands/subcommands.h"
#include "tools/run/child.h"
#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/interrupt.h"

namespace zg::tools {
namespace {

void print_usage(std::FILE* out) {
  std::fprintf(
      out,
      "zerograd %s: trains language models with a runtime of its own, from kernels to ZeRO\n\n"
      "usage: zerograd SUBCOMMAND [flags]\n\n",
      ZG_VERSION);
  for (const Subcommand& subcommand : subcommands)
    std::fprintf(out, "  %-11s %s\n", subcommand.name, subcommand.summary);
  std::fprintf(out,
               "\n  zerograd train --data sort         learns to sort six digits\n"
               "  zerograd train --help              every flag and its default\n\n"
               "exit status: 0 ok, 2 usage or config, 3 out of memory, 4 communication, 5 file,\n"
               "6 unsupported, 129, 130, 141 and 143 after SIGHUP, SIGINT, SIGPIPE and SIGTERM,\n"
               "1 anything else\n");
}

// The words to write instead of a tutorial's script or a launcher; "" for other names.
std::string counterpart_of(const std::string& name) {
  const std::string script = name.substr(name.rfind('/') + 1);
  const struct {
    const char *script, *words;
  } counterparts[] = {
      {"train.py", "zerograd train"},
      {"benchmark.py", "zerograd train"},
      {"demo_ds.py", "zerograd train --data sort"},
      {"run_clm_no_trainer.py", "zerograd train --data PATH.txt"},
      {"run_seq2seq_no_trainer.py", "zerograd train --from-hf DIR --data PAIRS.jsonl"},
      {"pretrain_gpt.py", "zerograd train"},
      {"run_bloom13b.sh", "tools/bloom13b"},
      {"evaluate.py", "zerograd eval CHECKPOINT"},
      {"inference-test.py", "zerograd generate CHECKPOINT --prompt TEXT --test-performance"},
      {"deepspeed", "zerograd train --gpus N, or zerograd launch"},
      {"accelerate", "zerograd train --config F.yaml"},
      {"mpirun", "mpirun -np N zerograd train"},
  };
  for (const auto& row : counterparts)
    if (script == row.script) return fmt::format("; the counterpart here is {}", row.words);
  return script.ends_with(".py") ? "; a script's flags go to zerograd train" : "";
}

int run(std::string name, std::vector<std::string> arguments) {
  if (name == "inference") name = "generate";  // as DeepSpeed calls it
  // `zerograd help train` and `zerograd train help` are the same as `zerograd train --help`.
  if (name == "help" && !arguments.empty()) name = std::exchange(arguments.front(), "--help");
  if (arguments.size() == 1 && arguments.front() == "help") arguments.front() = "--help";
  if (name == "--help" || name == "-h" || name == "help") return print_usage(stdout), 0;
  if (name == "--version") return std::printf("zerograd %s\n", ZG_VERSION), 0;
  std::vector<std::string> known;
  for (const Subcommand& subcommand : subcommands) {
    if (name == subcommand.name) return subcommand.run(arguments);
    known.emplace_back(subcommand.name);
  }
  const std::string counterpart = counterpart_of(name);
  raise<ConfigError>("expected a subcommand ({}), got '{}'{}", join(known, ", ", " or "), name,
                     counterpart.empty() ? did_you_mean(name, known) : counterpart);
}

// False if another process of the same launcher on this host, still running, has reported the same
// error. The first one binds a name of the kernel's, outside of all folders, until it ends.
bool is_first_to_report(const std::string& error) {
  try {
    if (!process_rank()) return true;
  } catch (const ConfigError&) {  // the error itself
    return true;
  }
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  fmt::format("zerograd {} {:x}", getppid(), hash_name(error.c_str()))
      .copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const int name = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  return bind(name, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno != EADDRINUSE;
}

int report(const char* type, const char* message) {
  std::fflush(stdout);
  const std::string error = fmt::format("error: {}: {}", type, message);
  if (is_first_to_report(error)) print_line(stderr, "{}", error);
  return cpu::exit_status_of(type);
}

// Replaces a closed stdout or stderr by a stream that fails on writes. Otherwise the first file
// that is opened, for example a checkpoint, would get that descriptor, and all output would be
// written into it.
void occupy_standard_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDONLY);
}

// Checks that stdout was written completely. A full disk does not end a run that saves or writes
// metrics, but lost results change the exit status.
int check_stdout(int status) {
  const bool flushed = std::fflush(stdout) == 0;
  if (status != 0 || (flushed && std::ferror(stdout) == 0)) return status;
  return report(
      "FileError",
      "stdout: some output could not be written; expected an open file or pipe, and free space");
}

// Delays the exit of a failed process, and longer for a CommError, which another rank's failure
// causes. A launcher kills every process soon after the first one exits with an error, and takes
// its status. The delay lets the other processes detect the failure and print where they were. A
// process that mpirun is already ending is not delayed.
int exit_last(int status) {
  using namespace std::chrono_literals;
  try {
    if (zg::process_rank() && !zg::zero::last_warning())
      std::this_thread::sleep_for(status == 4 ? 1300ms : 1000ms);
  } catch (const zg::ConfigError&) {  // ignored: it was reported before
  }
  return status;
}

std::terminate_handler terminate_before = nullptr;

// Ends the process on an uncaught exception. Some libraries cannot propagate std::bad_alloc.
[[noreturn]] void end_without_handler() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    std::_Exit(report("OutOfMemory", "the system refused memory outside of the counted arenas"));
  } catch (...) {  // continue with the previous handler
  }
  terminate_before();
  std::abort();
}

// Under `ulimit -v` malloc must not reserve 64 MiB of addresses for each thread.
void save_addresses() {
  if (addresses_left_bytes() != std::numeric_limits<int64_t>::max()) mallopt(M_ARENA_MAX, 1);
}

// A write beyond the file size limit (`ulimit -f`) then returns an error, which names the file.
void report_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

// A supervised run is an exec of /proc/self/exe, whose process would be named "exe". Threads that
// are started later inherit the name.
void set_process_name() { prctl(PR_SET_NAME, this_program); }

// Reports an exception of the subcommand and returns its exit status. Absent: the subcommand
// returned without an exception; `status` has its result.
std::optional<int> error_of(int& status, const std::string& name,
                            const std::vector<std::string>& arguments) {
  try {
    status = run(name, arguments);
    return std::nullopt;
  } catch (const Error& error) {
    return report(error.type(), error.what());
  } catch (const std::bad_alloc&) {
    return report("OutOfMemory", "the system refused memory outside of the counted arenas");
  } catch (const std::length_error&) {
    return report("OutOfMemory", "a size is larger than any memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return report("FileError", error.what());
  } catch (const std::system_error& error) {
    const bool thread = error.code() == std::errc::resource_unavailable_try_again;
    return thread ? report("OutOfMemory",
                           "the system refused another thread; expected room below `ulimit -u`; "
                           "try fewer --ranks or --threads, or a higher limit")
                  : report("Error", error.what());
  } catch (const std::exception& error) {
    return report("Error", error.what());
  }
}

}  // namespace
}  // namespace zg::tools

int main(int count, char** words) {
  using namespace zg::tools;
  occupy_standard_streams();
  set_process_name();
  save_addresses();
  report_size_limit();
  terminate_before = std::set_terminate(end_without_handler);
  if (count < 2) return print_usage(stderr), 2;
  int status = 0;
  if (const std::optional<int> error =
          error_of(status, words[1], std::vector<std::string>(words + 2, words + count)))
    return exit_last(*error);
  status = check_stdout(status);
  return status == 5 ? exit_last(status) : status;  // all ranks know about a failed save
}
