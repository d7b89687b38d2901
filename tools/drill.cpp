#include "tools/drill.h"

#include <sstream>

#include "runtime/error.h"
#include "tools/values.h"

namespace zg::tools {
namespace {

std::vector<int64_t> parse_steps(const std::string& flag, const std::string& value) {
  std::vector<int64_t> steps;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = value.find('+', begin);
    steps.push_back(parse_integer(flag, value.substr(begin, end - begin), 0));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

Flag drill_flag(Drill& drill) {
  return {{"--inject"},
          "DRILL",
          "a fault on purpose: rank=R,step=S[+S...],\n"
          "fault=throw|return|stall|inf",
          [&drill](const std::string& name, const std::string& value) {
            Given given;
            std::istringstream parts(value);
            for (std::string part; std::getline(parts, part, ',');) {
              const size_t equals = part.find('=');
              const std::string key = part.substr(0, equals);
              const std::string what = equals == std::string::npos ? "" : part.substr(equals + 1);
              const std::string path = name + " " + key;
              given.insert(key);
              if (key == "rank") {
                drill.rank = parse_integer(path, what, 0);
              } else if (key == "step") {
                drill.steps = parse_steps(path, what);
              } else if (key == "fault") {
                const size_t choice = parse_choice(path, what, {"throw", "return", "stall", "inf"});
                drill.fault = static_cast<Drill::Fault>(choice + 1);
              } else {
                throw ConfigError(name + ": expected rank, step and fault, got '" + key + "'");
              }
            }
            if (given.size() != 3)
              throw ConfigError(name + ": expected rank=R,step=S,fault=F, got '" + value + "'");
          }};
}

}  // namespace zg::tools
