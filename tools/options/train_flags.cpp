#include "tools/options/train_flags.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

Flag offload_flag(const char* name, Space& space, const std::string& help) {
  return {
      {name}, "none|host|nvme", help, [&space](const std::string& flag, const std::string& value) {
        // DeepSpeed's name for the host is cpu.
        const size_t choice =
            value == "cpu" ? 1 : parse_choice(flag, value, {"none", "host", "nvme"});
        constexpr Space spaces[] = {Space::device, Space::host, Space::file};
        space = spaces[choice];
      }};
}

namespace {

using Fault = FaultInjection::Fault;
using Phase = FaultInjection::Phase;

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
    const std::string path = fmt::format("{} {}", name, key);
    given.insert(key);
    if (key == "rank") {
      injection.rank = parse_integer(path, what, 0);
    } else if (key == "step") {
      injection.steps = parse_steps(path, what);
    } else if (key == "fault") {
      injection.fault = static_cast<Fault>(parse_choice(path, what, fault_words) + 1);
    } else if (key == "phase") {
      injection.phase = static_cast<Phase>(parse_choice(path, what, phase_words) + 1);
    } else {
      throw ConfigError(
          fmt::format("{}: expected rank, step, fault and phase, got '{}'", name, key));
    }
  }
  const bool has_step = given.count("step") > 0, wants_step = injection.phase != Phase::init;
  if (!given.count("rank") || !given.count("fault") || has_step != wants_step)
    throw ConfigError(name + ": expected rank=R,step=S,fault=F[,phase=P], or rank=R,fault=F," +
                      "phase=init, got '" + value + "'");
  if (injection.fault == Fault::infinity && injection.phase != Phase::begin)
    throw ConfigError(name + ": expected fault=inf without a phase, got '" + value + "'");
}

}  // namespace

Flag injection_flag(FaultInjection& injection) {
  return {{"--inject"},
          "DRILL",
          "a fault on purpose: rank=R,step=S[+S...],fault=F[,phase=P]; F:\n" +
              join(fault_words, "|") + ";\nP: " + join(phase_words, "|") +
              " [the step's begin]; init has no step",
          [&injection](const std::string& name, const std::string& value) {
            parse_injection(name, value, injection);
          }};
}

Flag gradients_flag(TrainOptions& options) {
  Flag flag = path_flag({"--dump-gradients"}, "F[:STEP]", options.dump_gradients, PathUse::writes,
                        "gradients of a step as safetensors [step 0]");
  flag.set = [&options](const std::string& name, const std::string& value) {
    const size_t colon = value.rfind(':');
    const bool has_step = colon != std::string::npos && colon + 1 < value.size() &&
                          value.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    options.dump_gradients = has_step ? value.substr(0, colon) : value;
    options.dump_gradients_step = has_step ? parse_integer(name, value.substr(colon + 1), 0) : 0;
    if (options.dump_gradients.empty())
      throw ConfigError(name + ": expected a path, got '" + value + "'");
  };
  return flag;
}

Flag trace_steps_flag(std::optional<StepRange>& steps) {
  return {{"--trace-steps"},
          "FIRST:COUNT",
          "steps that --trace has [3 after 2 of warm-up]",
          [&steps](const std::string& name, const std::string& value) {
            const size_t colon = value.find(':');
            if (colon == std::string::npos)
              throw ConfigError(name + ": expected FIRST:COUNT such as 10:3, got '" + value + "'");
            const int64_t first = parse_integer(name, value.substr(0, colon), 0, largest_count);
            const int64_t count = parse_integer(name, value.substr(colon + 1), 1, largest_count);
            steps = StepRange{first, first + count};
          }};
}

Flag autotuning_flag(std::string& mode) {
  return {{"--autotuning"},
          "run|tune|off",
          "find a fast setting as zerograd tune does, write it to tuned.json, and\n"
          "train with it (run) or not (tune); off: not even where a config enables it [off]",
          [&mode](const std::string& name, const std::string& value) {
            const size_t choice = parse_choice(name, value, {"run", "tune", "off"});
            mode = choice == 2 ? "" : value;
          }};
}

}  // namespace zg::tools
