#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

// Runs the built zerograd, or a part of it in this process, and returns output and exit status.
namespace zg::testing {

struct Outcome {
  int status;  ///< as a shell reports it: 128 + N after signal N
  std::string out, error;
  int64_t resident_bytes;  ///< peak physical memory
};

/// `words` are the arguments, not a shell line. Each call has its own process and waits for it.
Outcome zerograd(const std::vector<std::string>& words);

/// The same from a line of words without quotes: zerograd("train --data sort --steps 3").
Outcome zerograd(const std::string& line);

/// in_process(), called() and check_refused() are in called.cpp, which only test_tools links.
/// Calls a function in this process and returns what it prints. An error that it throws gives the
/// line on stderr and the exit status that the command gives.
Outcome in_process(const std::function<int()>& call);

/// The same for a line of the command: called("plan --data sort"). For runs that end by themselves;
/// a signal, a limit of the process or an injected crash needs zerograd().
Outcome called(const std::string& line);

/// The words of a line.
std::vector<std::string> words_of(const std::string& line);

/// Starts a run, waits until its stdout contains `text`, sends the signal `times` times and waits
/// for the end.
Outcome zerograd_signalled(const std::string& line, const std::string& text, int signal,
                           int times = 1);

struct SignalledStep {
  Outcome outcome;
  int steps;  ///< done, by stdout, when the signal came
};
/// The same with one signal, after a share of the newest step's duration has passed. The run is
/// stopped meanwhile, so that it does nothing between the last line that counts and the signal.
SignalledStep zerograd_signalled_within_step(const std::string& line, const std::string& text,
                                             int signal, double share);

/// The same with stdout redirected to a path: "/dev/full".
Outcome zerograd_into(const std::string& path, const std::string& line);

/// Starts a run and closes the pipe of its stdout after the first output, which `out` contains.
Outcome zerograd_unread(const std::string& line);

/// Runs another program, named by the first word: program("env A=b script").
Outcome program(const std::string& line);

/// The reason why ranks cannot be processes on this machine; empty: they can.
std::string missing_mpi();
/// True if they cannot. Then it prints a line that ctest reads, as doctest cannot skip at run time.
bool skips_mpi(const char* what);

/// The same under mpirun: mpirun("-np 2 zerograd train --data sort").
Outcome mpirun(const std::string& line);

/// When rank 0's stdout contains `text`, sends the signal to the process of `rank` ("1/4", or
/// "mpirun" itself), `delay` later.
Outcome mpirun_signalled(const std::string& line, const std::string& text, const std::string& rank,
                         int signal, std::chrono::milliseconds delay = {});

struct Process {
  int pid, parent;
  std::string name, command_line;  ///< as lists of processes show them; words end with \0
};
/// The processes with `word` in their command line.
std::vector<Process> processes_with(const std::string& word);

/// How often `text` has the part.
size_t count_of(const std::string& text, const std::string& part);
/// The rest of the line of `text` that begins with `prefix`; "" if there is none.
std::string line_after(const std::string& text, const std::string& prefix);
/// One JSON value for each line. Throws for an invalid line.
std::vector<nlohmann::json> json_lines(const std::string& path);

/// Checks the exit status, and shows the run's errors where it is another. Returns the run.
Outcome checked(Outcome outcome, int status = 0);

/// Checks that the run succeeded; the hash of the parameters that it printed.
std::string hash_of(const Outcome& outcome);
std::string hash_of(const std::string& line);

/// Checks that the run ends with this status and an error that contains `part`.
void check_refused(const std::string& line, int status, const std::string& part);

/// The metrics of a training run that succeeds.
struct Curve {
  std::string hash;
  std::vector<nlohmann::json> losses, norms;  ///< a value for each step
  nlohmann::json last;                        ///< the last line; not compared

  bool operator==(const Curve& other) const {
    return hash == other.hash && losses == other.losses && norms == other.norms;
  }
};
Curve curve_of(const std::string& line);

void edit_json(const std::string& path, const std::function<void(nlohmann::json&)>& edit);

/// A copy of a folder, under its name.
struct FolderCopy {
  explicit FolderCopy(const std::string& from);
  std::string operator/(const std::string& file) const { return path + "/" + file; }

  TemporaryFolder folder;
  std::string path;
};

/// Checks that plan predicts the memory record of the run with these flags of train, to the byte.
void check_plan_is_run(const std::string& flags);

struct TokenFile {
  int32_t vocabulary, count = 65;
};
/// Writes the tokens i * i + 3 * i modulo the vocabulary, in llm.c's format; returns the path.
std::string write_tokens(const TemporaryFolder& folder, const TokenFile& tokens);

}  // namespace zg::testing
