#include "zerograd/runtime/storage/safetensors_folder.h"

#include <nlohmann/json.hpp>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors_format.h"

namespace zg {
namespace {

using nlohmann::json;

constexpr const char* single = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
constexpr int deepest = 8;

}  // namespace

std::map<std::string, std::string> weight_map_from(const std::string& text,
                                                   const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw FileError("index: " + path + ": " + what);
  };
  json root;
  try {
    root = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > deepest) fail("is nested deeper than " + std::to_string(deepest) + " levels");
      return true;
    });
  } catch (const json::parse_error& error) {
    fail("is not JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception& error) {  // a number beyond any double
    fail(std::string("is not JSON: ") + error.what());
  }
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) fail("expected an object with a weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_file_name(file.get_ref<const std::string&>()))
      fail("tensor '" + tensor + "' is in " + file.dump().substr(0, 60) +
           "; expected the name of a file beside it");
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

SafetensorsFolder::SafetensorsFolder(const std::string& folder) : path_(folder) {
  const auto has = [&](const std::string& name) { return path_exists(path_ + "/" + name); };
  if (has(single)) {
    open(single);
    return;
  }
  if (has(index_name)) {
    read_index(read_text(path_ + "/" + index_name, safetensors_header_limit));
    return;
  }
  for (const char* pickle : pickles)
    if (has(pickle))
      throw Unsupported(path_ + ": has " + pickle +
                        ", a pickle, which can run any program when it is read; expected " +
                        single + "; try saving it with safe_serialization");
  throw FileError(path_ + ": expected a folder with " + single + " or " + index_name);
}

void SafetensorsFolder::open(const std::string& file) {
  const auto opened = files_.try_emplace(file, path_ + "/" + file).first;
  for (const auto& [name, entry] : opened->second.entries())
    if (!place_of_.emplace(name, &opened->second).second)
      throw FileError(path_ + "/" + file + ": tensor '" + name + "' is in another file too");
}

void SafetensorsFolder::read_index(const std::string& text) {
  const auto files = weight_map_from(text, path_ + "/" + index_name);
  for (const auto& [tensor, file] : files) {
    if (!files_.contains(file)) open(file);
    if (!files_.at(file).contains(tensor))
      throw FileError(path_ + "/" + file + ": has no tensor '" + tensor + "', which " + index_name +
                      " says is there");
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& place : place_of_) names.push_back(place.first);
  return names;
}

const Shape& SafetensorsFolder::shape(const std::string& name) const {
  return place_of_.at(name)->entries().at(name).shape;
}

std::vector<float> SafetensorsFolder::read_floats(const std::string& name) const {
  return place_of_.at(name)->read_floats(name);
}

std::vector<float> SafetensorsFolder::read_floats(const std::string& name, int64_t begin,
                                                  int64_t numel) const {
  return place_of_.at(name)->read_floats(name, begin, numel);
}

}  // namespace zg
