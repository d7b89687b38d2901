#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/storage/file_set.h"

// Hugging Face's files of BPE. An invalid file is a FileError; a feature that Tokenizer does not
// have is Unsupported. The messages of both begin with the file's path and name the key.
namespace zg::models {

/// Reads a tokenizer. `path` is a tokenizer.json or a folder with tokenizer.json, or with
/// vocab.json and merges.txt. In a folder the other files of AutoTokenizer are also read:
/// chat_template.jinja, and tokenizer_config.json with the tokens that it names
/// (added_tokens_decoder, eos_token and the like). If it has no added_tokens_decoder,
/// special_tokens_map.json and added_tokens.json are read too. As in AutoTokenizer, a new token
/// gets the next id, and add_bos_token and add_eos_token have no effect if there is a
/// tokenizer.json. Some classes (tokenizer_class, or model_type of config.json) have normalizers,
/// pre-tokenizers and decoders of their own. For example, LlamaTokenizer adds a space at the begin
/// of a text, and with "legacy" also after each special token.
ZG_API Tokenizer load_tokenizer(const std::string& path);
/// True if load_tokenizer() finds such files in a folder.
ZG_API bool has_tokenizer(const std::string& folder);
/// Writes tokenizer.json as one FileSet, and for byte-level BPE vocab.json and merges.txt. Creates
/// the directory.
ZG_API void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory);
/// Adds the same files to a FileSet; `folder` is relative to the set's folder, "" is that folder.
/// `around`: as in tokenizer_json().
ZG_API void add_tokenizer(const Tokenizer& tokenizer, FileSet& files, const std::string& folder,
                          const std::optional<TextTemplate>& around = {});

/// Reads model BPE with these steps. normalizer: NFC, Prepend, Replace (of a String).
/// pre_tokenizer: Split, Digits, Metaspace, and ByteLevel as the last one. post_processor:
/// TemplateProcessing, RobertaProcessing, ByteLevel. decoder: ByteLevel if the pre_tokenizer is;
/// otherwise Replace, ByteFallback, Fuse, Strip, Metaspace. Each may be a Sequence. Truncation and
/// padding are ignored.
/// `config`: TokenizerParts::config.
ZG_API Tokenizer tokenizer_from_json(const std::string& json, const std::string& path,
                                     const std::string& config = {});
/// `around`: the tokens that the post_processor adds; absent: parts().around, as the file had it.
ZG_API std::string tokenizer_json(const Tokenizer& tokenizer,
                                  const std::optional<TextTemplate>& around = {});

/// Contents of vocab.json and merges.txt in GPT-2's format. Texts are split by GPT-2's pattern.
/// Tokens of the vocabulary that no merge produces, such as "<|endoftext|>", become added tokens.
struct GPT2Files {
  std::string vocabulary, merges;
  /// Contents of added_tokens.json: tokens with ids above the vocabulary's. Empty: no such file.
  std::string added = {};
};
ZG_API Tokenizer tokenizer_from_gpt2(const GPT2Files& files, const std::string& directory);
ZG_API GPT2Files gpt2_files(const Tokenizer& tokenizer);

/// The special tokens of a tokenizer: bos_token, eos_token and pad_token of its config. One that
/// the config does not have is found by its name in GPT-2, Llama and BLOOM: `<|endoftext|>` begins
/// and ends a text; or `<|begin_of_text|>` and `<|end_of_text|>`; or `<s>`, `</s>` and `<pad>`.
ZG_API SpecialTokens special_tokens_of(const Tokenizer& tokenizer);
/// The chat template in a tokenizer's config; if it has several, the one that is named "default".
/// Empty: there is none.
ZG_API std::string chat_template_of(const Tokenizer& tokenizer);
/// The token that the config has under "eos_token" or another key of special tokens.
ZG_API std::optional<int32_t> named_token(const Tokenizer& tokenizer, const char* key);
/// Returns a tokenizer_config.json: the tokenizer's config, to which absent members are added: the
/// longest sequence and the special tokens. (Special tokens are not added to a class that has none,
/// TokenizersBackend.) The file tells transformers to use tokenizer.json unchanged; without it
/// transformers 5 uses GPT-2's split for every GPT-2 model. A chat template that is one text is
/// left out, because transformers writes it to chat_template.jinja.
ZG_API std::string hf_tokenizer_config_json(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                                            int64_t positions);

}  // namespace zg::models
