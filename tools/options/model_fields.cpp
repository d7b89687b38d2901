#include <utility>

#include "tools/options/field_rows.h"
#include "tools/options/model_flags.h"
#include "tools/options/train_flags.h"

namespace zg::tools {
namespace {

constexpr Range above_zero{0.0, 1.7e308, true, false, "a finite number above 0"};

/// A field of the model that ModelOptions has in `base`. `field` gives a reference to it.
template <class Field>
Stored of_model(Key key, ModelOptions& now, models::GPTConfig& was, Field field,
                Bounds bounds = {}) {
  Stored stored{.rule = Resume::must_equal, .key = key, .value = &field(was), .bounds = bounds};
  stored.take = [&now, &was, field] {
    if (!now.base) now.base = models::GPTConfig::of(was.family);
    field(*now.base) = field(was);
  };
  return std::move(stored).unless({"--model-type"});
}

}  // namespace

Fields model_fields(ModelOptions& now, models::GPTConfig& was) {
  using Model = models::GPTConfig;
  // A model of the family "bloom" that is not a preset: flags give its sizes.
  Stored family = must_equal({7, "model.family"}, was.family, was.family);
  family.take = [&now, &was] {
    if (was.family != models::Family::gpt) now.model_type = name_of(was.family);
  };
  return {
      {model_type_flag(now), family},
      {integer_flag({"--n-layer", "--num-layers"}, now.layers,
                    "blocks; with --n-head and --n-embd instead of a name", {1, ""}),
       must_equal({1, "model.layers", always}, now.layers, was.layers, extent)
           .unless({"--model-type"})},
      {heads_flag(now), must_equal({2, "model.heads", always}, now.heads, was.heads, extent)
                            .unless({"--model-type"})},
      {integer_flag({"--n-embd", "--hidden-size"}, now.width, "width", {1, ""}),
       must_equal({3, "model.width", always}, now.width, was.width, extent)
           .unless({"--model-type"})},
      {no_flag, must_equal({9, "model.embedding_norm"}, now.embedding_norm, was.embedding_norm)
                    .unless({"--model-type"})},
      // Models with ALiBi accept any length: check_resumed() does not compare theirs.
      {integer_flag({"--block-size", "--seq-length"}, now.block_size, "longest sequence",
                    {1, "sort 11, adder 6, text 128, conversations 1024 or fewer, a BLOOM's own"}),
       must_equal({5, "model.block_size", always}, now.block_size, was.block_size, extent)},
      {integer_flag({"--max-position-embeddings"}, now.max_positions, "", {1, ""})},
      {integer_flag({"--vocab-size"}, now.vocabulary, "tokens that the model knows",
                    {1, "a BLOOM's own, else from the data"}),
       must_equal({4, "model.vocabulary", always}, now.vocabulary, was.vocabulary, extent)},
      {position_flag(now), must_equal({8, "model.position"}, now.position, was.position)},
      {tied_flag(now),
       must_equal({6, "model.tied", always}, now.tied, was.tied).unless({"--untied"})},
      {untied_flag(now.tied)},
      {number_flag({"--dropout"}, now.dropout, below_one, "on embeddings, attention and residuals",
                   "0.1; Llama's family 0"),
       kept({31, "run.dropout"}, now.dropout, was.dropout, below_one)},
      {integer_flag({"--num-query-groups", "--num-key-value-heads"}, now.kv_heads,
                    "key-value heads, only of llama, mistral, qwen2 and qwen3",
                    {1, "as many as heads"}),
       of_model(
           {89, "model.kv_heads"}, now, was, [](Model & model) -> auto& { return model.kv_heads; },
           count)},
      {integer_flag({"--kv-channels", "--head-dim"}, now.head_size, "size of a head",
                    {1, "width / heads"}),
       of_model(
           {90, "model.head_size"}, now, was,
           [](Model & model) -> auto& { return model.head_size; }, count)},
      {integer_flag({"--ffn-hidden-size", "--intermediate-size"}, now.hidden,
                    "width of the feed-forward layer", {1, "4 x width"}),
       of_model(
           {91, "model.hidden"}, now, was, [](Model & model) -> auto& { return model.hidden; },
           count)},
      {integer_flag({"--sliding-window"}, now.window, "tokens that a token sees",
                    {1, "all before it"}),
       of_model(
           {92, "model.window"}, now, was, [](Model & model) -> auto& { return model.window; },
           count)},
      {number_flag({"--rotary-base", "--rope-theta"}, now.rope_theta, above_zero,
                   "base of the rotary positions, only of llama, mistral, qwen2 and qwen3",
                   "10000; a named model's own"),
       of_model(
           {93, "model.rope_theta"}, now, was,
           [](Model & model) -> auto& { return model.rope.theta; }, above_zero)},
      {number_flag({"--norm-epsilon", "--rms-norm-eps"}, now.norm_epsilon, above_zero,
                   "epsilon of the norms", "1e-05; qwen2 and qwen3 1e-06"),
       of_model(
           {94, "model.norm_epsilon"}, now, was,
           [](Model & model) -> auto& { return model.norm_epsilon; }, finite)},
      {no_flag,
       of_model(
           {95, "model.norm"}, now, was, [](Model & model) -> auto& { return model.norm; })},
      {no_flag, of_model(
                    {96, "model.mlp"}, now, was, [](Model & model) -> auto& { return model.mlp; })},
      {no_flag,
       of_model(
           {97, "model.bias"}, now, was, [](Model & model) -> auto& { return model.bias; })},
      {no_flag, of_model(
                    {98, "model.qkv_bias"}, now, was,
                    [](Model & model) -> auto& { return model.qkv_bias; })},
      {no_flag, of_model(
                    {99, "model.query_key_norm"}, now, was,
                    [](Model & model) -> auto& { return model.query_key_norm; })},
      {no_flag, of_model(
                    {100, "model.rope_scaling"}, now, was,
                    [](Model & model) -> auto& { return model.rope.scaling; })},
      {no_flag, of_model(
                    {101, "model.rope_factor"}, now, was,
                    [](Model & model) -> auto& { return model.rope.factor; }, above_zero)},
      {no_flag, of_model(
                    {102, "model.rope_original_positions"}, now, was,
                    [](Model & model) -> auto& { return model.rope.original_positions; }, extent)},
      {no_flag, of_model(
                    {103, "model.rope_low_freq_factor"}, now, was,
                    [](Model & model) -> auto& { return model.rope.low_freq_factor; }, above_zero)},
      {no_flag,
       of_model(
           {104, "model.rope_high_freq_factor"}, now, was,
           [](Model & model) -> auto& { return model.rope.high_freq_factor; }, above_zero)},
      {no_flag, of_model(
                    {105, "model.rope_beta_fast"}, now, was,
                    [](Model & model) -> auto& { return model.rope.beta_fast; }, above_zero)},
      {no_flag, of_model(
                    {106, "model.rope_beta_slow"}, now, was,
                    [](Model & model) -> auto& { return model.rope.beta_slow; }, above_zero)},
      {no_flag, of_model(
                    {107, "model.rope_attention_factor"}, now, was,
                    [](Model & model) -> auto& { return model.rope.attention_factor; }, finite)},
      {no_flag, of_model(
                    {108, "model.rope_truncate"}, now, was,
                    [](Model & model) -> auto& { return model.rope.truncate; })},
      {no_flag, of_model(
                    {109, "model.rotated_share"}, now, was,
                    [](Model & model) -> auto& { return model.rotated_share; }, share)},
      {no_flag, of_model(
                    {110, "model.positions"}, now, was,
                    [](Model & model) -> auto& { return model.positions; }, count)},
  };
}

}  // namespace zg::tools
