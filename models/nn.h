#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/models/module.h"

// Layers of transformers. Activations are [B, T, C]. GPT and every other decoder of this library is
// built of them. A parameter's name is the layer's and its own. A layer that is inside no unit
// (module.h) is one. A default-constructed layer can be assigned to; calling it is a ConfigError,
// as is a size that was left out. tools/examples/decoder.cpp is a whole model.
namespace zg::nn {

struct LayerCache {
  const Parameter* of = nullptr;  ///< the layer's output matrix; null before its first pass
  Tensor keys, values;            ///< [B, tokens, kv_heads * D]; absent before the first pass
};

/// Keys and values of every attention layer, for generation: each [B, capacity, kv_heads * D] in
/// the model's dtype. With it the next token takes O(length) operations. A tensor-parallel rank has
/// those of its own heads. The first pass allocates the memory. A pass with a cache needs an
/// inference tape, room for its tokens, and as many rows as the passes before; otherwise it is a
/// ConfigError.
class ZG_API KeyValueCache {
 public:
  KeyValueCache(int64_t layers, int64_t capacity);  ///< `layers`: the model's attention layers
  int64_t length() const { return length_; }        ///< positions held
  int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }
  void truncate(int64_t length);  ///< removes later positions; ConfigError if fewer are held
  /// To be called once after a pass through all layers, with the number of its tokens. ConfigError
  /// if they are more than there is room for.
  void advance(int64_t tokens);
  int64_t batch() const;  ///< rows of the first pass, or of the last reorder(); 0 before them
  /// Row i of the next pass continues row rows[i]: beams that are kept, copied or dropped. There
  /// may be more or fewer rows than before. ConfigError for a row that the cache does not hold.
  /// Copies the held positions, also where the order stays: memory does not depend on `rows`.
  void reorder(std::span<const int64_t> rows);

 private:
  friend class Attention;
  /// The keys and values of the layer with this output matrix. ConfigError unless `tokens` more
  /// fit, in `rows` rows.
  LayerCache& layer(const Parameter* of, int64_t rows, int64_t tokens);

  std::vector<LayerCache> layers_;
  int64_t length_ = 0, capacity_ = 0;
};

/// The memory of cross-attention layers in generation, for example an encoder's output [B, S,
/// width]. Each layer computes its keys and values in its first pass and keeps them here; when all
/// layers have them, the memory itself is freed. A pass has R rows, a multiple of B: rows [i R / B,
/// (i + 1) R / B) attend to row i of the memory, so the beams of a sample share one copy.
class ZG_API MemoryCache {
 public:
  /// `lengths`: as in Memory. ConfigError for other shapes.
  MemoryCache(int64_t layers, const Tensor& memory, const Tensor& lengths = {});
  int64_t rows() const;
  /// Row i becomes row rows[i]. ConfigError for a row that there is not.
  void reorder(std::span<const int64_t> rows);

 private:
  friend class Attention;
  LayerCache& layer(const Parameter* of);
  void fill(LayerCache& layer, const Tensor& keys, const Tensor& values);

  std::vector<LayerCache> layers_;
  Tensor memory_, lengths_;
};

/// The input of a cross-attention layer's keys and values.
struct Memory {
  Var values = {};  ///< [B, S, width]
  /// [B] i32: padding; the sample's positions from this one on are hidden. Absent: none is.
  Tensor lengths = {};
  MemoryCache* cache = nullptr;  ///< of a pass in inference mode, in place of values and lengths
};

/// ALiBi slopes of this rank's heads of `heads`, in the accumulator dtype and on the device of x.
ZG_API Tensor alibi_slopes_of(int64_t heads, const TensorParallel& parallel, const Var& x);

/// How the features of a linear layer are divided among tensor ranks.
enum class Split : uint8_t {
  none,
  out,  ///< column-parallel: a rank computes some of the outputs
  in    ///< row-parallel: a rank reads some of the inputs, and the ranks' results are summed
};

struct LinearConfig {
  int64_t in = 0, out = 0;
  bool bias = true;
  Split split = Split::none;
  float stddev = 0.02f;           ///< of the initial weights; biases start as 0
  std::optional<Init> init = {};  ///< other initial weights: Init::kaiming_uniform()
  int64_t blocks = 1;             ///< with Split::out: as in ParallelStore::rows
  bool hidden = true;             ///< false: the last layer of a model, no Parameter::hidden_matrix
};

/// y = x weight^T + bias; NAME.weight [out, in], NAME.bias [out]. A layer that a target of
/// ParallelStore::lora names has an adapter (models/lora.h), which is sliced like the weight: a
/// tensor rank has all of A and some rows of B with Split::out, some columns of A and all of B with
/// Split::in.
struct ZG_API Linear : Module {
  const Parameter *weight = nullptr, *bias = nullptr;
  Split split = Split::none;
  const Parameter *lora_a = nullptr, *lora_b = nullptr;  ///< null: the layer has no adapter
  float lora_scale = 0.0f;
  uint32_t lora_site = 0;
  /// The features that ranks divide, those of the whole model in one of equal blocks.
  int64_t divided = 0, blocks = 1;

  Linear() = default;
  Linear(Module* parent, const std::string& name, const LinearConfig& config);
  Var operator()(const Var& x) const;
  /// This rank's product, with the adapter's share, of x as the ranks have it inside a split layer:
  /// after TensorParallel::enter() with Split::out, the rank's slice with Split::in. `shift` may be
  /// absent.
  Var product(const Call& call, const Var& x, const Var& shift) const;
  /// The layer with Split::in and reduction groups, without its adapter.
  Var sum_of_groups(const SplitOperand& operand) const;
  /// The weight as an operand of split_linears() and split_sum(), with reduction groups.
  SplitWeight part(const Call& call, const Var& shift) const;
};
/// Layers with Split::out and one x, which enters them once.
ZG_API std::vector<Var> products(const Call& call, const Var& x,
                                 std::initializer_list<const Linear*> layers);

struct EmbeddingConfig {
  int64_t tokens = 0, width = 0;
  float stddev = 0.02f;                 ///< of the initial weights
  ParallelStore::Options options = {};  ///< of the table
};

/// A table with a row for each token, NAME.weight [tokens, width], of which each tensor rank has
/// some rows. It is a token embedding, a head, or both: tied weights. A head that shares the
/// embedding's weights reads them in the embedding's unit, which is opened again.
struct ZG_API Embedding : Module {
  const Parameter* weight = nullptr;
  int64_t tokens = 0;

  Embedding() = default;
  Embedding(Module* parent, const std::string& name, const EmbeddingConfig& config);
  /// The rows of ids [B, T]: tape.constant(ids); on one tensor rank of ids of any shape, as
  /// embedding(). `positions` [P, width], of one tensor rank only: row first_position + t is added
  /// to token t.
  Var operator()(const Var& ids, const Var& positions = {}, int64_t first_position = 0) const;
  /// x weight^T: logits [B, T, tokens] of x [B, T, width], whole on every tensor rank.
  Var logits(const Var& x) const;
  /// The mean cross entropy of these logits, which are never whole in memory; targets [B, T].
  Var loss(const Var& x, const Tensor& targets, int64_t ignore_index = -1) const;
};

struct PositionsConfig {
  int64_t positions = 0, width = 0;
  float stddev = 0.02f;
};

/// Learned positions NAME.weight [positions, width], which every tensor rank has whole.
struct ZG_API Positions : Module {
  const Parameter* weight = nullptr;

  Positions() = default;
  Positions(Module* parent, const std::string& name, const PositionsConfig& config);
  /// x [B, T, width] plus rows: token t gets row first_position + t, or that of Pass::positions.
  /// With sequence parallelism x has this rank's tokens of all.
  Var operator()(const Var& x, int64_t first_position = 0) const;
};

enum class NormKind : uint8_t {
  layer,  ///< Ba et al. 2016, arXiv:1607.06450
  rms,    ///< Zhang, Sennrich 2019, arXiv:1910.07467: no mean, no bias
  /// The same times 1 + weight, as in Gemma: weights begin as 0, and bf16 is computed in f32.
  rms_plus_one
};
inline const char* name_of(NormKind kind) {
  constexpr const char* names[] = {"layer", "rms", "rms_plus_one"};
  return names[static_cast<size_t>(kind)];
}

struct NormConfig {
  int64_t width = 0;
  NormKind kind = NormKind::layer;
  bool bias = true;  ///< NormKind::layer only
  float epsilon = 1e-5f;
};

/// x + delta between two blocks, which the second block's norm adds in the pass in which it reads
/// them. Hand it on with std::move: delta's memory is free after the sum.
struct ZG_API Residual {
  Var x, delta = {};  ///< one shape; delta may be absent
  Var sum() const { return delta ? zg::add(x, delta) : x; }
};
inline Tape tape_of(const Residual& in) { return in.x.tape(); }

/// A norm over the last axis; NAME.weight and NAME.bias [width].
struct ZG_API Norm : Module {
  const Parameter *weight = nullptr, *bias = nullptr;
  NormKind kind = NormKind::layer;
  float epsilon = 1e-5f;

  Norm() = default;
  Norm(Module* parent, const std::string& name, const NormConfig& config);
  Var operator()(const Var& x) const;
  /// x + delta and its norm.
  NormedSum add(const Var& x, const Var& delta) const;
  /// The sum and its norm; the bits are those of operator() on Residual::sum().
  NormedSum of_sum(Residual in) const;
  /// The norm of x with these weights, for NormKind::rms and rms_plus_one. `token_blocks`: as for
  /// rms_norm().
  Var rms_with(const Var& x, const Var& weights, int64_t token_blocks = 0) const;

 private:
  std::vector<Var> parameters(const Call& call) const;
};

/// Names of an attention layer's parts; "": the part has the layer's name.
struct AttentionNames {
  const char *q = "q_proj", *k = "k_proj", *v = "v_proj", *qkv = "qkv_proj", *out = "o_proj",
             *q_norm = "q_norm", *k_norm = "k_norm";
};

struct AttentionConfig {
  int64_t width = 0;
  int64_t heads = 1;
  int64_t kv_heads = 0;   ///< grouped queries: divides heads; 0: as many as heads
  int64_t head_size = 0;  ///< 0: width / heads
  bool bias = false;      ///< of queries, keys and values
  bool out_bias = false;
  /// One matrix for q, k and v. With grouped queries only by_part, with rope and on one tensor
  /// rank.
  std::optional<QKVOrder> fused = {};
  std::optional<RopeOptions> rope = {};  ///< RopeOptions() for plain rope; {} is without positions
  double rotated_share = 1.0;            ///< of a head's elements that rope turns
  bool query_key_norm = false;           ///< RMS norm of each head's queries and keys, before rope
  /// The norm is over all heads' elements together; on one tensor rank, else Unsupported.
  bool wide_query_key_norm = false;
  NormKind norm = NormKind::rms;  ///< of that norm, as the next one
  float norm_epsilon = 1e-6f;
  float scale = 0.0f;     ///< of scores; 0: 1 / sqrt(head_size)
  int64_t window = 0;     ///< a token sees this many tokens, itself included; 0: all before
  bool is_local = false;  ///< the layer reads Pass::local_rope_table
  bool causal = true;
  float stddev = 0.02f;
  float out_stddev = 0.0f;  ///< 0: stddev
  AttentionNames names = {};
  std::string site = {};  ///< name of the dropouts' random streams; empty: the layer's name
};

/// Attention of [B, T, width]: projections, optional norms and rotary positions of queries and
/// keys, the fused kernel, and the output projection with its dropout. A layer is for
/// self-attention, or for cross-attention: then queries come from x, and keys and values from a
/// memory.
class ZG_API Attention : public Module {
 public:
  Attention() = default;
  /// ConfigError naming the field, also if the tensor ranks divide heads or kv_heads unevenly.
  Attention(Module* parent, const std::string& name, const AttentionConfig& config);
  Var operator()(const Var& x) const;
  /// Cross-attention. ConfigError if the layer is causal, fused or has rotary positions. Without a
  /// cache x has as many rows as the memory.
  Var operator()(const Var& x, const Memory& memory) const;
  /// The table for Pass::rope_table, for positions `first` to `positions` - 1; absent without rope.
  Tensor rope_table(int64_t positions, DType dtype, const Device& device, int64_t first = 0) const;
  const AttentionConfig& config() const { return config_; }

 private:
  struct Heads;
  Heads project(const Call& call, const Var& x, const Memory* memory = nullptr,
                const Var& source = {}) const;
  Var turned(const Call& call, const Var& x, int64_t heads) const;
  void split_fused(Heads& heads, const Call& call) const;
  Var attend(const Call& call, const Heads& heads, const Tensor& key_lengths) const;
  Tensor attend_cached(const Call& call, const Heads& heads) const;

  AttentionConfig config_;
  Linear qkv_, q_, k_, v_, out_;
  Norm q_norm_, k_norm_;
  uint32_t weights_site_ = 0;
  Dropout drop_;
};

/// The function between the two products of an Mlp.
enum class MlpKind : uint8_t {
  gelu_tanh,
  gelu_erf,
  gated_silu,       ///< SwiGLU, as in Llama
  gated_gelu_tanh,  ///< GEGLU, as in Gemma
  gated_gelu_erf
};
inline const char* name_of(MlpKind kind) {
  constexpr const char* names[] = {"gelu_tanh", "gelu_erf", "gated_silu", "gated_gelu_tanh",
                                   "gated_gelu_erf"};
  return names[static_cast<size_t>(kind)];
}
inline bool is_gated(MlpKind kind) { return kind >= MlpKind::gated_silu; }

/// Names of an Mlp's parts. `up` is the first product of an Mlp without a gate.
struct MlpNames {
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
  const char* gate_up = nullptr;  ///< one matrix of gate, then up, in place of both
};

struct MlpConfig {
  int64_t width = 0;
  int64_t hidden = 0;  ///< 0: 4 width
  MlpKind kind = MlpKind::gelu_tanh;
  bool bias = true;  ///< without a gate only
  float stddev = 0.02f;
  float out_stddev = 0.0f;  ///< 0: stddev
  MlpNames names = {};
  std::string site = {};  ///< name of the dropout's random stream; empty: the layer's name
};

/// The feed-forward layer of a transformer's block, with its dropout.
class ZG_API Mlp : public Module {
 public:
  Mlp() = default;
  Mlp(Module* parent, const std::string& name, const MlpConfig& config);
  Var operator()(const Var& x) const;

 private:
  Linear gate_, up_, down_;
  MlpKind kind_ = MlpKind::gelu_tanh;
  uint32_t activation_site_ = 0;
  Dropout drop_;
};

}  // namespace zg::nn
