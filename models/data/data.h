#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/models/data/token_source.h"
#include "zerograd/runtime/tensor.h"

namespace zg::models {

enum class Split : uint8_t { train, validation };
enum class Order : uint8_t { random, sequential };

/// One micro-batch: ids and targets [B, T] i32; a target of -1 is ignored.
struct Batch {
  Tensor ids, targets;
  /// [B, T] i32, of a dataset whose samples have several documents: for each token, the index in
  /// the sample of its document's first token, and its own index in the document. Absent: a sample
  /// is one document.
  Tensor starts = {}, positions = {};
};

/// A data set whose samples are numbered from 0. A sample depends on its number only, so the data
/// of a step depends neither on the number of ranks nor on restarts.
class ZG_API Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t vocabulary() const = 0;
  virtual int64_t block_size() const = 0;
  /// The number of samples in one epoch. For text: the number of whole blocks. A block needs one
  /// more token for its last target.
  virtual int64_t epoch_samples(Split split) const = 0;
  /// Writes block_size ids and block_size targets of sample `index`. Every index from 0 on is
  /// valid: epochs follow one another.
  virtual void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const = 0;
  /// The number of targets of sample `index` that are not ignored.
  virtual int64_t targets(Split split, int64_t index) const;
  /// The sum of targets() of samples [first, first + count), for zero::TrainerTask::targets.
  int64_t count_targets(Split split, int64_t first, int64_t count) const;
  /// True: a sample has several documents, and batch() makes starts and positions.
  virtual bool has_documents() const { return false; }
  /// Writes, for each of block_size tokens, the index of its document's first token. This one
  /// writes 0: one document.
  virtual void document_starts(Split split, int64_t index, int32_t* starts) const;
  /// For a task with questions and answers: number of ids at the beginning of a sample that are the
  /// question. The rest of its block_size + 1 tokens is the answer. 0: plain text.
  virtual int64_t question_length() const { return 0; }

  /// Converts text to ids and back. Throws ConfigError for data sets without text and for a
  /// character that is not in the data.
  virtual std::vector<int32_t> encode(const std::string& text) const;
  virtual std::string decode(const std::vector<int32_t>& ids) const;
  virtual bool is_text() const { return false; }

  /// Samples [first_sample, first_sample + samples).
  Batch batch(Split split, int64_t first_sample, int64_t samples, const Device& device) const;
};

/// minGPT's sorting demo: a sample has `length` digits below `digits`, followed by the same digits
/// sorted. Block size 2 * length - 1; targets of the first length - 1 positions are ignored. As in
/// minGPT, half of the random sequences with more than length / 2 different digits are rejected, so
/// that repeated digits, which are harder, occur more often. A sequence belongs to the validation
/// split if its hash is 0 mod 4. An epoch is 10000 samples. Throws ConfigError unless length is in
/// 1 .. 1024, digits in 2 .. 65536 and both splits have sequences.
ZG_API std::unique_ptr<Dataset> sort_dataset(uint64_t seed, int64_t length = 6, int64_t digits = 3);

/// minGPT's adder: a sample has a and b with `digits` digits each, then the digits + 1 digits of a
/// + b, the lowest one first: 85 + 50 = 135 gives 8550531. Block size 3 * digits; only the result
/// is a target. The 100^digits problems are shuffled by the seed; a fifth of them, at most 500, is
/// the validation split. Throws ConfigError unless digits is 1, 2 or 3.
ZG_API std::unique_ptr<Dataset> adder_dataset(uint64_t seed, int64_t digits = 2);

struct TextOptions {
  int64_t block_size = 128;
  /// The part at the end of the text that is the validation split; 0: none; 1: all, for evaluation.
  double validation_fraction = 0.1;
  Order order = Order::random;  ///< order of training samples; validation is sequential
  uint64_t seed = 3407;
};
/// A text file, tokenized by character (UTF-8 code point); ids are in code point order. Throws
/// FileError if it cannot be read. Throws ConfigError with the byte offset of invalid UTF-8, or
/// with the sizes if a split is shorter than one block.
ZG_API std::unique_ptr<Dataset> text_dataset(const std::string& path, const TextOptions& options);
/// llm.c's token files, with the header and uint16 or uint32 of open_token_file(). The
/// vocabulary is the largest token plus 1. Throws FileError for any other header or size.
ZG_API std::unique_ptr<Dataset> token_dataset(const std::string& path, const TextOptions& options);

struct DocumentOptions {
  int64_t block_size = 128;
  /// Weights of training, validation and test. Documents of the test split are never returned.
  std::array<double, 3> split = {969, 30, 1};
  Order order = Order::random;  ///< order of training samples; validation is sequential
  uint64_t seed = 3407;
  int64_t vocabulary = 0;  ///< 0: the largest token plus 1, which reads every token
};
/// Megatron's PREFIX.bin and PREFIX.idx, with the samples of its GPT dataset. The documents of a
/// split are concatenated and cut into samples of block_size + 1 tokens. The last token of a sample
/// is the first of the next. In random order each pass shuffles the documents before the cut and
/// the samples after it, both by (seed, pass). Throws FileError for invalid files; also later, when
/// a token that is not below the vocabulary is read. Throws ConfigError for options out of range or
/// a split with less than one sample.
ZG_API std::unique_ptr<Dataset> indexed_dataset(const std::string& prefix,
                                                const DocumentOptions& options);

/// A long sequence of tokens, cut into samples of block_size.
struct TokenSequence {
  std::string path;  ///< for errors
  std::unique_ptr<const TokenSource> tokens;
  int64_t vocabulary = 0;
  std::unique_ptr<const TextCodec> codec;  ///< null: tokens are opaque numbers
};
/// Throws ConfigError for options out of range or when a split is shorter than one block.
ZG_API std::unique_ptr<Dataset> window_dataset(TokenSequence sequence, const TextOptions& options);

}  // namespace zg::models
