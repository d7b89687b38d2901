#include "zerograd/zero/deepspeed/schema.h"

#include <algorithm>
#include <set>

#include "zerograd/runtime/text/format.h"

namespace zg::zero::deepspeed {
namespace {

// Frequent mistakes that are not close to the right key by edit distance.
constexpr const char* known_mistakes[][2] = {
    {"all_reduce_bucket_size", "did you mean allgather_bucket_size, or reduce_bucket_size?"},
    {"batch_size", "did you mean train_batch_size, or train_micro_batch_size_per_gpu?"},
    {"micro_batch_size", "did you mean train_micro_batch_size_per_gpu?"},
    {"max_grad_norm", "try gradient_clipping at the top level"},
    {"learning_rate", "did you mean lr?"},
    {"half", "did you mean fp16?"},
    {"dynamic_loss_scale", "did you mean \"loss_scale\": 0?"},
};

bool has_name(const Row& row, const std::string& key) {
  if (key == row.key) return true;
  if (*row.alias == '\0') return false;
  const std::string aliases = std::string("|") + row.alias + "|";
  return key.find('|') == std::string::npos &&
         aliases.find(fmt::format("|{}|", key)) != std::string::npos;
}

// True if both sections belong to DeepSpeed's config, or both to accelerate's.
bool is_same_file(const std::string& a, const std::string& b) {
  return a.starts_with("accelerate") == b.starts_with("accelerate");
}

std::string quoted_section(const std::string& section) {
  return section.empty()           ? "the top level"
         : section == "accelerate" ? "accelerate's YAML"
                                   : path_of(section);
}

using Names = std::vector<std::string>;

const Names schedules = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"};

bool is_optimizer(const std::string& section) { return section == "optimizer"; }

bool equal_folded(const std::string& a, const std::string& b) {
  return lower_case(a) == lower_case(b);
}

bool contains_folded(const Names& names, const std::string& word) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return equal_folded(name, word); });
}

}  // namespace

std::string path_of(const std::string& section) {
  if (section.empty()) return "";
  if (section == "accelerate_deepspeed") return "deepspeed_config";
  if (contains_folded(optimizer_names, section)) return "optimizer.params";
  if (section == "writer") return "checkpoint.writer";
  if (!section_of_schedule(section).empty()) return "scheduler.params";
  if (section.starts_with("offload_")) return "zero_optimization." + section;
  return section;
}

std::string path_of(const Row& row) {
  if (std::string(row.section) == "accelerate") return row.key;
  const std::string section = path_of(row.section);
  return section.empty() ? row.key : section + "." + row.key;
}

const Row* find_row(const std::string& section, const std::string& key) {
  for (const Row& row : rows())
    if (section == row.section && has_name(row, key)) return &row;
  return nullptr;
}

std::vector<std::string> keys_of(const std::string& section) {
  std::vector<std::string> keys;
  for (const Row& row : rows())
    if (section == row.section) keys.emplace_back(row.key);
  return keys;
}

std::string advice_on(const std::string& section, const std::string& key) {
  const std::string word = lower_case(key);
  for (const auto& [mistake, advice] : known_mistakes)
    if (word == mistake) return advice;
  // A key such as `enabled` is in many sections; the hint names sections only if there are few.
  std::set<std::string> places, types;
  for (const Row& row : rows()) {
    if (section == row.section || !has_name(row, word) || !is_same_file(row.section, section))
      continue;
    if (path_of(row.section) == path_of(section))
      types.insert(row.section);
    else
      places.insert((*row.section ? "in " : "at ") + quoted_section(row.section));
  }
  if (!types.empty()) return "try a type that has it: " + join({types.begin(), types.end()}, ", ");
  if (!places.empty() && places.size() <= 3)
    return fmt::format("try it {}, where it belongs", join({places.begin(), places.end()}, " or "));
  const std::vector<std::string> keys = keys_of(section);
  const std::string near = nearest(word, keys);
  if (!near.empty()) return fmt::format("did you mean {}?", near);
  std::vector<std::string> all;
  for (const Row& row : rows())
    if (is_same_file(row.section, section)) all.emplace_back(row.key);
  const std::string far = nearest(word, all);
  if (!far.empty()) return fmt::format("did you mean {}, of another section?", far);
  return fmt::format(
      "try leaving it out; {} has {}{}", quoted_section(section),
      join({keys.begin(), keys.begin() + std::min<long>(6, static_cast<long>(keys.size()))}, ", "),
      keys.size() > 6 ? ", ..." : "");
}

const char* fallback_of(const Row& row, DeepSpeedVersion version) {
  return version == DeepSpeedVersion::v0_16 && row.fallback_0_16 ? row.fallback_0_16 : row.fallback;
}

std::string section_of_optimizer(const std::string& type) {
  if (!contains_folded(optimizer_names, type)) return "";
  return equal_folded(type, "AdamW") ? "adam" : lower_case(type);
}

std::string section_of_schedule(const std::string& type) {
  return std::ranges::find(schedules, type) != schedules.end() ? type : "";
}

bool is_unsupported_optimizer(const std::string& type) {
  return contains_folded(unsupported_optimizer_names, type);
}

std::string join_names(const std::string& section) {
  return join(is_optimizer(section) ? optimizer_names : schedules, ", ");
}

std::string name_advice(const std::string& section, const std::string& type) {
  Names known = is_optimizer(section) ? optimizer_names : schedules;
  if (is_optimizer(section))
    known.insert(known.end(), unsupported_optimizer_names.begin(),
                 unsupported_optimizer_names.end());
  for (const std::string& name : known)
    if (equal_folded(name, type)) return fmt::format("; did you mean {}?", name);
  const std::string meant = did_you_mean(type, known);
  return meant.empty() ? "; try " + known[is_optimizer(section) ? 1 : 0] : meant;
}

}  // namespace zg::zero::deepspeed
