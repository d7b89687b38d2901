#include "zerograd/zero/checkpoint/checkpoint_layout.h"

#include <cstdio>

#include "zerograd/runtime/error.h"
#include "zerograd/zero/states/partition.h"

namespace zg::zero {
namespace {

constexpr NamedState saved_states[] = {{Engine::State::master, "master"},
                                       {Engine::State::moment1, "moment1"},
                                       {Engine::State::moment2, "moment2"}};

}  // namespace

std::string shard_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "%s%05d.safetensors", shard_prefix, rank);
  return name;
}

bool is_own_file_name(const std::string& name) {
  constexpr const char* letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 200 && name.front() != '.' &&
         name.find_first_not_of(letters) == std::string::npos && !name.starts_with(shard_prefix) &&
         name != manifest_name;
}

std::span<const NamedState> states_of(const Parameter& parameter) {
  return std::span(saved_states).first(is_updated(parameter) ? 3 : 1);
}

void check(const std::error_code& error, const char* operation, const std::string& path) {
  if (error) throw FileError(std::string(operation) + ": " + path + ": " + error.message());
}

std::vector<std::filesystem::path> entries_of(const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error))
    entries.push_back(it->path());
  check(error, "list", directory);
  return entries;
}

}  // namespace zg::zero
