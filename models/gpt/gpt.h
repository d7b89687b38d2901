#pragma once

#include <cstdint>
#include <memory>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg::models {

/// The part of the model for this rank of a mesh. Stages have whole layers and need about the same
/// number of operations. Throws ConfigError if there are fewer layers than stages, or if the tensor
/// ranks do not divide the heads.
ZG_API GPTPart part_of(const Mesh& mesh, const GPTConfig& config, DType activations,
                       bool sequence_parallel = false, int reduction_groups = 0);

/// Keys and values of every layer for generation.
class ZG_API KeyValueCache : public nn::KeyValueCache {
 public:
  /// `capacity` is a number of positions; 0: block_size.
  explicit KeyValueCache(const GPTConfig& config, int64_t capacity = 0)
      : nn::KeyValueCache(config.layers, capacity > 0 ? capacity : config.block_size) {}
};

/// The documents in the sequences of a batch: a token sees its own document alone, and positions
/// count from its document's first token. Then a document has the bits of its losses
/// that it has in a batch of the same shape without the others.
struct Documents {
  /// [B, T] i32: the first token of each token's document (nn::Pass::starts). Absent: a sequence is
  /// one document.
  Tensor starts = {};
  Tensor positions = {};  ///< [B, T] i32: each token's number in its document, t - starts
};

/// How a pass differs from the model's own.
struct ForwardOptions {
  nn::BlockHook hook = {};  ///< called with the embedding and after each block of this rank
  bool adapters = true;     ///< false: the base without its adapters, as a frozen reference
};

/// The model, for training, scoring and generation. It holds descriptions of parameters and no
/// values. Ranks that are threads share one object, unless it describes only a part of the model.
/// Ids are [B, T] i32 | i64 with T up to block_size (ShapeError). A tape of one of its passes must
/// run backward before the model is destroyed.
class ZG_API GPT {
 public:
  /// Adds units ("embedding", "block.0" ..., "head") and parameters with the family's names
  /// ("transformer.h.0.attn.c_attn.weight" [3C, C], ...) to the store, which must outlive it.
  /// Weights start as N(0, 0.02). Weights whose output is added to the residual stream start as
  /// N(0, 0.02 / sqrt(2 layers)), biases as 0. Weights of linear layers decay; embeddings (and a
  /// head tied to them), LayerNorm and biases do not. If `part` is a part of the model, only the
  /// units and slices of that part are added. With `lora` linear layers have adapters, which alone
  /// are trained (models/lora.h). Throws ConfigError when its tensor ranks do not divide the heads
  /// or, with sequence parallelism, the block size, when its reduction groups do not divide both,
  /// when a target of `lora` names no layer, and when the first stage of a pipeline has no adapter.
  GPT(ParameterStore& store, const GPTConfig& config, const GPTPart& part = {},
      const LoraConfig& lora = {});
  ~GPT();

  const GPTConfig& config() const;  ///< configuration of the whole model
  const GPTPart& part() const;      ///< for a whole model: all layers
  const LoraConfig& lora() const;
  /// Number of parameters of the whole model without the head and adapters, as minGPT prints it.
  int64_t transformer_parameters() const;

  /// Mean cross-entropy of predicting targets [B, T] (-1: ignored) from ids; 0, with zero
  /// gradients, if all are ignored. Dropout is active on a recording tape. `checkpointing` keeps
  /// only each block's input for backward. All tensor ranks must be given the same batch; their
  /// losses have the same bits. Throws ShapeError for documents of another shape, and ConfigError
  /// if only one of their tensors is given.
  Var loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPosition& place,
           bool checkpointing = false, const Documents& documents = {},
           const ForwardOptions& options = {}) const;
  /// The last hidden state [B, T, C], for a head of your own: the output of the last block after
  /// the final norm, with dropout as loss(). With sequence parallelism this rank's tokens. All
  /// hidden states, as transformers lists them, are those of a hook before the last block's, and
  /// this one. ConfigError on several pipeline stages: there the head is that of a model without
  /// one (GPTPart::end_layer).
  Var hidden(Tape& tape, const Tensor& ids, const ForwardPosition& place,
             bool checkpointing = false, const Documents& documents = {},
             const ForwardOptions& options = {}) const;
  /// The output of this pipeline stage. `input` is the output of the previous stage; on the first
  /// stage it is absent, and ids are used. The result is the next stage's input or, on the last
  /// stage, the loss; without a head (GPTPart::end_layer) it is the last hidden state. loss() runs
  /// all stages. If the model is only a part, loss() needs a tape in
  /// inference mode (TapeError), and every stage returns the loss.
  Var stage(Tape& tape, const Var& input, const Tensor& ids, const Tensor& targets,
            const ForwardPosition& place, bool checkpointing = false,
            const Documents& documents = {}, const ForwardOptions& options = {}) const;
  /// Shape of the tensor that stage() passes to the next stage, for the given number of samples.
  StageOutput stage_output(int64_t samples) const;
  /// Logits [B, T, V] of all positions, without dropout.
  Var logits(Tape& tape, const Tensor& ids, const ForwardOptions& options = {}) const;
  /// Negative log-probabilities [1, N], in the accumulator dtype, of tokens `targets` [1, N] behind
  /// some tokens of ids: `places` [1, N] of b T + t, both i32 | i64. Only these have logits.
  /// Without dropout; the tape must be in inference mode (TapeError).
  Tensor losses_at(Tape& tape, const Tensor& ids, const Tensor& places,
                   const Tensor& targets) const;
  /// Returns logits [B, V] for the token after `ids`. `ids` continue the tokens in the cache and
  /// are appended to it. The tape must be in inference mode (TapeError). Throws ConfigError when
  /// the cache cannot hold T more.
  Tensor next_logits(Tape& tape, const Tensor& ids, KeyValueCache& cache) const;

 private:
  std::unique_ptr<struct GPTLayers> layers_;
};

}  // namespace zg::models
