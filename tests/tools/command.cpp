#include "tests/tools/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace zg::testing {
namespace {

struct Started {
  pid_t pid = -1;
  int out = -1, error = -1;  // read ends of the pipes
};

// Ignores memory leaks of the MPI library, and races in its threads.
void quiet_sanitizers() {
  const std::pair<const char*, const char*> options[] = {
      {"ASAN_OPTIONS", "detect_leaks=0"}, {"TSAN_OPTIONS", "ignore_noninstrumented_modules=1"}};
  for (const auto& [variable, option] : options) {
    const char* before = std::getenv(variable);
    setenv(variable, ((before ? std::string(before) + ":" : "") + option).c_str(), 1);
  }
}

Started start(const std::vector<std::string>& words, const char* path = nullptr,
              const std::string& program = ZG_COMMAND) {
  int out[2], error[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0)
    throw std::runtime_error("no pipe");
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid == 0) {
    if (dup2(path ? open(path, O_WRONLY) : out[1], STDOUT_FILENO) < 0) _exit(126);
    dup2(error[1], STDERR_FILENO);
    if (program != ZG_COMMAND) quiet_sanitizers();
    execvp(program.c_str(), arguments.data());
    _exit(127);
  }
  close(out[1]);
  close(error[1]);
  return {pid, out[0], error[0]};
}

// Reads stdout and stderr until both are closed. `seen`, if given, is called after each read of
// stdout; false closes stdout.
Outcome finish(const Started& process, const std::function<bool(Outcome&)>& seen = {}) {
  Outcome outcome{};
  pollfd ends[2] = {{process.out, POLLIN, 0}, {process.error, POLLIN, 0}};
  std::string* texts[2] = {&outcome.out, &outcome.error};
  for (int unclosed = 2; unclosed > 0;) {
    poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t count = read(ends[i].fd, bytes, sizeof bytes);
      bool more = count > 0;
      if (more) texts[i]->append(bytes, static_cast<size_t>(count));
      if (more && i == 0 && seen) more = seen(outcome);
      if (more) continue;
      close(ends[i].fd);
      ends[i].fd = -1;
      --unclosed;
    }
  }
  int status = 0;
  rusage usage{};
  if (wait4(process.pid, &status, 0, &usage) != process.pid)
    throw std::runtime_error(std::string("no status of the program: ") + std::strerror(errno));
  outcome.resident_bytes = int64_t{usage.ru_maxrss} * 1024;
  outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

}  // namespace

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Outcome zerograd(const std::vector<std::string>& words) { return finish(start(words)); }

Outcome zerograd(const std::string& line) { return zerograd(words_of(line)); }

Outcome zerograd_signalled(const std::string& line, const std::string& text, int signal,
                           int times) {
  const Started process = start(words_of(line));
  bool sent = false;
  return finish(process, [&](const Outcome& so_far) {
    if (sent || !contains(so_far.out, text)) return true;
    sent = true;
    for (int i = 0; i < times; ++i) kill(process.pid, signal);
    return true;
  });
}

SignalledStep zerograd_signalled_within_step(const std::string& line, const std::string& text,
                                             int signal, double share) {
  const Started process = start(words_of(line));
  int steps = -1;
  const Outcome outcome = finish(process, [&](Outcome& so_far) {
    if (steps >= 0 || !contains(so_far.out, text)) return true;
    const std::string label = "iter_dt ";
    const double step_ms = std::stod(so_far.out.substr(so_far.out.rfind(label) + label.size()));
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(share * step_ms));
    kill(process.pid, SIGSTOP);
    // WNOWAIT leaves the status of a run that has ended to finish().
    siginfo_t state{};
    waitid(P_PID, static_cast<id_t>(process.pid), &state, WSTOPPED | WEXITED | WNOWAIT);
    int waiting = 0;
    ioctl(process.out, FIONREAD, &waiting);
    std::string rest(static_cast<size_t>(waiting), ' ');
    if (waiting > 0) rest.resize(static_cast<size_t>(read(process.out, rest.data(), rest.size())));
    so_far.out += rest;
    steps = 0;
    for (size_t at = 0; (at = so_far.out.find(label, at)) != std::string::npos; ++at) ++steps;
    kill(process.pid, signal);
    kill(process.pid, SIGCONT);
    return true;
  });
  return {outcome, steps};
}

Outcome zerograd_into(const std::string& path, const std::string& line) {
  return finish(start(words_of(line), path.c_str()));
}

Outcome zerograd_unread(const std::string& line) {
  return finish(start(words_of(line)), [](const Outcome&) { return false; });
}

namespace {

// The arguments of mpirun, which allow root and more processes than cores, as in a container. It
// has its own temporary folder: two mpirun that start at the same time could both try to create the
// default folder, and one of them would fail.
std::vector<std::string> mpirun_words(const std::string& line) {
  static const TemporaryFolder session;
  std::vector<std::string> words = {"--allow-run-as-root", "--oversubscribe", "--mca",
                                    "orte_tmpdir_base", session.path()};
  for (const std::string& word : words_of(line))
    words.push_back(word == "zerograd" ? ZG_COMMAND : word);
  return words;
}

}  // namespace

std::string missing_mpi() {
  if (contains(line_after(zerograd("info").out, "mpi "), "absent"))
    return "this build links no MPI";
  return program("mpirun --version").status == 127 ? "there is no mpirun" : "";
}

bool skips_mpi(const char* what) {
  const std::string why = missing_mpi();
  if (!why.empty()) std::printf("SKIPPED: mpi: %s (%s)\n", what, why.c_str());
  return !why.empty();
}

Outcome mpirun(const std::string& line) {
  return finish(start(mpirun_words(line), nullptr, "mpirun"));
}

Outcome program(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  return finish(start({words.begin() + 1, words.end()}, nullptr, words.front()));
}

Outcome mpirun_signalled(const std::string& line, const std::string& text, const std::string& rank,
                         int signal, std::chrono::milliseconds delay) {
  bool sent = false;
  const Started process = start(mpirun_words(line), nullptr, "mpirun");
  return finish(process, [&](const Outcome& so_far) {
    const std::string pid = rank == "mpirun" ? std::to_string(process.pid) + " "
                                             : line_after(so_far.error, "rank " + rank + " pid ");
    if (sent || !contains(so_far.out, text) || !contains(pid, " ")) return true;
    sent = true;
    std::this_thread::sleep_for(delay);
    kill(std::stoi(pid), signal);
    return true;
  });
}

std::vector<Process> processes_with(const std::string& word) {
  std::vector<Process> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    try {
      const std::string line = read_file(entry.path() / "cmdline");
      if (!contains(line, word)) continue;
      const std::string state = read_file(entry.path() / "stat");
      const size_t end = state.rfind(')'), begin = state.find('(') + 1;
      std::istringstream fields(state.substr(end + 1));
      std::string letter;
      int parent = 0;
      fields >> letter >> parent;
      if (letter != "Z")
        found.push_back({std::stoi(pid), parent, state.substr(begin, end - begin), line});
    } catch (const std::exception&) {  // the process has ended meanwhile
    }
  }
  return found;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string line_after(const std::string& text, const std::string& prefix) {
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    if (line.compare(0, prefix.size(), prefix) == 0) return line.substr(prefix.size());
  return "";
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::istringstream stream(read_file(path));
  std::vector<nlohmann::json> values;
  for (std::string line; std::getline(stream, line);) values.push_back(nlohmann::json::parse(line));
  return values;
}

Outcome checked(Outcome outcome, int status) {
  INFO("out ", outcome.out, ", error ", outcome.error);
  REQUIRE(outcome.status == status);
  return outcome;
}

std::string hash_of(const Outcome& outcome) {
  const std::string hash = line_after(checked(outcome).out, "param_hash ");
  CHECK(hash.size() == 32);
  return hash;
}

std::string hash_of(const std::string& line) {
  CAPTURE(line);
  return hash_of(zerograd(line));
}

Curve curve_of(const std::string& line) {
  const TemporaryFolder folder;
  const std::string metrics = folder / "metrics";
  CAPTURE(line);
  const Outcome outcome = checked(zerograd(line + " --metrics " + metrics));
  Curve curve{
      .hash = line_after(outcome.out, "param_hash "), .losses = {}, .norms = {}, .last = {}};
  for (const nlohmann::json& record : json_lines(metrics)) {
    if (record.contains("final")) {
      curve.last = record;
    } else {
      curve.losses.push_back(record.at("loss"));
      curve.norms.push_back(record.at("grad_norm"));
    }
  }
  return curve;
}

void edit_json(const std::string& path, const std::function<void(nlohmann::json&)>& edit) {
  nlohmann::json object = nlohmann::json::parse(read_file(path));
  edit(object);
  write_file(path, object.dump());
}

FolderCopy::FolderCopy(const std::string& from)
    : path(folder / std::filesystem::path(from).filename().string()) {
  std::filesystem::copy(from, path, std::filesystem::copy_options::recursive);
}

void check_plan_is_run(const std::string& flags) {
  const TemporaryFolder folder;
  CAPTURE(flags);
  for (const char* command : {"plan", "train --score-samples 0 --log-interval 0"})
    checked(
        zerograd(command + (" " + flags) + " --memory-json " + folder / std::string(command, 4)));
  CHECK(read_file(folder / "plan").size() > 200);
  CHECK(read_file(folder / "plan") == read_file(folder / "trai"));
}

std::string write_tokens(const TemporaryFolder& folder, const TokenFile& tokens) {
  int32_t header[256] = {20240520, 1, tokens.count};  // llm.c's magic number and version
  std::vector<uint16_t> ids;
  for (int64_t i = 0; i < tokens.count; ++i)
    ids.push_back(static_cast<uint16_t>((i * i + 3 * i) % tokens.vocabulary));
  std::string bytes(sizeof header + 2 * ids.size(), '\0');
  std::memcpy(bytes.data(), header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, ids.data(), 2 * ids.size());
  write_file(folder / "tokens.bin", bytes);
  return folder / "tokens.bin";
}

}  // namespace zg::testing
