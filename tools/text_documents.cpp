#include "tools/text_documents.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tools/text.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/file_io.h"

namespace zg::tools {
namespace {

bool has_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

std::string text_of(const std::string& line, const std::string& key, const std::string& place) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw FileError(place + ": expected an object of JSON, got '" + printable(line) +
                    "': " + printable(error.what(), 120));
  }
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end() || !found->is_string())
    throw FileError(place + ": expected an object with a text under \"" + key + "\", got '" +
                    printable(line) + "'; try --json-key");
  return found->get<std::string>();
}

}  // namespace

bool TextDocuments::next(std::string& document) {
  for (; path_ < paths_.size(); ++path_) {
    if (!has_lines(paths_[path_])) {
      document = read_text(paths_[path_++]);
      return true;
    }
    if (next_line(document)) return true;
  }
  return false;
}

bool TextDocuments::next_line(std::string& document) {
  const std::string& path = paths_[path_];
  errno = 0;
  if (line_ == 0) lines_ = std::ifstream(path, std::ios::binary);
  std::string line;
  while (std::getline(lines_, line)) {
    ++line_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    document = text_of(line, key_, path + ": line " + std::to_string(line_));
    return true;
  }
  if (!lines_.is_open() || lines_.bad())
    throw FileError(path + ": cannot be read: " + std::generic_category().message(errno));
  line_ = 0;
  return false;
}

}  // namespace zg::tools
