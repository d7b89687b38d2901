#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "zerograd/autograd/tape.h"
#include "zerograd/models/tensor_parallel/tensor_parallel.h"

// Modules: a member is a registration, and names compose.
//
//   struct Block : nn::Module {
//     using Module::Module;
//     nn::Norm norm{this, "norm", {.width = 64}};
//     nn::Attention attention{this, "attention", {.width = 64, .heads = 4}};
//     Var operator()(const Var& x) const { return x + attention(norm(x)); }
//   };
//   struct Model : nn::Module {
//     nn::Embedding tokens{this, "tokens", {.tokens = 256, .width = 64}};
//     nn::List<Block> blocks{this, "block", 12};  // "block.3.attention.q_proj.weight"
//   };
//   Model model;
//   zero::Engine engine(model.store(), device);  // or Values
//   Tape tape = engine.tape();
//   Var x = model.tokens(tape.constant(ids));
//
// A module describes its parameters in the store of its root when it is constructed. It holds no
// values, so ranks that are threads share it. A layer reads parameters and settings (Pass) from the
// tape of its input.
namespace zg::models {

/// Limits of a model's sizes. With them every number of parameters is below 2^63.
inline constexpr int64_t max_layers = 1 << 16, max_width = 1 << 20, max_rows = INT32_MAX;

/// Position of a forward pass in the run. Dropout masks depend on it alone.
struct ForwardPosition {
  uint64_t seed = 0;
  int64_t step = 0;          ///< optimizer step
  int64_t first_sample = 0;  ///< global index of the batch's first sample
};

}  // namespace zg::models

namespace zg::nn {

using models::ForwardPosition;
using models::ParallelStore;
using models::TensorParallel;

class KeyValueCache;
class Module;

/// Settings of a forward pass, which layers read from their input's tape:
///
///   const Tape::With pass(tape, nn::Pass{.dropout = 0.1f, .place = {.seed = 1, .step = step}});
struct ZG_API Pass {
  float dropout = 0.0f;  ///< a probability, 0 outside training
  ForwardPosition place = {};
  /// [positions, R] of rope_table(); in a pass with a cache the rows of the pass's own tokens
  /// suffice. Absent: each attention layer with rope makes its own.
  Tensor rope_table = {};
  Tensor local_rope_table = {};  ///< the same of layers with AttentionConfig::is_local
  Tensor alibi_slopes = {};      ///< [heads of this rank], as alibi_slopes_of() makes them
  /// [B, T] i32: the first token of each token's document. Tokens see their document alone. Absent:
  /// a sample is one document.
  Tensor starts = {};
  Tensor positions = {};  ///< [B, T] i32, of tokens. Absent: t, or t after a cache's tokens
  KeyValueCache* cache = nullptr;  ///< of a pass in inference mode; the tokens follow its contents
  /// [B] i32, of self-attention: padding; the sample's tokens from this one on are hidden. Absent:
  /// none is.
  Tensor key_lengths = {};
  std::optional<float> attention_dropout = {};  ///< on attention weights; absent: `dropout`
  float activation_dropout = 0.0f;              ///< between the products of an Mlp without a gate
  float lora_dropout = 0.0f;                    ///< on the input of adapters
  bool adapters = true;                         ///< false: the base alone
  bool all_tokens = false;  ///< every rank has all tokens: no sequence parallelism in this pass

  /// The tensor ranks of the module's root; `sequence` is false if all_tokens.
  TensorParallel parallel_of(const Module& module) const;
};

/// Called with the hidden state [B, T, C] of a stack of blocks: the input of the first one (layer
/// 0), then the output of each (its number, from 1 on), before a final norm. The next block reads
/// the Var that it returns, so it can look, or change what follows. Recomputed blocks call it once,
/// outside of their segment. With sequence parallelism it gets this rank's tokens.
///
///     std::vector<Var> states;
///     const nn::BlockHook keep = [&](int64_t, const Var& x) { return states.emplace_back(x); };
using BlockHook = std::function<Var(int64_t layer, const Var& x)>;

/// A part of a model, or a whole one. Copies describe the same parameters.
class ZG_API Module {
 public:
  /// A root; its store is made with its first part. A layer without a root can be assigned to.
  Module() = default;
  /// A root that adds its parameters to a store, with tensor ranks and adapters. The store must
  /// outlive the engine or Values, not the module.
  explicit Module(const ParallelStore& root);
  /// A part of `parent`, which is needed by the constructor alone; its parameters' names begin with
  /// the parent's and `name`. "": the part has the parent's name.
  Module(Module* parent, const std::string& name);
  Module(const Module&);
  Module(Module&&) noexcept;
  Module& operator=(const Module&);
  Module& operator=(Module&&) noexcept;
  ~Module();

  const std::string& name() const { return name_; }  ///< "block.3.attention"; "" of a root
  ParameterStore& store() const;                     ///< ConfigError if there is no parameter
  const ParallelStore& root() const;                 ///< the same with tensor ranks and adapters
  const TensorParallel& parallel() const;            ///< one rank without a root
  /// The unit of its parameters. Null: its layers are a unit each.
  const Unit* unit() const { return unit_; }
  /// This module as a parent whose parts are in a unit, which is added to the store. Inside a unit
  /// it is the module itself.
  Module in_unit(const std::string& unit_name);
  /// Adds a parameter of its own, NAME.`parameter`, whole on every tensor rank. A call reads it by
  /// `x.tape().parameter(w)`, in a module that is a unit (UnitOf, List) or after `const nn::Call
  /// call(*this, x);`.
  const Parameter& add(const std::string& parameter, const Shape& shape, Init init,
                       const ParameterStore::Options& options = {});

 protected:
  /// For layers and others with parameters of their own: a unit unless it is inside one.
  void be_unit();

 private:
  std::shared_ptr<const ParallelStore> root_;
  const Unit* unit_ = nullptr;
  std::string name_;
};

/// One call of a module: opens the module's unit in this scope, unless it is open, and has what the
/// call reads from the tape.
class ZG_API Call {
 public:
  Call(const Module& module, Tape tape);
  Call(const Module& module, const Var& x) : Call(module, x.tape()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Tape tape;
  const Pass& pass;
  const TensorParallel parallel;  ///< Pass::parallel_of()

  /// Keys whose masks are those of one rank. For a tensor that every tensor rank has whole;
  DropoutKey key(uint32_t site) const;
  /// for a slice of `whole` items of an axis, from item `begin` on;
  DropoutKey key(uint32_t site, int axis, int64_t begin, int64_t whole) const;
  /// for x between split layers: with sequence parallelism this rank's tokens.
  DropoutKey key(uint32_t site, const Var& x) const;

 private:
  std::optional<Tape::Use> use_;
};

inline Tape tape_of(const Var& x) { return x.tape(); }

/// A module as a unit: its parameters are gathered together (ZeRO-3), and a call opens the unit.
/// tape_of(first argument) is the tape.
template <class M>
struct UnitOf : M {
  template <class... Args>
  UnitOf(Module* parent, const std::string& name, const Args&... args)
      : UnitOf(parent->in_unit(Module(parent, name).name()), name, args...) {}

  template <class X, class... Args>
  auto operator()(X&& x, Args&&... args) const {
    const Call call(*this, tape_of(x));
    return M::operator()(std::forward<X>(x), std::forward<Args>(args)...);
  }

 private:
  template <class... Args>
  UnitOf(Module place, const std::string& name, const Args&... args) : M(&place, name, args...) {}
};

/// `count` modules NAME.0, NAME.1, ... of one type, each a unit.
template <class M>
struct List : std::deque<UnitOf<M>> {
  template <class... Args>
  List(Module* parent, const std::string& name, int64_t count, const Args&... args) {
    for (int64_t i = 0; i < count; ++i)
      this->emplace_back(parent, name + "." + std::to_string(i), args...);
  }
};

/// Sets elements to 0 with the probability Pass::dropout. Its random stream is its name's; a second
/// one of this name in a model is a ConfigError.
struct ZG_API Dropout : Module {
  uint32_t site = 0;

  Dropout() = default;
  Dropout(Module* parent, const std::string& name);
  Dropout(Module* parent, uint32_t site) : Module(parent, ""), site(site) {}  ///< a stream's number
  Var operator()(const Var& x) const;
};

}  // namespace zg::nn
