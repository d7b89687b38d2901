#include "zerograd/models/gpt/names.h"

#include "zerograd/models/gpt/bloom.h"

namespace zg::models {
namespace {

constexpr DecoderNames gpt_names = {
    .tokens = "transformer.wte",
    .positions = "transformer.wpe",
    .embedding_norm = nullptr,
    .norm_1 = ".ln_1",
    .qkv = ".attn.c_attn",
    .attention_out = ".attn.c_proj",
    .norm_2 = ".ln_2",
    .mlp_in = ".mlp.c_fc",
    .mlp_out = ".mlp.c_proj",
    .norm_f = "transformer.ln_f",
};

}  // namespace

std::string block_name(int64_t layer) { return "transformer.h." + std::to_string(layer); }

const DecoderNames& names_of(Family family) {
  return family == Family::bloom ? bloom_names : gpt_names;
}

}  // namespace zg::models
