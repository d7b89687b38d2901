#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace zg::models {

/// Reads a config.json of Hugging Face's. Each value has a default; errors name the key. null means
/// absent, except for ids(). FileError when the text is no JSON object or a value has another type.
class HFReader {
 public:
  HFReader(const std::string& text, const std::string& path);

  int64_t count(const char* key, int64_t absent) const;
  /// One value that may have several keys. Those that are present must be equal.
  int64_t count(std::initializer_list<const char*> keys, int64_t absent) const;
  double number(const char* key, double absent) const;
  bool flag(const char* key, bool absent) const;
  /// Token ids: one, several, or none for null.
  std::vector<int32_t> ids(const char* key, std::vector<int32_t> absent) const;
  /// A value of any type; null when absent.
  const nlohmann::json* find(const char* key) const;
  /// Unsupported unless the key is absent or has this value.
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
