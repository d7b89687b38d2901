#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/models/nn.h"
#include "zerograd/models/seq2seq/seq2seq_config.h"

namespace zg::models {

inline constexpr int32_t ignored_label = -100;  ///< a label without a loss, as in transformers

/// Pairs of a source and a target.
struct Seq2SeqBatch {
  Tensor source;  ///< [B, S] i32 | i64
  /// [B] i32: row b has tokens up to source_lengths[b], then padding, which has no effect. Absent:
  /// no row has padding.
  Tensor source_lengths = {};
  Tensor labels = {};  ///< [B, T] i32 | i64, the target; ignored_label: no loss, padding
  /// [B, T] i32 | i64, the decoder's input. Absent: shifted_right(labels).
  Tensor decoder_ids = {};
};

/// Labels [B, T] as the decoder's input, as shift_tokens_right() of transformers makes it: token t
/// is label t - 1, token 0 is decoder_start, and ignored labels are replaced by pad.
ZG_API Tensor shifted_right(const Tensor& labels, const Seq2SeqTokens& tokens);

/// A batch of texts of different lengths, padded to source_length and target_length; 0: to the
/// longest. Labels of padding are ignored_label. Throws ConfigError for a number of targets other
/// than of sources (no target at all: the batch has no labels), and for texts that are empty or too
/// long.
ZG_API Seq2SeqBatch padded_batch(const std::vector<std::vector<int32_t>>& sources,
                                 const std::vector<std::vector<int32_t>>& targets,
                                 const Seq2SeqTokens& tokens, const Device& device,
                                 int64_t source_length = 0, int64_t target_length = 0);

struct Seq2SeqLossOptions {
  bool checkpointing = false;    ///< keep only each layer's input for backward
  double label_smoothing = 0.0;  ///< CrossEntropyOptions::label_smoothing
  nn::BlockHook encoder_hook = {}, decoder_hook = {};
};

/// State of generation: keys and values of the decoder's tokens and of the encoder's output. It has
/// R rows, at first one for each source.
class ZG_API Seq2SeqCache {
 public:
  /// `memory` and `source_lengths`: of Seq2Seq::encode(). `capacity`: the longest target; 0:
  /// config.positions. Throws ConfigError unless it is at most config.positions.
  Seq2SeqCache(const Seq2SeqConfig& config, const Var& memory, const Tensor& source_lengths = {},
               int64_t capacity = 0);
  int64_t rows() const { return static_cast<int64_t>(memory_rows_.size()); }
  int64_t length() const { return tokens_.length(); }  ///< target tokens held
  int64_t capacity() const { return tokens_.capacity(); }
  /// Row i of the next pass continues row rows[i]; there may be more or fewer rows than before.
  /// ConfigError for a row that there is not. If each source keeps its number of adjacent rows, as
  /// beams do, only the decoder's keys and values are copied.
  void reorder(std::span<const int64_t> rows);

 private:
  friend class Seq2Seq;
  nn::KeyValueCache tokens_;
  nn::MemoryCache memory_;
  std::vector<int64_t> memory_rows_;  // for each row: the row of memory_ that it attends to
};

/// An encoder-decoder model, for training, scoring and generation. It holds descriptions of
/// parameters and no values, so ranks that are threads share one object, unless tensor ranks divide
/// the layers: then each has its own. A tape of one of its passes must run backward before the
/// model is destroyed.
///
/// Tensor ranks divide the heads, the feed-forward layers and the vocabulary. All of them must be
/// given the same batch. Their losses, logits and generated tokens have the same bits.
///
/// The gradient of the row of `pad` in the token table includes the row's uses as an input: ignored
/// labels that are followed by others, a decoder_start that is `pad`, and `pad` as a token of a
/// source. transformers omits them (padding_idx). Padding at the end of a row has no gradient.
class ZG_API Seq2Seq {
 public:
  /// Adds units ("embedding", "encoder.block.0" ..., "encoder.norm", "decoder.block.0" ..., "head")
  /// and parameters with the names of transformers' state dict ("model.shared.weight",
  /// "model.encoder.layers.0.self_attn.q_proj.weight" [C, C], ...) to the store, which must outlive
  /// it. Weights start as N(0, stddev), biases as 0. Weights of linear layers decay; embeddings,
  /// norms and biases do not. final_logits_bias [1, V] is not trained. With `parallel` this rank's
  /// slices are added. Throws ConfigError, also when the tensor ranks do not divide the heads or,
  /// with sequence parallelism, the positions.
  Seq2Seq(ParameterStore& store, const Seq2SeqConfig& config, const TensorParallel& parallel = {});
  ~Seq2Seq();

  const Seq2SeqConfig& config() const;  ///< of the whole model

  /// Mean cross-entropy of the labels that are not ignored (NaN if all are), a scalar in the
  /// accumulator dtype. Dropout is active on a recording tape. Takes memory of the size of the
  /// this rank's logits [B, T, V / tensor ranks]. Throws ShapeError for ids that are not [B, S] or
  /// longer than config().positions, and with sequence parallelism on a recording tape for a number
  /// of tokens that the tensor ranks do not divide.
  Var loss(Tape& tape, const Seq2SeqBatch& batch, const ForwardPosition& place,
           const Seq2SeqLossOptions& options = {}) const;
  /// The decoder's last hidden state [B, T, width] after its final norm, for a head of your own;
  /// the decoder's input is batch.decoder_ids or shifted_right(batch.labels). Dropout and sequence
  /// parallelism as in loss().
  Var hidden(Tape& tape, const Seq2SeqBatch& batch, const ForwardPosition& place,
             const Seq2SeqLossOptions& options = {}) const;
  /// Logits [B, T, V] of all target positions, without dropout.
  Var logits(Tape& tape, const Seq2SeqBatch& batch) const;

  /// The encoder's output [B, S, width], without dropout. Rows of padding have no meaning.
  Var encode(Tape& tape, const Tensor& source, const Tensor& source_lengths = {}) const;
  /// Logits [R, V] of the token after `ids` [R, T] i32 | i64, which continue the tokens in the
  /// cache and are appended to it. The first ids are decoder_start. The tape must be in inference
  /// mode (TapeError). ConfigError if the cache has other rows, ShapeError without room for T more.
  Tensor next_logits(Tape& tape, const Tensor& ids, Seq2SeqCache& cache) const;

 private:
  std::unique_ptr<struct Seq2SeqLayers> layers_;
};

}  // namespace zg::models
