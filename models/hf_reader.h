#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace zg::models {

/// A config.json of Hugging Face's, whose values are read with a default and refused by key. null
/// is absent, but for ids(). FileError for what is none or of another type.
class HFReader {
 public:
  HFReader(const std::string& text, const std::string& path);

  int64_t count(const char* key, int64_t absent) const;
  /// One value under several keys: those that are there have to agree.
  int64_t count(std::initializer_list<const char*> keys, int64_t absent) const;
  double number(const char* key, double absent) const;
  bool flag(const char* key, bool absent) const;
  /// Ids of tokens: one, several or, by null, none.
  std::vector<int32_t> ids(const char* key, std::vector<int32_t> absent) const;
  /// Of any type; null when absent.
  const nlohmann::json* find(const char* key) const;
  /// Unsupported unless the key is absent or this.
  void require(const char* key, const nlohmann::json& only) const;
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;  ///< Unsupported
  [[noreturn]] void fail(const std::string& what) const;

 private:
  [[noreturn]] void fail(const char* key, const std::string& expected,
                         const nlohmann::json& value) const;
  const std::string& path_;
  nlohmann::json root_;
};

}  // namespace zg::models
