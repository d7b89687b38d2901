#include <algorithm>

#include "tools/options/flags.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

FlagGroup GivenFlags::recorded(FlagGroup group) {
  for (Flag& flag : group.flags)
    flag.set = [set = flag.set, is_switch = flag.value.empty(), this](const std::string& name,
                                                                      const std::string& value) {
      flags_.emplace_back(
          name, is_switch ? std::vector{value == "true" ? name : fmt::format("{}={}", name, value)}
                          : std::vector{name, value});
      set(name, value);
    };
  return group;
}

std::vector<std::string> GivenFlags::without(const std::set<std::string>& names) const {
  std::vector<std::string> words;
  for (const auto& [name, own] : flags_)
    if (!names.count(name)) words.insert(words.end(), own.begin(), own.end());
  return words;
}

namespace {

std::string quoted(const std::string& word) {
  if (word.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%") ==
      std::string::npos)
    return word;
  std::string quoted = "'";
  for (char letter : word) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

}  // namespace

std::string shell_line(std::vector<std::string> words) {
  std::ranges::transform(words, words.begin(), quoted);
  return join(words, " ");
}

}  // namespace zg::tools
