#pragma once

#include <string>
#include <vector>

#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/storage/file_set.h"

// Hugging Face's files of byte-level BPE. Errors of what is read are FileError, or Unsupported for
// what this version does not compute; both begin with the file's path and name the key.
namespace zg::models {

/// tokenizer.json, or a folder with one or else with vocab.json and merges.txt, and perhaps
/// added_tokens.json.
ZG_API Tokenizer load_tokenizer(const std::string& path);
/// Whether a folder has one of them.
ZG_API bool has_tokenizer(const std::string& folder);
/// Writes tokenizer.json, vocab.json and merges.txt, all of them or none; makes the directory.
ZG_API void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory);
/// The same among the files of a set, in a folder of its ("": in the set's own).
ZG_API void add_tokenizer(const Tokenizer& tokenizer, FileSet& files, const std::string& folder);
/// The names of these files.
ZG_API std::vector<std::string> tokenizer_file_names();

/// Model BPE, pre_tokenizer ByteLevel or Sequence [Split, ByteLevel], no normalizer, nothing that
/// adds, cuts or pads ids.
ZG_API Tokenizer tokenizer_from_json(const std::string& json, const std::string& path);
ZG_API std::string tokenizer_json(const Tokenizer& tokenizer);

/// vocab.json and merges.txt, as GPT-2 has them: its split is theirs, and the tokens of the
/// vocabulary that no merge makes ("<|endoftext|>") are added tokens.
struct GPT2Files {
  std::string vocabulary, merges;
  std::string added =
      {};  ///< added_tokens.json: tokens behind those of the vocabulary; empty: none
};
ZG_API Tokenizer tokenizer_from_gpt2(const GPT2Files& files, const std::string& directory);
ZG_API GPT2Files gpt2_files(const Tokenizer& tokenizer);

/// The special tokens of a tokenizer, by the names that GPT-2 and BLOOM give them: `<|endoftext|>`
/// begins and ends a text; or `<s>`, `</s>` and `<pad>`.
ZG_API SpecialTokens special_tokens_of(const Tokenizer& tokenizer);
/// tokenizer_config.json: says that transformers takes the tokenizer.json as it is, and names the
/// special tokens and the longest sequence. Without it transformers 5 splits the text as GPT-2 does
/// for every GPT-2 model.
ZG_API std::string hf_tokenizer_config_json(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                                            int64_t positions);

}  // namespace zg::models
