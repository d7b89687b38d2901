#include "tests/tools/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace zg::testing {
namespace {

struct Process {
  pid_t pid = -1;
  int out = -1, error = -1;  // the ends to read from
};

Process start(const std::vector<std::string>& words, const char* path = nullptr) {
  int out[2], error[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0)
    throw std::runtime_error("no pipe");
  std::vector<char*> arguments = {const_cast<char*>(ZG_COMMAND)};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(path ? open(path, O_WRONLY) : out[1], STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    execv(ZG_COMMAND, arguments.data());
    _exit(127);
  }
  close(out[1]);
  close(error[1]);
  return {pid, out[0], error[0]};
}

// Reads both ends until they close; `seen` is called whenever stdout grew and says whether to read
// on there.
template <class Seen>
Outcome finish(const Process& process, const Seen& seen) {
  Outcome outcome{};
  pollfd ends[2] = {{process.out, POLLIN, 0}, {process.error, POLLIN, 0}};
  std::string* texts[2] = {&outcome.out, &outcome.error};
  for (int open = 2; open > 0;) {
    poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t count = read(ends[i].fd, bytes, sizeof bytes);
      bool more = count > 0;
      if (more) texts[i]->append(bytes, static_cast<size_t>(count));
      if (more && i == 0) more = seen(outcome.out);
      if (more) continue;
      close(ends[i].fd);
      ends[i].fd = -1;
      --open;
    }
  }
  int status = 0;
  rusage usage{};
  wait4(process.pid, &status, 0, &usage);
  outcome.resident_bytes = int64_t{usage.ru_maxrss} * 1024;
  outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

std::vector<std::string> split(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

Outcome zerograd(const std::vector<std::string>& words) {
  return finish(start(words), [](const std::string&) { return true; });
}

Outcome zerograd(const std::string& line) { return zerograd(split(line)); }

Outcome zerograd_signalled(const std::string& line, const std::string& text, int signal,
                           int times) {
  const Process process = start(split(line));
  bool sent = false;
  return finish(process, [&](const std::string& out) {
    if (sent || !contains(out, text)) return true;
    sent = true;
    for (int i = 0; i < times; ++i) kill(process.pid, signal);
    return true;
  });
}

Outcome zerograd_into(const std::string& path, const std::string& line) {
  return finish(start(split(line), path.c_str()), [](const std::string&) { return true; });
}

Outcome zerograd_unread(const std::string& line) {
  return finish(start(split(line)), [](const std::string&) { return false; });
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

}  // namespace zg::testing
