#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace zg::models {

enum class Split : uint8_t { train, validation };
enum class Order : uint8_t { random, sequential };

/// One micro-batch: ids and targets [B, T] i32; a target of -1 is ignored.
struct Batch {
  Tensor ids, targets;
};

/// Samples addressed by their global index, so the data a step sees depends on neither the number
/// of ranks nor on restarts.
class ZG_API Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t vocabulary() const = 0;
  virtual int64_t block_size() const = 0;
  /// Samples of one pass (an epoch); for text: tokens / block_size.
  virtual int64_t epoch_samples(Split split) const = 0;
  /// Sample `index` of the endless stream: block_size ids and targets.
  virtual void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const = 0;

  /// Text datasets only; ConfigError otherwise, or for a character that the data never had.
  virtual std::vector<int32_t> encode(const std::string& text) const;
  virtual std::string decode(const std::vector<int32_t>& ids) const;
  virtual bool is_text() const { return false; }

  Batch batch(Split split, int64_t first_sample, int64_t samples, const Device& device) const;
};

/// minGPT's sorting demo: `length` digits below `digits`, followed by themselves sorted. Block size
/// 2 * length - 1; targets of the first length - 1 positions are ignored. A sequence belongs to the
/// test split when a hash of it is 0 mod 4.
ZG_API std::unique_ptr<Dataset> sort_dataset(uint64_t seed, int64_t length = 6, int64_t digits = 3);

/// minGPT's adder: a + b of `digits` digits each, the sum reversed. Block size 3 * digits.
/// max(500, a tenth, at most 500) problems are held out as minGPT does.
ZG_API std::unique_ptr<Dataset> adder_dataset(uint64_t seed, int64_t digits = 2);

struct TextOptions {
  int64_t block_size = 128;
  double validation_fraction = 0.1;  ///< the end of the text
  Order order = Order::random;       ///< of training samples
  uint64_t seed = 3407;
};
/// Characters (UTF-8 code points) of a text; ids in code point order. FileError, ConfigError when
/// the text is too short for one block per split.
ZG_API std::unique_ptr<Dataset> text_dataset(const std::string& path, const TextOptions& options);
/// llm.c's token files: 256 little-endian int32 (20240520, 1, token count, zeros), then uint16.
ZG_API std::unique_ptr<Dataset> token_dataset(const std::string& path, const TextOptions& options);

}  // namespace zg::models
