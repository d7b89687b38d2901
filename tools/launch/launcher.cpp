#include "tools/launch/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

constexpr int64_t max_slots = 4096, max_ranks = 65536;
constexpr size_t max_hosts = 4096;
constexpr int64_t largest_file = 1 << 20;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Accepts only characters that are safe in options and shell commands.
bool is_host_name(const std::string& name) {
  return !name.empty() && name.size() <= 253 && is_word(name.front()) &&
         std::ranges::all_of(name, [](char c) { return is_word(c) || c == '.' || c == '-'; });
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::vector<Host>::iterator find(std::vector<Host>& hosts, const std::string& name) {
  return std::ranges::find_if(hosts, [&](const Host& h) { return h.name == name; });
}

// Parses the hosts of a selection with their slots; an empty list of slots means all.
std::vector<Host> parse_selection(const std::string& flag, const std::string& text,
                                  std::vector<Host>& hosts) {
  std::vector<Host> chosen;
  for (const std::string& part : split(text, '@')) {
    const size_t colon = part.find(':');
    Host host = {.name = part.substr(0, colon)};
    const auto known = find(hosts, host.name);
    if (known == hosts.end())
      raise<ConfigError>("{}: expected hosts of the hostfile, got '{}'", flag,
                         printable(host.name));
    if (find(chosen, host.name) != chosen.end())
      raise<ConfigError>("{}: {} comes twice; expected it once, as {}:0,1", flag, host.name,
                         host.name);
    if (colon != std::string::npos)
      for (const std::string& word : split(part.substr(colon + 1), ',')) {
        const auto slot = static_cast<int>(parse_integer(flag, word, 0, max_slots));
        if (std::ranges::find(known->slots, slot) == known->slots.end())
          raise<ConfigError>("{}: {} has no slot {}; expected one of its {}", flag, host.name, word,
                             known->slots.size());
        if (std::ranges::find(host.slots, slot) != host.slots.end())
          raise<ConfigError>("{}: slot {} of {} comes twice; expected it once", flag, word,
                             host.name);
        host.slots.push_back(slot);
      }
    if (colon != std::string::npos && host.slots.empty())
      raise<ConfigError>("{}: expected slots after '{}', as in {}:0,2", flag, printable(part),
                         host.name);
    chosen.push_back(std::move(host));
  }
  if (chosen.empty()) raise<ConfigError>("{}: expected host@host:0,2, got nothing", flag);
  return chosen;
}

}  // namespace

std::vector<int> first_slots(int64_t count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

std::vector<Host> read_hostfile(const std::string& path) {
  if (File::open(path).size() > largest_file)
    raise<ConfigError>("{}:1: expected 'host slots=N' on each line, got more than 1 MiB", path);
  return parse_hosts(read_text(path), path);
}

std::vector<Host> parse_hosts(const std::string& text, const std::string& file) {
  std::vector<Host> hosts;
  int number = 0;
  int64_t ranks = 0;
  for (const std::string& line : split(text, '\n')) {
    const std::string place = fmt::format("{}:{}: ", file, ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, more;
    if (!(words >> name)) continue;
    if (!(words >> slots) || (words >> more) || !slots.starts_with("slots="))
      raise<ConfigError>("{}expected 'host slots=N', got '{}'", place, printable(line));
    if (!is_host_name(name))
      raise<ConfigError>("{}expected a host's name of letters, digits, . and -, got '{}'", place,
                         printable(name));
    if (find(hosts, name) != hosts.end())
      raise<ConfigError>("{}{} comes twice; expected each host once", place, name);
    const int64_t count = parse_integer(place + "slots", slots.substr(6), 1, max_slots);
    ranks += count;
    if (ranks > max_ranks || hosts.size() == max_hosts)
      raise<ConfigError>("{}expected at most 4096 hosts of 65536 slots in all, got more", place);
    hosts.push_back({name, first_slots(count)});
  }
  if (hosts.empty())
    raise<ConfigError>("{}:1: expected 'host slots=N' on each line, got no host", file);
  return hosts;
}

std::vector<Host> selected(std::vector<Host> hosts, const std::string& include,
                           const std::string& exclude) {
  if (!include.empty() && !exclude.empty())
    throw ConfigError("--include: expected one of --include and --exclude, got both");
  if (!include.empty()) {
    std::vector<Host> chosen = parse_selection("--include", include, hosts);
    for (Host& host : chosen)
      if (host.slots.empty()) host.slots = find(hosts, host.name)->slots;
    return chosen;
  }
  if (exclude.empty()) return hosts;
  for (const Host& out : parse_selection("--exclude", exclude, hosts)) {
    std::vector<int>& slots = find(hosts, out.name)->slots;
    if (out.slots.empty()) slots.clear();
    for (int slot : out.slots) std::erase(slots, slot);
  }
  std::erase_if(hosts, [](const Host& host) { return host.slots.empty(); });
  if (hosts.empty())
    throw ConfigError("--exclude: expected slots to run on, got none that is left");
  return hosts;
}

namespace {

using Words = std::vector<std::string>;

bool is_open_mpi(const std::string& version) { return version.starts_with("Open MPI"); }

size_t ranks_of(const std::vector<Host>& hosts) {
  size_t ranks = 0;
  for (const Host& host : hosts) ranks += host.slots.size();
  return ranks;
}

// "a:4,b:2"
std::string hosts_and_slots(const std::vector<Host>& hosts) {
  Words words;
  for (const Host& host : hosts)
    words.push_back(fmt::format("{}:{}", host.name, host.slots.size()));
  return join(words, ",");
}

// "a,a,a,a,b,b"
std::string host_of_each_rank(const std::vector<Host>& hosts) {
  Words words;
  for (const Host& host : hosts) words.insert(words.end(), host.slots.size(), host.name);
  return join(words, ",");
}

// Flags for lost hosts: by default mpirun waits 8 minutes for a lost host and keeps the job
// running.
Words watch_of_hosts(double timeout_s) {
  const auto seconds = [&](double share) {
    return std::to_string(std::max<int64_t>(1, static_cast<int64_t>(share * timeout_s)));
  };
  return {"--mca", "oob_tcp_keepalive_time",   seconds(0.4),
          "--mca", "oob_tcp_keepalive_intvl",  seconds(0.2),
          "--mca", "oob_tcp_keepalive_probes", "2"};
}

Words openmpi_words(const Job& job) {
  Words words = {"mpirun", "--oversubscribe", "--bind-to", "none"};
  if (geteuid() == 0) words.push_back("--allow-run-as-root");
  if (job.hosts.size() > 1) {
    const Words watch = watch_of_hosts(job.timeout_s);
    words.insert(words.end(), watch.begin(), watch.end());
  }
  words.insert(words.end(),
               {"-np", std::to_string(ranks_of(job.hosts)), "--host", hosts_and_slots(job.hosts)});
  return words;
}

Words mpich_words(const Job& job) {
  return {"mpiexec.hydra", "-np", std::to_string(ranks_of(job.hosts)), "-hosts",
          hosts_and_slots(job.hosts)};
}

// srun would wait for a stopped process even if all others have ended. So the first process that
// fails must end the others.
Words slurm_words(const Job& job, const std::string& mpi_version) {
  Words words = {"srun", "--kill-on-bad-exit=1",
                 is_open_mpi(mpi_version) ? "--mpi=pmix" : "--mpi=pmi2"};
  if (!job.hosts.empty()) {
    words.insert(words.end(),
                 {fmt::format("--ntasks={}", ranks_of(job.hosts)), "--distribution=arbitrary",
                  "--nodelist=" + host_of_each_rank(job.hosts)});
    return words;
  }
  if (job.nodes > 0) words.push_back(fmt::format("--nodes={}", job.nodes));
  if (job.slots > 0) words.push_back(fmt::format("--ntasks-per-node={}", job.slots));
  return words;
}

}  // namespace

Launcher launcher_of(const std::string& name, const std::string& mpi_version) {
  static const Words known = {"openmpi", "mpich", "slurm"};
  static const Words others = {"pdsh", "mvapich", "impi"};
  const std::string own = is_open_mpi(mpi_version) ? known[0] : known[1];
  const auto found = std::ranges::find(known, name.empty() ? own : name);
  if (found == known.end()) {
    const bool is_other = std::ranges::find(others, name) != others.end();
    const std::string message =
        fmt::format("--launcher: expected {}, got '{}'", join(known, ", "), name);
    if (is_other)
      raise<Unsupported>("{}; try leaving it out: mpirun reaches hosts by ssh", message);
    raise<ConfigError>("{}{}", message, did_you_mean(name, known));
  }
  if (mpi_version.empty())
    throw Unsupported(
        "launch: expected a build with Open MPI or MPICH, got none; try train --ranks N, whose "
        "ranks are threads");
  if (*found != known[2] && *found != own)
    raise<Unsupported>(
        "--launcher: this build links {}; expected {} or slurm, got {}; try leaving it out",
        mpi_version, own, *found);
  return static_cast<Launcher>(found - known.begin());
}

Words launcher_words(Launcher launcher, const std::string& mpi_version, const Job& job) {
  Words words = launcher == Launcher::openmpi ? openmpi_words(job)
                : launcher == Launcher::mpich ? mpich_words(job)
                                              : slurm_words(job, mpi_version);
  words.insert(words.end(), job.command.begin(), job.command.end());
  return words;
}

}  // namespace zg::tools
