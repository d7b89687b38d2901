#include "tools/launch/hostfile.h"

#include <algorithm>
#include <sstream>

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

constexpr int64_t most_slots = 4096, most_ranks = 65536;
constexpr size_t most_hosts = 4096;
constexpr int64_t largest_file = 1 << 20;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Accepts only characters that are safe in options and shell commands.
bool is_host_name(const std::string& name) {
  return !name.empty() && name.size() <= 253 && is_word(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return is_word(c) || c == '.' || c == '-'; });
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::vector<int> first_slots(int64_t count) {
  std::vector<int> slots;
  for (int slot = 0; slot < count; ++slot) slots.push_back(slot);
  return slots;
}

std::vector<Host>::iterator find(std::vector<Host>& hosts, const std::string& name) {
  return std::find_if(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == name; });
}

// Parses the hosts of a selection with their slots; an empty list of slots means all.
std::vector<Host> parse_selection(const std::string& flag, const std::string& text,
                                  std::vector<Host>& hosts) {
  std::vector<Host> chosen;
  for (const std::string& part : split(text, '@')) {
    const size_t colon = part.find(':');
    Host host = {.name = part.substr(0, colon)};
    const auto known = find(hosts, host.name);
    if (known == hosts.end())
      throw ConfigError(flag + ": expected hosts of the hostfile, got '" + printable(host.name) +
                        "'");
    if (find(chosen, host.name) != chosen.end())
      throw ConfigError(flag + ": " + host.name + " comes twice; expected it once, as " +
                        host.name + ":0,1");
    if (colon != std::string::npos)
      for (const std::string& word : split(part.substr(colon + 1), ',')) {
        const auto slot = static_cast<int>(parse_integer(flag, word, 0, most_slots));
        if (std::find(known->slots.begin(), known->slots.end(), slot) == known->slots.end())
          throw ConfigError(flag + ": " + host.name + " has no slot " + word +
                            "; expected one of its " + std::to_string(known->slots.size()));
        if (std::find(host.slots.begin(), host.slots.end(), slot) != host.slots.end())
          throw ConfigError(flag + ": slot " + word + " of " + host.name +
                            " comes twice; expected it once");
        host.slots.push_back(slot);
      }
    if (colon != std::string::npos && host.slots.empty())
      throw ConfigError(flag + ": expected slots after '" + printable(part) + "', as in " +
                        host.name + ":0,2");
    chosen.push_back(std::move(host));
  }
  if (chosen.empty()) throw ConfigError(flag + ": expected host@host:0,2, got nothing");
  return chosen;
}

}  // namespace

std::vector<Host> read_hostfile(const std::string& path) {
  if (File::open(path).size() > largest_file)
    throw ConfigError(path + ":1: expected 'host slots=N' on each line, got more than 1 MiB");
  return parse_hosts(read_text(path), path);
}

std::vector<Host> parse_hosts(const std::string& text, const std::string& file) {
  std::vector<Host> hosts;
  int number = 0;
  int64_t ranks = 0;
  for (const std::string& line : split(text, '\n')) {
    const std::string place = file + ":" + std::to_string(++number) + ": ";
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, more;
    if (!(words >> name)) continue;
    if (!(words >> slots) || (words >> more) || !slots.starts_with("slots="))
      throw ConfigError(place + "expected 'host slots=N', got '" + printable(line) + "'");
    if (!is_host_name(name))
      throw ConfigError(place + "expected a host's name of letters, digits, . and -, got '" +
                        printable(name) + "'");
    if (find(hosts, name) != hosts.end())
      throw ConfigError(place + name + " comes twice; expected each host once");
    const int64_t count = parse_integer(place + "slots", slots.substr(6), 1, most_slots);
    ranks += count;
    if (ranks > most_ranks || hosts.size() == most_hosts)
      throw ConfigError(place + "expected at most 4096 hosts of 65536 slots in all, got more");
    hosts.push_back({name, first_slots(count)});
  }
  if (hosts.empty())
    throw ConfigError(file + ":1: expected 'host slots=N' on each line, got no host");
  return hosts;
}

std::vector<Host> selected(std::vector<Host> hosts, const std::string& include,
                           const std::string& exclude) {
  if (!include.empty() && !exclude.empty())
    throw ConfigError("--include: expected one of --include and --exclude, got both");
  if (!include.empty()) {
    std::vector<Host> chosen = parse_selection("--include", include, hosts);
    for (Host& host : chosen)
      if (host.slots.empty()) host.slots = find(hosts, host.name)->slots;
    return chosen;
  }
  if (exclude.empty()) return hosts;
  for (const Host& out : parse_selection("--exclude", exclude, hosts)) {
    std::vector<int>& slots = find(hosts, out.name)->slots;
    if (out.slots.empty()) slots.clear();
    for (int slot : out.slots) std::erase(slots, slot);
  }
  std::erase_if(hosts, [](const Host& host) { return host.slots.empty(); });
  if (hosts.empty())
    throw ConfigError("--exclude: expected slots to run on, got none that is left");
  return hosts;
}

}  // namespace zg::tools
