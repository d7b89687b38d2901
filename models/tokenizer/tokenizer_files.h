#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/storage/file_set.h"

// Hugging Face's files of byte-level BPE. An invalid file is a FileError, a feature that Tokenizer
// does not have is Unsupported. Both begin with the file's path and name the key.
namespace zg::models {

/// The ids that a post_processor adds around those of a text, such as that of "</s>".
enum class AroundText : uint8_t {
  refused,  ///< such a file is Unsupported
  left_out  ///< the caller adds them: encode() returns the ids of the text alone
};
/// Tokens before and after those of a text.
struct TextTemplate {
  std::optional<int32_t> first = {}, last = {};
};

/// `path` is a tokenizer.json or a folder. A folder has a tokenizer.json, or vocab.json, merges.txt
/// and optionally added_tokens.json.
ZG_API Tokenizer load_tokenizer(const std::string& path, AroundText around = AroundText::refused);
/// True if load_tokenizer() finds such files in a folder.
ZG_API bool has_tokenizer(const std::string& folder);
/// Writes tokenizer.json, vocab.json and merges.txt as one FileSet, and creates the directory.
ZG_API void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory);
/// Adds the same files to a FileSet; `folder` is relative to the set's folder, "" is that folder.
ZG_API void add_tokenizer(const Tokenizer& tokenizer, FileSet& files, const std::string& folder,
                          const TextTemplate& around = {});
/// The names of these files.
ZG_API std::vector<std::string> tokenizer_file_names();

/// Supports model BPE with pre_tokenizer ByteLevel or Sequence [Split, ByteLevel], without a
/// normalizer. Truncation and padding are ignored.
ZG_API Tokenizer tokenizer_from_json(const std::string& json, const std::string& path,
                                     AroundText around = AroundText::refused);
/// `around`: the post_processor adds these tokens.
ZG_API std::string tokenizer_json(const Tokenizer& tokenizer, const TextTemplate& around = {});

/// Contents of vocab.json and merges.txt in GPT-2's format. The text is split by GPT-2's pattern.
/// Tokens of the vocabulary that no merge produces, such as "<|endoftext|>", become added tokens.
struct GPT2Files {
  std::string vocabulary, merges;
  /// Contents of added_tokens.json: tokens with ids above the vocabulary's. Empty: no such file.
  std::string added = {};
};
ZG_API Tokenizer tokenizer_from_gpt2(const GPT2Files& files, const std::string& directory);
ZG_API GPT2Files gpt2_files(const Tokenizer& tokenizer);

/// The special tokens of a tokenizer, found by their names in GPT-2 and BLOOM: `<|endoftext|>`
/// begins and ends a text; or `<s>`, `</s>` and `<pad>`.
ZG_API SpecialTokens special_tokens_of(const Tokenizer& tokenizer);
/// Returns a tokenizer_config.json. It tells transformers to use tokenizer.json unchanged, and has
/// the special tokens and the longest sequence. Without it transformers 5 uses GPT-2's split for
/// every GPT-2 model.
ZG_API std::string hf_tokenizer_config_json(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                                            int64_t positions);

}  // namespace zg::models
