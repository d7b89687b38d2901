#include "tools/flags.h"

#include "tools/text.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

std::string with_default(const std::string& help, const std::string& shown) {
  return shown.empty() ? help : help + " [" + shown + "]";
}

}  // namespace

Flag integer_flag(Names names, int64_t& target, const std::string& help, Count count) {
  return {std::move(names), "N",
          with_default(help, count.shown ? count.shown : std::to_string(target)),
          [&target, count](const std::string& name, const std::string& value) {
            target = parse_integer(name, value, count.least, largest_count);
          }};
}

Flag integer_flag(Names names, std::optional<int64_t>& target, const std::string& help,
                  Count count) {
  return {std::move(names), "N", with_default(help, count.shown ? count.shown : ""),
          [&target, count](const std::string& name, const std::string& value) {
            target = parse_integer(name, value, count.least, largest_count);
          }};
}

Flag size_flag(Names names, int64_t& target, const std::string& help) {
  return {std::move(names), "SIZE", help,
          [&target](const std::string& name, const std::string& value) {
            target = parse_size(name, value);
          }};
}

Flag number_flag(Names names, double& target, const Range& range, const std::string& help,
                 const char* shown) {
  return {std::move(names), "X", with_default(help, shown ? shown : text("%g", target)),
          [&target, range](const std::string& name, const std::string& value) {
            target = parse_number(name, value, range);
          }};
}

Flag number_flag(Names names, float& target, const Range& range, const std::string& help) {
  return {std::move(names), "X", with_default(help, text("%g", static_cast<double>(target))),
          [&target, range](const std::string& name, const std::string& value) {
            target = static_cast<float>(parse_number(name, value, range));
          }};
}

Flag seed_flag(uint64_t& target, const std::string& help) {
  return {{"--seed"},
          "N",
          with_default(help, std::to_string(target)),
          [&target](const std::string& name, const std::string& value) {
            target = static_cast<uint64_t>(parse_integer(name, value, 0));
          }};
}

Flag text_flag(Names names, const std::string& value, std::string& target,
               const std::string& help) {
  return {std::move(names), value, help,
          [&target, value](const std::string& name, const std::string& given) {
            if (given.empty()) throw ConfigError(name + ": expected " + value + ", got nothing");
            target = given;
          }};
}

Flag positional(const char* name, const char* help, std::string& target) {
  return {
      {}, name, help, [&target](const std::string&, const std::string& value) { target = value; }};
}

Flag switch_flag(Names names, bool& target, const std::string& help) {
  return {std::move(names), "", help, [&target](const std::string& name, const std::string& value) {
            target = parse_switch(name, value);
          }};
}

}  // namespace zg::tools
