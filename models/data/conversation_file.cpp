#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/json_text.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/text.h"

namespace zg::models {
namespace {

using nlohmann::json;

constexpr const char* assistant = "assistant";

std::string names_of(const ChatFormat& format) {
  std::vector<std::string> names;
  for (const auto& [name, role] : format.roles) names.push_back(name);
  return join(names, ", ");
}

/// Members that are not used, with the number of objects that have them.
using Unused = std::map<std::string, int64_t>;

/// Counts the members that are not in `used`. One that a text would have to show is refused.
void check_members(const JsonNode& object, const std::set<std::string>& used,
                   const std::set<std::string>& refused, const std::string& prefix,
                   Unused& unused) {
  for (const auto& [key, value] : object.value.items()) {
    if (used.contains(key) || value.is_null() || value == "" || value == json::array()) continue;
    if (refused.contains(key))
      object.at(key).fail(
          "no such member, which a chat format with a prefix and a suffix for each role cannot "
          "show");
    ++unused[prefix + key];
  }
}

bool is_learned(const JsonNode& message, bool by_role) {
  bool learned = by_role;
  for (const char* key : {"weight", "train", "training"}) {
    const JsonNode node = message.at(key);
    if (node.value.is_null()) continue;
    if (!node.value.is_boolean() && node.value != 0 && node.value != 1)
      node.fail("0, 1, true or false");
    learned = node.value != 0 && node.value != false;
  }
  return learned;
}

void append(RenderedConversation& rendered, const std::string& text, bool learned,
            const std::string& separator) {
  if (text.empty()) return;
  const bool was_learned =
      !rendered.learned.empty() && rendered.learned.back().end == rendered.text.size();
  if (!rendered.text.empty() && learned != was_learned) rendered.text += separator;
  if (learned)
    rendered.learned.push_back({rendered.text.size(), rendered.text.size() + text.size()});
  rendered.text += text;
}

RenderedConversation prompt_and_response(const JsonNode& line,
                                         const ConversationFileOptions& options,
                                         const std::string& place) {
  const bool has_response = line.value.contains("response");
  if (has_response && line.value.contains("completion"))
    throw FileError(place + ": expected one of response and completion, got both");
  if (!has_response && !line.value.contains("completion"))
    throw FileError(place + ": prompt: expected response or completion beside it, got neither");
  std::string response = line.at(has_response ? "response" : "completion").text();
  if (!response.ends_with(options.end_text)) response += options.end_text;
  RenderedConversation rendered{.is_document = true};
  append(rendered, line.at("prompt").text(), false, options.separator);
  append(rendered, response, true, options.separator);
  return rendered;
}

RenderedConversation chat(const JsonNode& line, const ConversationFileOptions& options,
                          const std::string& place, Unused& unused) {
  if (!options.chat)
    throw Unsupported(place +
                      ": messages: there is no chat format that says how roles become text");
  const ChatFormat& format = *options.chat;
  RenderedConversation rendered;
  append(rendered, format.first, false, options.separator);
  bool answers = false;
  for (const JsonNode& message : line.at("messages").members()) {
    const JsonNode name = message.at("role"), content = message.at("content");
    const auto role = format.roles.find(name.text());
    if (role == format.roles.end()) name.fail("a role of the chat format: " + names_of(format));
    check_members(
        message, {"role", "content", "weight", "train", "training"},
        {"tool_calls", "function_call", "tool_call_id", "reasoning_content", "reasoning",
         "thinking", "thoughts", "name", "audio", "images", "training_detail", "train_detail"},
        "messages[].", unused);
    const auto& [prefix, suffix] = role->second;
    append(rendered, prefix, false, options.separator);
    append(rendered, content.text() + suffix, is_learned(message, role->first == assistant),
           options.separator);
    answers = answers || role->first == assistant;
  }
  if (!answers)
    throw FileError(place + ": messages: expected one or more of the role assistant, got none");
  return rendered;
}

RenderedConversation rendered(const JsonNode& line, const ConversationFileOptions& options,
                              const std::string& place, Unused& unused) {
  const json& object = line.value;
  const bool is_chat = object.contains("messages"), has_prompt = object.contains("prompt");
  if (is_chat == has_prompt)
    throw FileError(fmt::format(
        "{}: expected {{\"prompt\": \"Hi\", \"response\": \"Hello\"}} or {{\"messages\": "
        "[{{\"role\": \"user\", \"content\": \"Hi\"}}, ...]}}, got {}",
        place, is_chat ? "both in one object" : brief(object)));
  check_members(
      line, {"messages", "prompt", "response", "completion"},
      {"tools", "functions", "documents", "chat_template_kwargs", "weight", "train", "training"},
      "", unused);
  return is_chat ? chat(line, options, place, unused) : prompt_and_response(line, options, place);
}

std::string note_of(const Unused& unused, const std::string& path) {
  std::vector<std::string> members;
  for (const auto& [key, count] : unused)
    members.push_back(fmt::format("{} ({})", printable(key), count));
  return members.empty() ? "" : fmt::format("{}: without effect: {}", path, join(members, ", "));
}

}  // namespace

ChatFormat chat_format(const std::string& text, const std::string& path) {
  const json object = parse_json_object(text, path);
  const JsonNode root{object, path + ": "};
  ChatFormat format;
  for (const auto& [key, value] : object.items()) {
    const JsonNode node = root.at(key);
    if (key == "first") {
      format.first = node.text();
      continue;
    }
    if (!value.is_array() || value.size() != 2)
      node.fail(
          "the text before and after a message, such as [\"<|im_start|>user\\n\", "
          "\"<|im_end|>\\n\"]");
    const std::vector<JsonNode> texts = node.members();
    format.roles[key] = {texts[0].text(), texts[1].text()};
  }
  if (!format.roles.count(assistant))
    throw FileError(
        fmt::format("{}: expected the role assistant, whose messages are learned, got {}", path,
                    format.roles.empty() ? "no roles" : "the roles " + names_of(format)));
  return format;
}

std::string chat_format_json(const ChatFormat& format) {
  nlohmann::ordered_json object;
  if (!format.first.empty()) object["first"] = format.first;
  for (const auto& [name, role] : format.roles) object[name] = {role.prefix, role.suffix};
  return object.dump();
}

Conversation conversation_of(const RenderedConversation& rendered,
                             const ConversationFileOptions& options, const std::string& place) {
  EncodedText encoded;
  try {
    if (!rendered.text.empty()) encoded = options.encode(rendered.text);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", place, error.what()));
  }
  Conversation conversation;
  if (rendered.is_document) conversation.tokens = options.first;
  conversation.is_target.resize(conversation.tokens.size());
  auto learned = rendered.learned.begin();
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    const auto [begin, end] = encoded.spans[i];
    while (learned != rendered.learned.end() && begin >= learned->end) ++learned;
    conversation.tokens.push_back(encoded.ids[i]);
    conversation.is_target.push_back(learned != rendered.learned.end() && end > learned->begin);
  }
  if (rendered.is_document && options.end &&
      (encoded.ids.empty() || encoded.ids.back() != *options.end)) {
    conversation.tokens.push_back(*options.end);
    conversation.is_target.push_back(true);
  }
  // No token before the first one could predict it.
  if (!conversation.tokens.empty()) conversation.is_target.front() = false;
  if (std::ranges::count(conversation.is_target, true) == 0)
    throw FileError(fmt::format(
        "{}: there is nothing to predict; expected a response of two tokens or more, or a prompt "
        "before it",
        place));
  return conversation;
}

std::vector<Conversation> read_conversations(const std::string& path,
                                             const ConversationFileOptions& options,
                                             std::string* note) {
  std::vector<Conversation> conversations;
  Unused unused;
  for_each_json_line(path, [&](const JsonNode& line, const std::string& place) {
    conversations.push_back(
        conversation_of(rendered(line, options, place, unused), options, place));
  });
  if (note) *note = note_of(unused, path);
  if (conversations.empty())
    throw ConfigError(path +
                      ": no conversations; expected a line such as {\"prompt\": \"Hi\", "
                      "\"response\": \"Hello\"}");
  return conversations;
}

}  // namespace zg::models
