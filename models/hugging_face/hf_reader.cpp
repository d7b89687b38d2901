#include "zerograd/models/hugging_face/hf_reader.h"

#include <limits>

#include "zerograd/models/json_text.h"
#include "zerograd/runtime/error.h"

namespace zg::models {

using nlohmann::json;

HFReader::HFReader(const std::string& text, const std::string& path)
    : path_(path), root_(parse_json_object(text, path)) {}

int64_t HFReader::count(const char* key, int64_t absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()})
    fail(key, "a count", *value);
  return value->get<int64_t>();
}

int64_t HFReader::count(std::initializer_list<const char*> keys, int64_t absent) const {
  const char* first = nullptr;
  for (const char* key : keys) {
    if (!find(key)) continue;
    const int64_t value = count(key, absent);
    if (first && value != absent)
      fail(key, std::to_string(absent) + " as " + first + " says", *find(key));
    first = key;
    absent = value;
  }
  return absent;
}

double HFReader::number(const char* key, double absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_number()) fail(key, "a number", *value);
  return value->get<double>();
}

bool HFReader::flag(const char* key, bool absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_boolean()) fail(key, "true or false", *value);
  return value->get<bool>();
}

std::vector<int32_t> HFReader::ids(const char* key, std::vector<int32_t> absent) const {
  const auto found = root_.find(key);
  if (found == root_.end()) return absent;
  std::vector<int32_t> ids;
  const auto add = [&](const json& id) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() &&
         id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}))
      fail(key, "the id of a token, a list of them or null", *found);
    if (id.is_number_unsigned()) ids.push_back(id.get<int32_t>());  // -1 stands for none
  };
  if (found->is_array())
    for (const json& id : *found) add(id);
  else if (!found->is_null())
    add(*found);
  return ids;
}

const json* HFReader::find(const char* key) const {
  const auto found = root_.find(key);
  return found == root_.end() || found->is_null() ? nullptr : &*found;
}

void HFReader::require(const char* key, const json& only) const {
  const json* value = find(key);
  if (value && *value != only) refuse(key, only.dump());
}

void HFReader::refuse(const char* key, const std::string& expected) const {
  throw Unsupported(path_ + ": " + key + " is " + brief(root_.at(key)) + "; expected " + expected +
                    ", which is what this version computes");
}

void HFReader::fail(const std::string& what) const { throw FileError(path_ + ": " + what); }

void HFReader::fail(const char* key, const std::string& expected, const json& value) const {
  fail(std::string(key) + ": expected " + expected + ", got " + brief(value));
}

}  // namespace zg::models
