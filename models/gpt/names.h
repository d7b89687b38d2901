#pragma once

#include "zerograd/models/gpt/gpt.h"

namespace zg::models {

/// A family's names of decoder parameters, without ".weight" and ".bias".
struct DecoderNames {
  const char *tokens, *positions;
  const char* embedding_norm;  ///< null: the family has none
  const char *norm_1, *qkv, *attention_out, *norm_2, *mlp_in, *mlp_out;  ///< after block_name()
  const char* norm_f;
};

/// The name of block N, "transformer.h.N" in both families.
ZG_API std::string block_name(int64_t layer);
ZG_API const DecoderNames& names_of(Family family);

}  // namespace zg::models
