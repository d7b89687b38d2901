#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/models/gguf/gguf.h"
#include "zerograd/runtime/shape.h"

// Parts of save_gguf(): the file's metadata, its tensors, and the keys of a tokenizer.
namespace zg::models {

inline constexpr int64_t q8_0_block = 32;  ///< elements of a block of q8_0

/// The key-value pairs of a GGUF file, in the order in which they are added.
class GGUFMetadata {
 public:
  void add(const std::string& key, const std::string& value);
  void add(const std::string& key, uint32_t value);
  void add(const std::string& key, float value);
  void add_flag(const std::string& key, bool value);
  void add(const std::string& key, const std::vector<std::string>& values);
  void add(const std::string& key, const std::vector<int32_t>& values);
  void add(const std::string& key, const std::vector<float>& values);

  const std::string& bytes() const { return bytes_; }
  uint64_t count() const { return count_; }

 private:
  void begin(const std::string& key, uint32_t type);

  std::string bytes_;
  uint64_t count_ = 0;
};

struct GGUFTensor {
  std::string name;
  Shape shape;  ///< outermost extent first; the file has them in reverse order
  GGUFType type;
};

/// Values in a tensor's type. q8_0 takes whole blocks. Throws FileError, beginning with `where`, if
/// a finite value overflows f16, or if a value for q8_0 is not finite.
std::vector<std::byte> gguf_values(GGUFType type, std::span<const float> values,
                                   const std::string& where);

/// Writes a file: metadata and the descriptions of all tensors first, then the values in order.
class GGUFWriter {
 public:
  GGUFWriter(const std::string& path, const GGUFMetadata& metadata,
             const std::vector<GGUFTensor>& tensors);
  ~GGUFWriter();
  GGUFWriter(const GGUFWriter&) = delete;

  /// Writes the next values. Those of one call belong to one tensor, which may take several calls.
  void write(std::span<const float> values);
  /// Throws FileError unless every value is written. Returns when the file is on the disk.
  void finish();

 private:
  std::unique_ptr<struct GGUFWriterState> state_;
};

/// Adds the keys of the tokenizer; without one, tokenizer.ggml.model is "none". Appends a line to
/// `notes` for each difference from llama.cpp.
void add_gguf_tokenizer(const GGUFTokenizer& tokenizer, const HFModel& model,
                        GGUFMetadata& metadata, std::vector<std::string>& notes);

}  // namespace zg::models
