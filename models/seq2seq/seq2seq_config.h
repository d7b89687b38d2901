#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/nn.h"
#include "zerograd/runtime/api.h"

namespace zg::models {

/// The class of transformers whose config.json describes the model. It does not change what the
/// model computes; the other fields of Seq2SeqConfig do.
enum class Seq2SeqFamily : uint8_t { blenderbot, bart };
ZG_API const char* name_of(Seq2SeqFamily family);  ///< "blenderbot", "bart": their model_type

/// Ids of the tokens with which texts begin, end and are padded, with transformers' names.
struct Seq2SeqTokens {
  int32_t pad = 0;
  int32_t decoder_start = 1;  ///< the decoder's first input
  std::optional<int32_t> bos = {};
  std::vector<int32_t> eos = {};  ///< each of them ends a text
  // For generation: the first token after decoder_start, and the last one at the longest length.
  std::optional<int32_t> forced_bos = {};
  std::vector<int32_t> forced_eos = {};

  bool operator==(const Seq2SeqTokens&) const = default;
};

/// An encoder and a decoder that attends to the encoder's output (Vaswani et al. 2017,
/// arXiv:1706.03762) with learned positions and one table for source tokens, target tokens and
/// head: BlenderBot (Roller et al. 2020, arXiv:2004.13637) and BART (Lewis et al. 2019,
/// arXiv:1910.13461). of() and preset() fill the fields.
struct Seq2SeqConfig {
  Seq2SeqFamily family = Seq2SeqFamily::blenderbot;
  int64_t width = 0;
  int64_t encoder_layers = 2, decoder_layers = 2;
  int64_t encoder_heads = 1, decoder_heads = 1;
  int64_t encoder_hidden = 0, decoder_hidden = 0;  ///< of feed-forward layers; 0: 4 width
  int64_t vocabulary = 0;
  int64_t positions = 0;        ///< the longest source, and the longest target
  int64_t position_offset = 0;  ///< position 0 has this row; the rows before it are not used
  /// True: norms before the layers, and one after the last layer of encoder and decoder. False:
  /// norms of the sums behind the layers.
  bool pre_norm = true;
  bool embedding_norm = false;  ///< LayerNorm of the sum of token and position
  bool scaled_embedding =
      false;  ///< token embeddings are multiplied by sqrt(width); the head's not
  nn::MlpKind mlp = nn::MlpKind::gelu_erf;  ///< gelu_erf | gelu_tanh
  float dropout = 0.1f;                     ///< on embeddings and residual branches
  float attention_dropout = 0.0f;           ///< on attention weights
  float activation_dropout = 0.0f;          ///< between the products of feed-forward layers
  float stddev = 0.02f;                     ///< of initial weights; biases start as 0
  Seq2SeqTokens tokens = {};

  /// The family's defaults, without sizes. BlenderBot has norms before the layers. BART has norms
  /// behind them and one of the embedding, and positions that begin at row 2.
  ZG_API static Seq2SeqConfig of(Seq2SeqFamily family);
  /// The published model of this name. "blenderbot-400m" (facebook/blenderbot-400M-distill),
  /// "blenderbot-3b", "bart-base", "bart-large". ConfigError lists the names.
  ZG_API static Seq2SeqConfig preset(const std::string& name);
  ZG_API static const std::vector<std::string>& preset_names();
  bool operator==(const Seq2SeqConfig&) const = default;
};

/// Throws ConfigError naming the field. Extents must be positive, heads must divide width, dropouts
/// must be in [0, 1), token ids in the vocabulary.
ZG_API void validate(const Seq2SeqConfig& config);

}  // namespace zg::models
