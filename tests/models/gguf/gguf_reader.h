#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "zerograd/runtime/dtype.h"

// Reads a GGUF file by the format's description, github.com/ggml-org/ggml/blob/master/docs/gguf.md.
namespace zg::testing {

struct GGUFContents {
  using Value = std::variant<std::string, uint32_t, float, bool, std::vector<std::string>,
                             std::vector<int32_t>, std::vector<float>>;
  struct Tensor {
    std::vector<uint64_t> extents;  ///< innermost first
    uint32_t type = 0;              ///< ggml's number
    uint64_t offset = 0;            ///< from the start of the data
    std::string bytes;

    uint64_t numel() const {
      uint64_t product = 1;
      for (const uint64_t extent : extents) product *= extent;
      return product;
    }
    /// The elements of f32 (0), f16 (1), q8_0 (8) or bf16 (30).
    std::vector<float> values() const {
      std::vector<float> result;
      const auto u16 = [this](size_t at) {
        uint16_t bits;
        std::memcpy(&bits, bytes.data() + at, 2);
        return bits;
      };
      if (type == 0) {
        result.resize(numel());
        std::memcpy(result.data(), bytes.data(), bytes.size());
      } else if (type == 1) {
        for (size_t i = 0; i < bytes.size(); i += 2) result.push_back(float_from_f16(u16(i)));
      } else if (type == 30) {
        for (size_t i = 0; i < bytes.size(); i += 2)
          result.push_back(std::bit_cast<float>(static_cast<uint32_t>(u16(i)) << 16));
      } else {
        for (size_t block = 0; block < bytes.size(); block += 34)
          for (size_t i = 0; i < 32; ++i)
            result.push_back(float_from_f16(u16(block)) *
                             static_cast<float>(static_cast<int8_t>(bytes[block + 2 + i])));
      }
      return result;
    }
  };

  uint32_t version = 0;
  std::map<std::string, Value> metadata;
  std::vector<std::string> keys;  ///< in the file's order
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> names;  ///< in the file's order
  uint64_t data_begin = 0;
  uint64_t data_end = 0;  ///< end of the last tensor with its padding, from the file's start

  explicit GGUFContents(const std::string& path) : file_(read_file(path)) {
    if (bytes(4) != "GGUF") throw std::runtime_error(path + ": no GGUF");
    version = number<uint32_t>();
    const auto tensor_count = number<uint64_t>(), value_count = number<uint64_t>();
    for (uint64_t i = 0; i < value_count; ++i) {
      keys.push_back(text());
      if (!metadata.emplace(keys.back(), value()).second)
        throw std::runtime_error("twice: " + keys.back());
    }
    for (uint64_t i = 0; i < tensor_count; ++i) {
      names.push_back(text());
      Tensor tensor;
      tensor.extents.resize(number<uint32_t>());
      for (uint64_t& extent : tensor.extents) extent = number<uint64_t>();
      tensor.type = number<uint32_t>();
      tensor.offset = number<uint64_t>();
      if (!tensors.emplace(names.back(), tensor).second)
        throw std::runtime_error("twice: " + names.back());
    }
    data_begin = (at_ + 31) / 32 * 32;
    for (const std::string& name : names) {
      Tensor& tensor = tensors.at(name);
      const uint64_t n = tensor.numel();
      const uint64_t size = tensor.type == 0 ? 4 * n : tensor.type == 8 ? n / 32 * 34 : 2 * n;
      at_ = data_begin + tensor.offset;
      tensor.bytes = bytes(size);
      data_end = (at_ + 31) / 32 * 32;
    }
  }

  uint64_t size() const { return file_.size(); }
  template <class T>
  const T& at(const std::string& key) const {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw std::runtime_error("no key " + key);
    if (!std::holds_alternative<T>(found->second))
      throw std::runtime_error("another type of " + key);
    return std::get<T>(found->second);
  }
  const std::string& text_of(const std::string& key) const { return at<std::string>(key); }
  uint32_t count_of(const std::string& key) const { return at<uint32_t>(key); }

 private:
  std::string bytes(uint64_t count) {
    if (at_ + count > file_.size()) throw std::runtime_error("the file ends before");
    const std::string part = file_.substr(at_, count);
    at_ += count;
    return part;
  }
  template <class T>
  T number() {
    T result;
    std::memcpy(&result, bytes(sizeof(T)).data(), sizeof(T));
    return result;
  }
  std::string text() { return bytes(number<uint64_t>()); }
  template <class T>
  std::vector<T> numbers(uint64_t count) {
    std::vector<T> result;
    for (uint64_t i = 0; i < count; ++i) result.push_back(number<T>());
    return result;
  }
  Value value() {
    switch (const auto type = number<uint32_t>(); type) {
      case 4:
        return number<uint32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>() != 0;
      case 8:
        return text();
      case 9:
        return array();
      default:
        throw std::runtime_error("type " + std::to_string(type));
    }
  }
  Value array() {
    const auto type = number<uint32_t>();
    const auto count = number<uint64_t>();
    if (type == 5) return numbers<int32_t>(count);
    if (type == 6) return numbers<float>(count);
    if (type != 8) throw std::runtime_error("array of type " + std::to_string(type));
    std::vector<std::string> result;
    for (uint64_t i = 0; i < count; ++i) result.push_back(text());
    return result;
  }

  std::string file_;
  uint64_t at_ = 0;
};

}  // namespace zg::testing
