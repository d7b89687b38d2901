#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

// The chat template of a model of Hugging Face: a program in Jinja that writes messages as text.
namespace zg::models {

struct ChatTemplate {
  std::string text = {};               ///< Jinja
  std::string tool_text = {};          ///< for rows with tools; empty: text
  std::string name = "chat template";  ///< for errors
  /// A JSON object with variables that it may use: bos_token, eos_token, enable_thinking. Those of
  /// "chat_template_kwargs" in a row of data have precedence.
  std::string variables = "{}";
  std::string date = {};  ///< that strftime_now() formats: "2024-07-26" or "2024-07-26T18:30:00"

  bool operator==(const ChatTemplate&) const = default;
};

/// The template of a folder, as AutoTokenizer of transformers finds it: chat_template.jinja and
/// additional_chat_templates/tool_use.jinja, or those of tokenizer_config.json. The text is empty
/// if the folder has none. The variables are the special tokens. Throws FileError.
ZG_API ChatTemplate folder_chat_template(const std::string& folder);

struct RenderedChat {
  struct Span {
    size_t begin, end;  ///< bytes of the text
    int64_t message;    ///< index of the message; -1: the template itself marks its answers

    bool operator==(const Span&) const = default;
  };
  std::string text;
  /// The messages of the role assistant, each with the text that the template writes after it. The
  /// span is empty if the template writes the message differently when other messages follow.
  std::vector<Span> answers = {};
};

/// Renders chats as transformers 5 does: by jinja2, a package of Python, which refuses attributes
/// that begin with _ and changes of values. It runs in a child process, which gets only PATH and
/// HOME of the environment and cannot open files. The limits are 512 MiB of memory, 2^22 characters
/// for a text, and for a chat `seconds` of processor time plus 20 ms a message. The child process
/// ends with this object. If this process ends first, the child ends after the current chat.
///
/// A template that has {% generation %} marks the answers. For other templates the span of message
/// i is found by two more texts: the prompt, of messages 0 to i - 1 with add_generation_prompt, and
/// the answered text, of messages 0 to i. If each is the begin of the next longer text, the span is
/// from the end of the prompt to the end of the answered text. If not, the content of message i is
/// replaced, and the span is the part of the whole text that changes, with the text that follows
/// that part in the answered text. If this part is different in the two texts, such as without its
/// thoughts, the span is empty.
class ZG_API ChatRenderer {
 public:
  enum class Text : uint8_t {
    chat,   ///< all messages, with their answers
    prompt  ///< all messages, and what begins an answer (add_generation_prompt)
  };
  /// Throws Unsupported without python3 or jinja2, FileError for a template that is not Jinja.
  ChatRenderer(ChatTemplate chat_template, Text text, int64_t seconds = 3);
  ~ChatRenderer();
  ChatRenderer(const ChatRenderer&) = delete;
  ChatRenderer& operator=(const ChatRenderer&) = delete;

  /// `row` is a JSON object. The template gets its "messages", "tools", "documents" and
  /// "chat_template_kwargs" as transformers passes them on. Throws FileError, with a message that
  /// begins with `place`, if the template refuses them or exceeds a limit.
  RenderedChat render(const std::string& row, const std::string& place);

 private:
  struct Child;
  const ChatTemplate template_;
  std::unique_ptr<Child> child_;
};

}  // namespace zg::models
