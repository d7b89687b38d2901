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
  /// "chat_template_kwargs" in a row of data come first.
  std::string variables = "{}";
  std::string date = {};  ///< that strftime_now() formats: "2024-07-26" or "2024-07-26T18:30:00"

  bool operator==(const ChatTemplate&) const = default;
};

/// The template of a folder, as AutoTokenizer of transformers finds it: chat_template.jinja, and
/// additional_chat_templates/tool_use.jinja; else those of tokenizer_config.json. Without one its
/// text is empty. Its variables are the special tokens. Throws FileError.
ZG_API ChatTemplate folder_chat_template(const std::string& folder);

struct RenderedChat {
  struct Span {
    size_t begin, end;  ///< bytes of the text
    int64_t message;    ///< index of the message; -1: the template itself marks its answers

    bool operator==(const Span&) const = default;
  };
  std::string text;
  /// The messages of the role assistant, each with what the template writes behind it. Empty spans
  /// are those of messages that the template writes in another way once others follow.
  std::vector<Span> answers = {};
};

/// Renders chats as transformers 5 does: by jinja2, a package of Python, which refuses attributes
/// that begin with _ and changes of values. It runs in a child process, which has no environment,
/// opens no files, and has 512 MiB of memory, for each text 2^22 characters, and for each chat some
/// seconds of processor time and 20 ms a message. That ends with this object or, after the chat
/// that it renders, with this process.
///
/// A template that has {% generation %} marks the answers. Otherwise message i begins where the
/// text of the messages before it ends, with add_generation_prompt, and ends where the text of
/// messages 0 to i ends. Where the whole text does not begin with both, the message is what changes
/// in the whole text with the content of message i, with what follows it there as in the text of
/// messages 0 to i. If the message itself is another there, such as without its thoughts, its span
/// is empty.
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
  /// begins with `place`, where the template refuses them or comes to a limit.
  RenderedChat render(const std::string& row, const std::string& place);

 private:
  struct Child;
  const ChatTemplate template_;
  std::unique_ptr<Child> child_;
};

}  // namespace zg::models
