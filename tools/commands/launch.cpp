#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tools/commands/subcommands.h"
#include "tools/launch/launcher.h"
#include "tools/options/options.h"
#include "tools/run/child.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

struct LaunchOptions {
  int64_t nodes = -1, slots = -1, master_port = 29500;  // -1: all
  std::string hostfile, include, exclude, launcher, master_addr;
};

using Words = std::vector<std::string>;

Flag count_flag(Names names, int64_t& target, const std::string& help) {
  return {std::move(names), "N", help + " [-1: all]",
          [&target](const std::string& name, const std::string& value) {
            target = value == "-1" ? -1 : parse_integer(name, value, 1, 4096);
          }};
}

CommandLine command_line(LaunchOptions& options) {
  return {.usage = "zerograd launch [flags] [--] train ...",
          .summary = "Starts train as one process for each rank, with DeepSpeed's flags.",
          .groups = {{"flags",
                      {count_flag({"--num-gpus", "--num-accelerators"}, options.slots,
                                  "ranks on each host; without a hostfile, all: a rank for each\n"
                                  "core"),
                       count_flag({"--num-nodes"}, options.nodes, "first N hosts of the hostfile"),
                       path_flag({"--hostfile", "-H"}, "F", options.hostfile, PathUse::reads,
                                 "lines of 'host slots=N'; none: this machine"),
                       text_flag({"--include", "-i"}, "S", options.include,
                                 "host@host:0,2: these hosts and slots only"),
                       text_flag({"--exclude", "-e"}, "S", options.exclude,
                                 "all hosts and slots but these"),
                       text_flag({"--launcher"}, "L", options.launcher,
                                 "openmpi, mpich or slurm [the build's MPI]; slurm without a\n"
                                 "hostfile uses the hosts of the job's allocation"),
                       integer_flag({"--master-port"}, options.master_port,
                                    "no effect: MPI finds its own ports", {1, ""}),
                       text_flag({"--master-addr"}, "A", options.master_addr,
                                 "no effect: MPI finds its own addresses")}}},
          .notes = "  zerograd launch --num_gpus 2 train --data sort --zero-stage 2"};
}

// All flags of the launcher take a value. So the command starts at the first word that is neither a
// flag nor its value.
size_t begin_of_command(const Words& words) {
  size_t i = 0;
  while (i < words.size() && words[i].size() > 1 && words[i][0] == '-' && words[i] != "--")
    i +=
        words[i].find('=') == std::string::npos && words[i] != "--help" && words[i] != "-h" ? 2 : 1;
  return std::min(i, words.size());
}

std::vector<Host> hosts_of(const LaunchOptions& options) {
  const bool allocated = options.launcher == "slurm" && options.hostfile.empty();
  const bool selects = !options.include.empty() || !options.exclude.empty();
  if (selects && (options.slots != -1 || options.nodes != -1))
    throw ConfigError(
        "--include: expected either --include or --exclude, or --num_nodes and --num_gpus; got "
        "both kinds");
  if (allocated && selects)
    throw ConfigError("--include: expected a --hostfile with it and --launcher slurm, got none");
  if (allocated) return {};
  if (options.hostfile.empty() || !path_exists(options.hostfile)) {
    if (!options.hostfile.empty())
      print_line(stderr, "warning: --hostfile: there is no {}; only this machine is used",
                 options.hostfile);
    if (options.nodes > 1)
      throw ConfigError("--num_nodes: expected a --hostfile with it, got none");
    const int64_t count = options.slots == -1 ? available_cores() : options.slots;
    return selected({{"localhost", first_slots(count)}}, options.include, options.exclude);
  }
  std::vector<Host> hosts =
      selected(read_hostfile(options.hostfile), options.include, options.exclude);
  if (options.nodes > std::ssize(hosts))
    raise<ConfigError>("--num_nodes: expected at most the hostfile's {}, got {}", hosts.size(),
                       options.nodes);
  if (options.nodes > 0) hosts.resize(static_cast<size_t>(options.nodes));
  for (Host& host : hosts) {
    if (options.slots > std::ssize(host.slots))
      raise<ConfigError>("--num_gpus: expected at most the {} slots of {}, got {}",
                         host.slots.size(), host.name, options.slots);
    if (options.slots > 0) host.slots.resize(static_cast<size_t>(options.slots));
  }
  return hosts;
}

// Runs the launcher. Returns the signal that this process received, because the launcher's status
// does not show it.
ChildEnd run_launcher(Launcher launcher, const Words& words) {
  const ChildEnd end = run_child(words,
                                 "try installing it (openmpi-bin, mpich or slurm-client), or train "
                                 "--ranks N, whose ranks are threads",
                                 launcher == Launcher::openmpi);
  return {end.status != 0 && end.signal != 0 ? 128 + end.signal : end.status, end.signal};
}

}  // namespace

int launch(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  const size_t begin = begin_of_command(arguments);
  const auto split = arguments.begin() + static_cast<int64_t>(begin);
  Given given;
  if (!parse(command_line(options), Words(arguments.begin(), split), given)) return 0;
  Words command(split, arguments.end());
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  const bool finetunes = !command.empty() && command.front() == "finetune";
  if (command.empty() || (command.front() != "train" && !finetunes))
    raise<ConfigError>(
        "launch: expected train or finetune and its flags, got {}; try zerograd launch --num_gpus "
        "2 train --data sort",
        command.empty() ? "nothing" : fmt::format("'{}'", command.front()));
  TrainOptions train = finetunes ? finetune_options() : TrainOptions();
  if (!parse_flags(Words(command.begin() + 1, command.end()), train)) return 0;
  if (!train.autotuning.empty())
    throw ConfigError(
        "--autotuning: expected a run of one process, got launch; try zerograd tune with the same "
        "flags and --ranks, then launch train --config with what it wrote");
  if (std::ranges::find(command, ":") != command.end())
    throw ConfigError(
        "launch: expected no word ':' in train's command line, got one; it would begin another "
        "program for mpirun, mpiexec.hydra and srun; for a path of that name try ./:");
  command.insert(command.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  Job job{.hosts = hosts_of(options),
          .nodes = options.nodes,
          .slots = options.slots,
          .command = std::move(command),
          .timeout_s = train.comm_timeout_s};
  const std::string mpi = mpi_version();
  const Launcher launcher = launcher_of(options.launcher, mpi);
  for (const char* flag : {"--master-port", "--master-addr"})
    if (given.count(flag))
      print_line(stderr, "launch: without effect: {} (MPI finds its own)", flag);
  if (!must_supervise(train))
    return run_launcher(launcher, launcher_words(launcher, mpi, job)).status;
  const auto start = [&](const Words& words) {
    job.command = words;
    return run_launcher(launcher, launcher_words(launcher, mpi, job));
  };
  return run_with_restarts(train, job.command, start).status;
}

}  // namespace zg::tools
