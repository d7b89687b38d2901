#include "tools/config/names.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "tools/values.h"

namespace zg::tools {
namespace {

using Names = std::vector<std::string>;

const Names optimizers = {"Adam", "AdamW"};
const Names later_optimizers = {
    "Adagrad", "Lamb",  "Lion", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "Muon",   "MuAdam",
    "MuAdamW", "MuSGD", "SGD",  "RMSprop",    "NAdam",       "RAdam",      "Adamax", "Adafactor"};
const Names schedules = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"};

bool is_optimizer(const std::string& section) { return section == "optimizer"; }

bool equal_folded(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

bool contains_folded(const Names& names, const std::string& word) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return equal_folded(name, word); });
}

}  // namespace

std::string section_of_optimizer(const std::string& type) {
  return contains_folded(optimizers, type) ? "adam" : "";
}

std::string section_of_schedule(const std::string& type) {
  return std::find(schedules.begin(), schedules.end(), type) != schedules.end() ? type : "";
}

bool is_later_optimizer(const std::string& type) { return contains_folded(later_optimizers, type); }

std::string join_names(const std::string& section) {
  return join(is_optimizer(section) ? optimizers : schedules, ", ");
}

std::string name_advice(const std::string& section, const std::string& type) {
  Names known = is_optimizer(section) ? optimizers : schedules;
  if (is_optimizer(section))
    known.insert(known.end(), later_optimizers.begin(), later_optimizers.end());
  for (const std::string& name : known)
    if (equal_folded(name, type)) return "; did you mean " + name + "?";
  const std::string meant = did_you_mean(type, known);
  return meant.empty() ? "; try " + known[is_optimizer(section) ? 1 : 0] : meant;
}

}  // namespace zg::tools
