#pragma once

#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/comm/communicator.h"

// Layers whose matrices are shared out among ranks: Shoeybi et al. 2019, arXiv:1909.08053. A column
// parallel linear has some rows of its weight [out, in] on each rank and gives a part of the
// features; a row parallel one has some columns, takes such a part, and what the ranks make of it
// is summed. Vocabularies are split by tokens.
namespace zg::models {

/// The ranks that share every layer, seen from one of them.
struct ZG_API TensorParallel {
  Communicator* ranks = nullptr;  ///< null: one rank has all; must outlive the tapes
  /// Sequence parallel, Korthikanti et al. 2022, arXiv:2205.05198: between the split layers each
  /// rank has its part of the tokens, axis 1 of [B, T, C], not all of them.
  bool sequence = false;

  int rank() const { return ranks ? ranks->rank() : 0; }
  int size() const { return ranks ? ranks->size() : 1; }
  /// x of between the split layers, as one of them reads it: all tokens.
  Var enter(const Var& x) const;
  /// The sum of what ranks made of their parts, as it is between the split layers. ShapeError
  /// unless the ranks divide the tokens of a sequence parallel x.
  Var leave(const Var& x) const;
  /// Parameters that every rank has whole and reads between the split layers: of those that read
  /// a part of the tokens each, the gradients are summed.
  std::vector<Var> shared(std::span<const Var> parameters) const;
};

/// Rows [begin, begin + count) of a rank, ceil(extent / ranks) but for the last ones.
struct RankRows {
  int64_t begin, count;
};
ZG_API RankRows rows_of_rank(int64_t extent, const TensorParallel& parallel);

/// Describes parameters of which a rank has a part or, on ranks above 0, a replica. Shapes are the
/// whole model's.
struct ZG_API ParallelStore {
  using Options = ParameterStore::Options;
  ParameterStore& store;
  TensorParallel parallel;

  /// All of it on every rank.
  const Parameter& whole(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                         Options options = {}) const;
  /// A rank's rows: of a column parallel weight [out, in], its bias [out], or a vocabulary. In each
  /// of `blocks` equal blocks of rows: 3 for queries, keys and values behind each other.
  const Parameter& rows(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                        Options options = {}, int64_t blocks = 1) const;
  /// A rank's columns: of a row parallel weight [out, in].
  const Parameter& columns(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                           Options options = {}) const;
};

// --- ops; weights and biases are this rank's parts, x and results are as between split layers ---

/// y of this rank's features = x weight^T + bias; bias may be absent.
ZG_API Var column_parallel_linear(const Var& x, const Var& weight, const Var& bias,
                                  const TensorParallel& parallel);
/// x of this rank's features; the bias is added once, to the sum.
ZG_API Var row_parallel_linear(const Var& x, const Var& weight, const Var& bias,
                               const TensorParallel& parallel);
/// feed_forward() whose hidden layer is split.
ZG_API Var parallel_feed_forward(const Var& x, const Var& fc_weight, const Var& fc_bias,
                                 const Var& out_weight, const Var& out_bias,
                                 const TensorParallel& parallel,
                                 Activation activation = Activation::gelu_tanh);
/// weight[ids] of ids [B, T]; weight: this rank's rows of [vocabulary, C]. An id outside is a
/// ShapeError.
ZG_API Var parallel_embedding(const Tensor& ids, const Var& weight, int64_t vocabulary,
                              const TensorParallel& parallel);
/// Logits [..., vocabulary] from every rank's part, for what all ranks do alike.
ZG_API Var join_vocabulary(const Var& logits, int64_t vocabulary, const TensorParallel& parallel);
/// projection_cross_entropy() on weight's rows of every rank; targets [B, T] of all tokens. A rank
/// holds 10 Mi logits at a time, in x's accumulator dtype, and in x's own if that is narrower.
/// Ranks exchange two numbers per token: the log-sum-exp of their logits and the target's logit.
ZG_API Var parallel_projection_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                                             int64_t vocabulary, const TensorParallel& parallel,
                                             int64_t ignore_index = -1);

}  // namespace zg::models
