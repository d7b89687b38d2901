#include "tools/launch/launcher.h"

#include <unistd.h>

#include <algorithm>

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
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
    words.push_back(host.name + ":" + std::to_string(host.slots.size()));
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

// A stopped process would keep srun waiting after all others have ended, so the first process that
// fails must end the others.
Words slurm_words(const Job& job, const std::string& mpi_version) {
  Words words = {"srun", "--kill-on-bad-exit=1",
                 is_open_mpi(mpi_version) ? "--mpi=pmix" : "--mpi=pmi2"};
  if (!job.hosts.empty()) {
    words.insert(words.end(),
                 {"--ntasks=" + std::to_string(ranks_of(job.hosts)), "--distribution=arbitrary",
                  "--nodelist=" + host_of_each_rank(job.hosts)});
    return words;
  }
  if (job.nodes > 0) words.push_back("--nodes=" + std::to_string(job.nodes));
  if (job.slots > 0) words.push_back("--ntasks-per-node=" + std::to_string(job.slots));
  return words;
}

}  // namespace

Launcher launcher_of(const std::string& name, const std::string& mpi_version) {
  static const Words known = {"openmpi", "mpich", "slurm"};
  static const Words others = {"pdsh", "mvapich", "impi"};
  const std::string own = is_open_mpi(mpi_version) ? known[0] : known[1];
  const auto found = std::find(known.begin(), known.end(), name.empty() ? own : name);
  if (found == known.end()) {
    const bool is_other = std::find(others.begin(), others.end(), name) != others.end();
    const std::string message =
        "--launcher: expected " + join(known, ", ") + ", got '" + name + "'";
    if (is_other) throw Unsupported(message + "; try leaving it out: mpirun reaches hosts by ssh");
    throw ConfigError(message + did_you_mean(name, known));
  }
  if (mpi_version.empty())
    throw Unsupported(
        "launch: expected a build with Open MPI or MPICH, got none; try train --ranks N, whose "
        "ranks are threads");
  if (*found != known[2] && *found != own)
    throw Unsupported("--launcher: this build links " + mpi_version + "; expected " + own +
                      " or slurm, got " + *found + "; try leaving it out");
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
