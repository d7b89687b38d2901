#pragma once

#include <string>

#include "zerograd/autograd/ops.h"
#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/nn.h"

// The families of decoders: one row for each says what differs. Its keys in config.json are beside
// it in models/hugging_face/hf_config.cpp.
namespace zg::models {

/// A family's names and layouts of decoder parameters, without ".weight" and ".bias". Null: the
/// family has no such parameter.
struct DecoderNames {
  const char* tokens;
  const char* positions = nullptr;
  const char* embedding_norm = nullptr;
  const char* blocks;  ///< "transformer.h.": block N is "transformer.h.N"
  /// After "transformer.h.N.", as the next two: norms of the inputs of attention and feed-forward.
  const char *norm_1 = nullptr, *norm_2 = nullptr;
  nn::AttentionNames attention;
  nn::MlpNames mlp;
  const char* norm_f;
  const char* head = "lm_head";
  const char *post_norm_1 = nullptr, *post_norm_2 = nullptr;  ///< norms of their outputs
  QKVOrder qkv_order = QKVOrder::by_part;  ///< of one matrix for queries, keys and values
  bool conv1d = false;  ///< the blocks' matrices are [in, out] in Hugging Face's files
};

struct FamilyRow {
  const char* name;                   ///< of --model-type and in checkpoints
  const char* title;                  ///< for readers: "GPT-2"
  const char *model_type, *hf_class;  ///< of config.json: "gpt2", "GPT2LMHeadModel"
  DecoderNames names;
  GPTConfig defaults;                ///< GPTConfig::of()
  bool wide_query_key_norm = false;  ///< nn::AttentionConfig::wide_query_key_norm
  bool scaled_embedding = false;     ///< token embeddings are multiplied by sqrt(width)
  const char* gguf = nullptr;  ///< llama.cpp's name of the architecture; null: none is written
};

ZG_API const FamilyRow& row_of(Family family);
inline const DecoderNames& names_of(Family family) { return row_of(family).names; }
/// The first part of the family's names, which base models' files lack: "transformer.".
ZG_API std::string name_prefix(Family family);
/// The name of block N, "transformer.h.N" or "model.layers.N".
ZG_API std::string block_name(Family family, int64_t layer);
/// "gpt2, bloom, llama or mistral": a member of the rows that `listed` accepts, for messages.
ZG_API std::string list_families(const char* FamilyRow::*member,
                                 bool (*listed)(const FamilyRow&) = nullptr);
/// True with a gate in the feed-forward layer and grouped queries.
inline bool has_gate(const FamilyRow& row) { return row.names.mlp.gate != nullptr; }
inline bool has_rope(const FamilyRow& row) { return row.defaults.position == Position::rope; }

}  // namespace zg::models
