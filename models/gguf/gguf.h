#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/models/hugging_face/hugging_face.h"

// Decoders as GGUF files, which llama.cpp runs. The format is
// github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3; keys, names and layout of tensors
// are those that llama.cpp's convert_hf_to_gguf.py writes.
namespace zg::models {

/// The type of a GGUF file's matrices. Norms, biases and rope_freqs are f32 in every file.
enum class GGUFType : uint8_t {
  f32,
  f16,
  bf16,
  /// Blocks of 32 elements of a row: a scale d in f16 and 32 integers q in i8; an element is d q. A
  /// matrix whose row length is not a multiple of 32 is f16.
  q8_0
};
inline constexpr GGUFType all_gguf_types[] = {GGUFType::f32, GGUFType::f16, GGUFType::bf16,
                                              GGUFType::q8_0};
ZG_API const char* name_of(GGUFType type);  ///< "q8_0"

/// The tokenizer of a GGUF file.
struct GGUFTokenizer {
  /// The text of a tokenizer.json, of byte-level BPE or of SentencePiece's BPE with byte_fallback.
  /// Empty: the file's tokens have no text, and programs of llama.cpp take and print ids.
  std::string json = {};
  std::string path = "tokenizer.json";  ///< errors begin with it
  std::string chat_template = {};       ///< Jinja; empty: none
};

/// The tokenizer in a folder written by transformers: its tokenizer.json, and its chat template
/// as folder_chat_template() finds it. `json` is empty if the folder has no tokenizer.json. Throws
/// FileError.
ZG_API GGUFTokenizer gguf_tokenizer(const std::string& folder);

struct GGUFOptions {
  GGUFType type = GGUFType::f32;
  std::string name = {};  ///< general.name; empty: the file's name without its ending
  GGUFTokenizer tokenizer = {};
};

struct GGUFResult {
  std::string hash;                ///< Engine::parameter_hash() of the weights, before rounding
  std::vector<std::string> notes;  ///< where llama.cpp differs from the model, one per line
};

/// Writes a Llama, Mistral, Qwen2 or Qwen3 (SmolLM2 is a Llama) as one GGUF file. An older file is
/// replaced when all is written. If `weights` can be read in ranges or slices, a few MiB of one
/// tensor are in memory at a time; if not, one tensor. Only one rank calls it, and not in a plan.
///
/// Throws Unsupported, with the field, for a model that llama.cpp does not compute or that is not
/// written: another family, what hf_json() refuses, a Qwen2 whose head size is not width / heads, a
/// Qwen with Llama 3's scaling of rotary positions, yarn with other ramps than llama.cpp's. Throws
/// it, with the key, for a tokenizer that llama.cpp does not have. Throws FileError if the weights
/// do not fit the model, a value does not fit the type, the tokenizer is invalid, or the file
/// cannot be written.
///
/// llama.cpp has no sliding window for these architectures. If the model has one, the file's
/// context_length is at most the window. Up to that length llama.cpp computes the same.
ZG_API GGUFResult save_gguf(const WeightSource& weights, const HFModel& model,
                            const std::string& file, const GGUFOptions& options = {});

}  // namespace zg::models
