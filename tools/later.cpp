#include "tools/later.h"

#include <algorithm>
#include <charconv>

#include "tools/values.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

// One row of the table: the values that change nothing, then those that are known and refused;
// anything else is a mistake. No values at all: the flag itself asks for what is not there.
struct Later {
  std::vector<std::string> names;
  std::string value;  // empty: a switch
  std::vector<std::string> accepted;
  std::vector<std::string> refused;  // empty: any other value is refused
  const char* why;
};

// 1, 1.0 and 1e0 are one number.
bool equal(const std::string& a, const std::string& b) {
  double x = 0.0, y = 0.0;
  const auto whole = [](const std::string& word, double& number) {
    const char* last = word.data() + word.size();
    const auto [end, error] = std::from_chars(word.data(), last, number);
    return error == std::errc() && end == last;
  };
  return a == b || (whole(a, x) && whole(b, y) && x == y);
}

bool contains(const std::vector<std::string>& values, const std::string& value) {
  return std::any_of(values.begin(), values.end(),
                     [&](const std::string& candidate) { return equal(candidate, value); });
}

void check(const Later& later, const std::string& name, const std::string& value) {
  if (contains(later.accepted, value)) return;
  if (later.value.empty() && contains({"false", "off", "0"}, value)) return;
  if (!later.refused.empty() && !contains(later.refused, value)) {
    std::vector<std::string> known = later.accepted;
    known.insert(known.end(), later.refused.begin(), later.refused.end());
    throw ConfigError(name + ": expected " + join(known, ", ") + ", got '" + value + "'" +
                      did_you_mean(value, known));
  }
  std::string message = name + (later.value.empty() ? "" : " " + value) + ": " + later.why;
  message += later.accepted.empty() ? "; leave the flag out"
                                    : "; try " + name + " " + join(later.accepted, " or ");
  throw Unsupported(message);
}

FlagGroup refusing(std::vector<Later> rows) {
  FlagGroup group;
  for (Later& row : rows)
    group.flags.push_back(
        {row.names, row.value, "",
         [row](const std::string& name, const std::string& value) { check(row, name, value); }});
  return group;
}

std::vector<Later> place_rows() {
  return {
      {{"--local-rank"}, "N", {"0", "-1"}, {}, "a process learns its rank from mpirun"},
  };
}

}  // namespace

FlagGroup later_place_flags() {
  std::vector<Later> rows = place_rows();
  rows.push_back({{"--ranks", "--gpus", "--num-gpus"}, "N", {"1"}, {}, "this runs on one rank"});
  return refusing(std::move(rows));
}

FlagGroup later_train_flags() {
  FlagGroup group = refusing(place_rows());
  // A switch of the systems that need it to turn DeepSpeed on; here there is nothing to turn on.
  group.flags.push_back(
      {{"--deepspeed"}, "", "", [](const std::string& name, const std::string& value) {
         parse_switch(name, value);
       }});
  return group;
}

}  // namespace zg::tools
