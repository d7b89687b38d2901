#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/models/data/chat_template.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/data/token_source.h"
#include "zerograd/runtime/api.h"

// Conversations for supervised fine-tuning of a decoder: the loss is only on responses.
namespace zg::models {

/// The tokens of a prompt and its response, or of a chat.
struct Conversation {
  std::vector<int32_t> tokens;
  std::vector<bool> is_target;  ///< for each token; the first one is never predicted
  bool operator==(const Conversation&) const = default;
};

/// How the messages of a chat become text: by a template, or by texts before and after contents.
struct ChatFormat {
  /// The text before and after a message's content.
  struct Role {
    std::string prefix, suffix;
    bool operator==(const Role&) const = default;
  };
  std::string first;                       ///< begins a chat: "<s>"
  std::map<std::string, Role> roles;       ///< targets: contents and suffixes of "assistant"
  std::optional<ChatTemplate> jinja = {};  ///< if set, first and roles are empty
  bool operator==(const ChatFormat&) const = default;
};
/// Reads {"first": "...", "system": ["<|im_start|>system\n", "<|im_end|>\n"], "user": [...],
/// "assistant": [...]}: a prefix and a suffix for each role. "first" may be left out. Or reads a
/// template: {"template": "...", "tool_template": "...", "variables": {...}, "date": "2024-07-26"},
/// as in ChatTemplate. Throws FileError, with a message that begins with `path`, for other JSON and
/// for roles without "assistant".
ZG_API ChatFormat chat_format(const std::string& json, const std::string& path);
ZG_API std::string chat_format_json(const ChatFormat& format);  ///< chat_format() reads it

struct ConversationFileOptions {
  /// The tokens of a text, without tokens that begin or end it: Tokenizer::encode_with_spans().
  std::function<EncodedText(const std::string& text)> encode;
  std::vector<int32_t> first = {};  ///< begins a prompt: TokenizerParts::around.before
  std::optional<int32_t> end = {};  ///< ends the response to a prompt, as a target
  std::string end_text = {};        ///< the text that is encoded as `end`; empty: none
  std::optional<ChatFormat> chat = {};
  /// Put between a text that is learned and one that is not. Empty for a tokenizer.
  std::string separator = {};
};

/// The text of a whole conversation, and the bytes of it that are learned: in order, disjoint.
struct RenderedConversation {
  std::string text;
  std::vector<TextSpan> learned;
  /// True: ConversationFileOptions::first stands before it, and `end` ends it.
  bool is_document = false;
};
/// Encodes the text as a whole, so that its ids are those of transformers. A token is a target if
/// its span overlaps a learned one: a token that has bytes on both sides of a border is learned, as
/// in return_assistant_tokens_mask of transformers. `end` is added unless it is the last token.
/// Throws FileError if no token behind the first one is a target, and ConfigError for text that
/// `encode` refuses; both messages begin with `place`.
ZG_API Conversation conversation_of(const RenderedConversation& rendered,
                                    const ConversationFileOptions& options,
                                    const std::string& place);

/// Reads a file with a JSON object on each line, in UTF-8: {"prompt": "Hi", "response": "Hello"},
/// with "completion" as another name for "response", or {"messages": [{"role": "user", "content":
/// "Hi"}, {"role": "assistant", "content": "Hello"}]}. Empty lines are left out. A prompt and its
/// response are one text, as are the messages of a chat. As in TRL's SFTTrainer, `end_text` follows
/// a response that does not end with it. A message with "weight": 0 (OpenAI) or "train" or
/// "training": false (axolotl) is not learned. One with 1 or true is learned, whatever its role.
///
/// A template gets all members of a line, and each answer of ChatRenderer is learned.
///
/// `note` (optional) is set to a list of members that have no effect and the number of answers that
/// are not learned because the template changes them, or to "".
///
/// Throws FileError with file and line for invalid UTF-8 and JSON, other types, roles that the
/// format lacks, what a template refuses, and for members that are neither null nor empty and
/// change a conversation's text or targets in a way that a format cannot show: tools, tool_calls,
/// reasoning_content, name and the like; ConfigError for a file without conversations and for text
/// that `encode` refuses; Unsupported for messages without a format.
ZG_API std::vector<Conversation> read_conversations(const std::string& path,
                                                    const ConversationFileOptions& options,
                                                    std::string* note = nullptr);

/// Puts items of these lengths, from 1 to `capacity`, into bins. Returns the items of each bin.
/// Best fit: an item goes to the fullest bin that has room for it, or to a new one.
ZG_API std::vector<std::vector<int64_t>> best_fit(std::span<const int64_t> lengths,
                                                  int64_t capacity);

struct ConversationOptions {
  int64_t block_size = 1024;
  /// Packed: a sample has as many conversations as fit, each a document of its own
  /// (Dataset::has_documents). Not packed: a sample has one conversation, and padding.
  bool pack = true;
  /// The order of training samples. Random: longest conversations are packed first, which leaves
  /// the least padding, and each epoch shuffles the samples by (seed, epoch). Sequential: they are
  /// packed in the order of the file, and samples come in the order of their first conversation.
  Order order = Order::random;
  uint64_t seed = 3407;
  int64_t vocabulary = 0;  ///< 0: the largest token plus 1
  /// Absent: tokens are numbers.
  std::shared_ptr<const TextCodec> codec = {};
  std::vector<std::string> notes = {};  ///< of read_conversations(), for users
};

/// Conversations as samples of block_size tokens. A conversation of n tokens takes n - 1 of them,
/// because its last token is only a target. Targets that are not learned, and those of padding
/// (token 0, a document of its own), are ignored. The conversations that are packed together depend
/// only on the data. A sample depends on its number only, as in every dataset.
class ZG_API ConversationDataset final : public Dataset {
 public:
  /// Throws ConfigError for a block size below 1, for a token that is not below the vocabulary, and
  /// if neither split has a conversation that can be used.
  ConversationDataset(std::vector<Conversation> training, std::vector<Conversation> validation,
                      const ConversationOptions& options);
  ~ConversationDataset() override;

  /// The conversations of a split. Tokens after the first block_size + 1 of a conversation are
  /// dropped. If none of the first ones is a target, the conversation is left out.
  struct Counts {
    int64_t conversations = 0;  ///< that are used
    int64_t cut = 0;            ///< used in part
    int64_t left_out = 0;
    int64_t tokens = 0, targets = 0;  ///< in one epoch, without padding
  };
  const Counts& counts(Split split) const;
  const std::vector<std::string>& notes() const { return options_.notes; }

  int64_t vocabulary() const override;
  int64_t block_size() const override;
  int64_t epoch_samples(Split split) const override;
  void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const override;
  int64_t targets(Split split, int64_t index) const override;
  bool has_documents() const override;
  void document_starts(Split split, int64_t index, int32_t* starts) const override;
  std::vector<int32_t> encode(const std::string& text) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  bool is_text() const override;

 private:
  struct Samples;  // of one split
  const Samples& of(Split split) const;
  const std::vector<int64_t>& conversations(Split split, int64_t index) const;

  const ConversationOptions options_;
  int64_t vocabulary_ = 0;
  std::unique_ptr<const Samples> training_, validation_;
};

/// Removes the last part of the conversations and returns it, for validation. Throws ConfigError
/// for a fraction outside [0, 1]. At least one conversation stays, unless the fraction is 1.
ZG_API std::vector<Conversation> split_off(std::vector<Conversation>& conversations,
                                           double fraction);

}  // namespace zg::models
