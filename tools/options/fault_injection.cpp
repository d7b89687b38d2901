#include "tools/options/fault_injection.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <thread>

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

using Fault = FaultInjection::Fault;
using Phase = FaultInjection::Phase;

// In the order of their enumerators, without none and begin, which cannot be requested.
const std::vector<std::string> faults = {"throw", "return", "stall", "inf",
                                         "kill",  "stop",   "oom",   "mismatch"};
const std::vector<std::string> phases = {"init", "forward", "backward", "step", "save"};

std::vector<int64_t> parse_steps(const std::string& flag, const std::string& value) {
  std::vector<int64_t> steps;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = value.find('+', begin);
    steps.push_back(parse_integer(flag, value.substr(begin, end - begin), 0));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void parse_injection(const std::string& name, const std::string& value, FaultInjection& injection) {
  Given given;
  std::istringstream parts(value);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string what = equals == std::string::npos ? "" : part.substr(equals + 1);
    const std::string path = name + " " + key;
    given.insert(key);
    if (key == "rank") {
      injection.rank = parse_integer(path, what, 0);
    } else if (key == "step") {
      injection.steps = parse_steps(path, what);
    } else if (key == "fault") {
      injection.fault = static_cast<Fault>(parse_choice(path, what, faults) + 1);
    } else if (key == "phase") {
      injection.phase = static_cast<Phase>(parse_choice(path, what, phases) + 1);
    } else {
      throw ConfigError(name + ": expected rank, step, fault and phase, got '" + key + "'");
    }
  }
  const bool has_step = given.count("step") > 0, wants_step = injection.phase != Phase::init;
  if (!given.count("rank") || !given.count("fault") || has_step != wants_step)
    throw ConfigError(name + ": expected rank=R,step=S,fault=F[,phase=P], or rank=R,fault=F," +
                      "phase=init, got '" + value + "'");
  if (injection.fault == Fault::infinity && injection.phase != Phase::begin)
    throw ConfigError(name + ": expected fault=inf without a phase, got '" + value + "'");
}

// Hangs until the peers give up on this rank, which ends its process.
[[noreturn]] void stall() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

void strike(const FaultInjection& injection, Phase phase, int64_t step, Communicator& ranks,
            const Device& device) {
  if (!injection.strikes(ranks.rank(), step, phase) || injection.fault == Fault::infinity ||
      device.type() == Device::Type::meta)
    return;
  const bool alone = ranks.size() == 1;
  const std::string where =
      text("in step %lld", (long long)step) +
      (phase == Phase::begin ? "" : ", phase " + phases[static_cast<size_t>(phase) - 1]);
  std::fprintf(stderr, "inject: %s on rank %d/%d pid %d in step %lld\n",
               faults[static_cast<size_t>(injection.fault) - 1].c_str(), ranks.rank(), ranks.size(),
               static_cast<int>(getpid()), (long long)step);
  switch (injection.fault) {
    case Fault::none:
    case Fault::infinity:
      return;
    case Fault::error:
      throw ShapeError("inject: a drill " + where);
    case Fault::leave:  // with a single rank no peer would notice
      if (alone) throw CommError("inject: a drill ended the rank " + where);
      throw LeftEarly{};
    case Fault::stall:
      if (alone) throw CommError("inject: a drill stalled the rank " + where);
      stall();
    case Fault::kill:
      std::raise(SIGKILL);
      return;
    case Fault::stop:
      std::raise(SIGSTOP);
      return;
    case Fault::memory:
      Tensor::empty({int64_t{1} << 50}, DType::u8, device);
      return;
    case Fault::mismatch:
      ranks.wait(ranks.barrier("inject: a drill"));
      return;
  }
}

Flag injection_flag(FaultInjection& injection) {
  return {{"--inject"},
          "DRILL",
          "a fault on purpose: rank=R,step=S[+S...],fault=F[,phase=P]; F:\n" + join(faults, "|") +
              ";\nP: " + join(phases, "|") + " [the step's begin]; init has no step",
          [&injection](const std::string& name, const std::string& value) {
            parse_injection(name, value, injection);
          }};
}

}  // namespace zg::tools
