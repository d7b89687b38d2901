#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/models/lora.h"
#include "zerograd/runtime/comm/communicator.h"

// Layers whose matrices are divided among ranks ("split layers"): Shoeybi et al. 2019,
// arXiv:1909.08053. In a column-parallel linear layer each rank has some rows of the weight [out,
// in] and computes a slice of the features. In a row-parallel linear layer each rank has some
// columns and reads such a slice; the results of the ranks are summed. In embedding and head each
// rank has some rows of the vocabulary.
namespace zg::models {

/// One rank's view of the ranks that divide every layer.
struct ZG_API TensorParallel {
  Communicator* ranks = nullptr;  ///< null: one rank has whole layers. It must outlive the tapes
  /// Sequence parallelism, Korthikanti et al. 2022, arXiv:2205.05198: between the split layers each
  /// rank has only a slice of the tokens, axis 1 of [B, T, C].
  bool sequence = false;
  /// Reduction groups: sums that ranks divide are those of so many groups, which meet in a tree, so
  /// the bits are the same for every number of ranks that divides the groups. A rank has
  /// consecutive groups. A power of two; 0 or 1: each rank is a group, and its sum is rounded
  /// before the ranks' are added.
  int groups = 0;

  bool is_grouped() const { return groups > 1; }
  int group_count() const { return groups ? groups : size(); }
  int own_groups() const { return group_count() / size(); }
  /// Blocks of this rank's tokens over which gradients of parameters that every rank has whole are
  /// summed alone (layer_norm()): with groups, those of its tokens. 0: none.
  int token_blocks() const { return !is_grouped() ? 0 : sequence ? own_groups() : groups; }
  /// Items of a split extent that a group has; the last groups may have fewer.
  int64_t group_extent(int64_t extent) const {
    return (extent + group_count() - 1) / group_count();
  }
  int rank() const { return ranks ? ranks->rank() : 0; }
  int size() const { return ranks ? ranks->size() : 1; }
  /// Converts x from its form between split layers (with sequence parallelism a slice of the
  /// tokens) to the input of a split layer: all tokens.
  Var enter(const Var& x) const;
  /// Sums the ranks' outputs of a split layer and converts the sum to the form between split
  /// layers. With sequence parallelism throws ShapeError unless the number of ranks divides the
  /// number of tokens.
  Var leave(const Var& x) const;
  /// For parameters that every rank has whole and reads between the split layers (layer norms,
  /// biases). With sequence parallelism the ranks read them for different tokens; backward sums
  /// their gradients.
  std::vector<Var> shared(std::span<const Var> parameters) const;
};

/// Throws ConfigError unless the tensor ranks (or the reduction groups, if there are any) divide
/// `count`. The error names the model and the
/// `what` that it has `count` of: "gpt: tensor ranks: expected a divisor of the 4 heads (1, 2, 4),
/// got 8".
ZG_API void require_divisor(const char* model, const char* what, int64_t count,
                            const TensorParallel& parallel);

/// The rows [begin, begin + count) of a rank: those of its groups, ceil(extent / groups) of each;
/// the last groups may have fewer.
struct RankRows {
  int64_t begin, count;
};
ZG_API RankRows rows_of_rank(int64_t extent, const TensorParallel& parallel);

/// Adds parameters to a store: this rank's slice of them or, on ranks above 0, a replica. `shape`
/// is the shape in the whole model. With `lora` linear layers add adapters, and every other
/// parameter is frozen and not saved.
struct ZG_API ParallelStore {
  using Options = ParameterStore::Options;
  ParameterStore& store;
  TensorParallel parallel;
  LoraConfig lora;
  /// The names of all dropouts so far, which must differ: equal ones would drop the same elements.
  std::shared_ptr<std::set<std::string>> dropouts = std::make_shared<std::set<std::string>>();

  /// Without `parallel` one rank has whole layers; a ParameterStore converts to that.
  ParallelStore(ParameterStore& store, const TensorParallel& parallel = {},
                const LoraConfig& lora = {})
      : store(store), parallel(parallel), lora(lora) {}

  /// The same without adapters: its parameters are trained.
  ParallelStore trained() const { return {store, parallel}; }

  /// The whole parameter on every rank.
  const Parameter& whole(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                         Options options = {}) const;
  /// This rank's rows of a column-parallel weight [out, in], of its bias [out], or of a vocabulary.
  /// They are taken from each of `blocks` equal blocks of rows: 3 for a fused qkv weight with all
  /// queries, then all keys, then all values.
  const Parameter& rows(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                        Options options = {}, int64_t blocks = 1) const;
  /// This rank's columns of a row-parallel weight [out, in].
  const Parameter& columns(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                           Options options = {}) const;
};

// --- ops; weights and biases are this rank's slices ---

/// y = x weight^T + bias for this rank's slice of the features. x has its form between split
/// layers; bias may be absent. `features`: those of all ranks, if not every group has as many.
ZG_API Var column_parallel_linear(const Var& x, const Var& weight, const Var& bias,
                                  const TensorParallel& parallel, int64_t features = 0);
/// The sum over the ranks of x weight^T, plus bias. x has this rank's slice of the features; the
/// result has its form between split layers.
ZG_API Var row_parallel_linear(const Var& x, const Var& weight, const Var& bias,
                               const TensorParallel& parallel);
/// feed_forward() with a divided hidden layer. x and the result have their form between split
/// layers.
ZG_API Var parallel_feed_forward(const Var& x, const Var& fc_weight, const Var& fc_bias,
                                 const Var& out_weight, const Var& out_bias,
                                 const TensorParallel& parallel,
                                 Activation activation = Activation::gelu_tanh);
/// weight[ids] for ids [B, T]; `weight` has this rank's rows of [vocabulary, C]. ShapeError for an
/// id out of range.
ZG_API Var parallel_embedding(const Tensor& ids, const Var& weight, int64_t vocabulary,
                              const TensorParallel& parallel);
/// Gathers the logits [..., vocabulary] from the slices of all ranks; the result is replicated.
ZG_API Var join_vocabulary(const Var& logits, int64_t vocabulary, const TensorParallel& parallel);
/// cross_entropy() of logits that are divided by vocabulary: `logits` [..., rows_of_rank()] are
/// this rank's. Targets [...] and the result are the same on every rank. Ranks exchange two numbers
/// per target. Takes memory of the size of `logits`. Throws what cross_entropy() throws.
ZG_API Var parallel_cross_entropy(const Var& logits, const Tensor& targets, int64_t vocabulary,
                                  const TensorParallel& parallel,
                                  const CrossEntropyOptions& options = {});
/// projection_cross_entropy() with a weight divided by rows; targets [B, T] of all tokens. A rank
/// holds at most 10 Mi logits at a time, in the accumulator dtype of x and, if x is narrower, also
/// in the dtype of x. Ranks exchange two numbers per token: the log-sum-exp of their logits and the
/// target's logit.
ZG_API Var parallel_projection_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                                             int64_t vocabulary, const TensorParallel& parallel,
                                             int64_t ignore_index = -1);

}  // namespace zg::models
