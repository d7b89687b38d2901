#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/gpt/gpt_layers.h"
#include "zerograd/runtime/error.h"

namespace zg::models {

KeyValueCache::KeyValueCache(const GPTConfig& config)
    : layers_(static_cast<size_t>(config.layers)), capacity_(config.block_size) {}

void KeyValueCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    throw ConfigError("key_value_cache: expected to keep 0 to " + std::to_string(length_) +
                      " positions, got " + std::to_string(length));
  length_ = length;
}

void KeyValueCache::write(size_t layer, const Tensor& qkv, const AttentionShape& s, QKVOrder order,
                          Stream& stream) {
  const int64_t C = s.H * s.D;
  int64_t part = 1;
  for (Tensor* cached : {&layers_[layer].keys, &layers_[layer].values}) {
    if (!*cached) *cached = Tensor::empty({s.B, capacity_, C}, qkv.dtype(), qkv.device());
    const HeadLayout from = qkv_layout(s, order, part++);
    kernels::strided_copy({.x = qkv,
                           .y = *cached,
                           .extents = {s.B, s.T, s.H, s.D},
                           .x_strides = {from.batch, from.token, from.head, 1},
                           .y_strides = {capacity_ * C, C, s.D, 1},
                           .x_offset = from.offset,
                           .y_offset = length_ * C},
                          stream);
  }
}

Tensor GPT::next_logits(Tape& tape, const Tensor& ids, KeyValueCache& cache) const {
  if (tape.mode() != TapeMode::inference)
    throw TapeError("next_logits: expected a tape in inference mode; a cache has no gradients");
  if (ids.shape().rank() != 2 || ids.numel() == 0)
    throw ShapeError("next_logits: expected ids [B, T], got " + ids.shape().str());
  const Pass pass = Pass::of_all_tokens(*layers_);
  const int64_t B = ids.extent(0), T = ids.extent(1), ranks = pass.parallel.size();
  const int64_t C = config().width / ranks, H = config().heads / ranks;
  if (cache.length() + T > cache.capacity())
    throw ConfigError("next_logits: the cache holds " + std::to_string(cache.length()) + " of " +
                      std::to_string(cache.capacity()) + " positions, got " + std::to_string(T) +
                      " more; clear it and begin with a later window");
  if (const Tensor& keys = cache.layers_[0].keys; keys && keys.extent(0) != B)
    throw ShapeError("next_logits: expected " + std::to_string(keys.extent(0)) +
                     " rows as in the cache, got " + std::to_string(B));

  Var x = begin_stage(tape, *layers_, ids, cache.length(), pass);
  const Var slopes = alibi_slopes(config(), pass.parallel, x);
  const HeadLayout in_cache{.batch = cache.capacity() * C, .head = C / H, .token = C};
  const QKVOrder order = qkv_order(config());
  AttentionShape shape = {.B = B,
                          .H = H,
                          .T = T,
                          .keys = cache.length() + T,
                          .offset = cache.length(),
                          .D = C / H,
                          .k = in_cache,
                          .v = in_cache,
                          .out = {.batch = T * C, .head = C / H, .token = C}};
  shape.q = qkv_layout(shape, order, 0);
  for (size_t layer = 0; layer < layers_->blocks.size(); ++layer)
    x = run_block(tape, layers_->blocks[layer], x, pass, [&](const Var& projected) {
      const Tensor qkv = projected.value();
      cache.write(layer, qkv, shape, order, tape.stream());
      const Tensor out = Tensor::empty({B, T, C}, qkv.dtype(), qkv.device());
      kernels::attention_forward({.q = qkv,
                                  .k = cache.layers_[layer].keys,
                                  .v = cache.layers_[layer].values,
                                  .alibi_slopes = slopes ? slopes.value() : Tensor(),
                                  .out = out,
                                  .shape = shape},
                                 tape.stream());
      return Var(out);
    });
  cache.length_ += T;

  const Shape logits{B, config().vocabulary};
  return end_stage(tape, *layers_, x, logits, layers_->part.activations, [&](const Var& end) {
    HeadUse use(tape, *layers_);
    const Var last = norm(tape, layers_->ln_f, slice(end, 1, T - 1, T), pass);
    return head(tape, *layers_, last, pass).value().view(logits);
  });
}

}  // namespace zg::models
