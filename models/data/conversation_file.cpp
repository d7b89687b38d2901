#include <algorithm>
#include <nlohmann/json.hpp>
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

/// Builds one conversation from texts, and remembers which of them are targets.
class Builder {
 public:
  Builder(const ConversationFileOptions& options, std::string place)
      : options_(options), place_(std::move(place)) {}

  void add_token(int32_t token, bool is_target) {
    conversation_.tokens.push_back(token);
    conversation_.is_target.push_back(is_target);
  }
  /// Returns the number of tokens.
  size_t add(const std::string& text, bool is_target) {
    if (text.empty()) return 0;
    std::vector<int32_t> tokens;
    try {
      tokens = options_.encode(text);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", place_, error.what()));
    }
    for (const int32_t token : tokens) add_token(token, is_target);
    return tokens.size();
  }
  Conversation finish() {
    // A response at the very beginning has no token before it that could predict its first one.
    if (!conversation_.tokens.empty()) conversation_.is_target.front() = false;
    if (std::count(conversation_.is_target.begin(), conversation_.is_target.end(), true) == 0)
      throw FileError(fmt::format(
          "{}: there is nothing to predict; expected a response of two tokens or more, or a prompt "
          "before it",
          place_));
    return std::move(conversation_);
  }

 private:
  const ConversationFileOptions& options_;
  const std::string place_;
  Conversation conversation_;
};

[[noreturn]] void refuse_empty(const std::string& name) {
  throw FileError(fmt::format("{}: it has no tokens; expected a response of one or more", name));
}

Conversation prompt_and_response(const JsonNode& line, const ConversationFileOptions& options,
                                 const std::string& place) {
  const bool has_response = line.value.contains("response");
  if (has_response && line.value.contains("completion"))
    throw FileError(place + ": expected one of response and completion, got both");
  if (!has_response && !line.value.contains("completion"))
    throw FileError(place + ": prompt: expected response or completion beside it, got neither");
  const JsonNode response = line.at(has_response ? "response" : "completion");
  Builder builder(options, place);
  for (const int32_t token : options.first) builder.add_token(token, false);
  builder.add(line.at("prompt").text(), false);
  if (builder.add(response.text(), true) == 0) refuse_empty(response.name);
  if (options.end) builder.add_token(*options.end, true);
  return builder.finish();
}

Conversation chat(const JsonNode& line, const ConversationFileOptions& options,
                  const std::string& place) {
  if (!options.chat)
    throw Unsupported(place +
                      ": messages: there is no chat format that says how roles become text");
  const ChatFormat& format = *options.chat;
  Builder builder(options, place);
  std::string before = format.first;  // text that is not encoded yet
  bool answers = false;
  for (const JsonNode& message : line.at("messages").members()) {
    const JsonNode name = message.at("role"), content = message.at("content");
    const auto role = format.roles.find(name.text());
    if (role == format.roles.end()) name.fail("a role of the chat format: " + names_of(format));
    const auto& [prefix, suffix] = role->second;
    before += prefix;
    if (role->first != assistant) {
      before += content.text() + suffix;
      continue;
    }
    builder.add(before, false);
    if (builder.add(content.text() + suffix, true) == 0) refuse_empty(content.name);
    before.clear();
    answers = true;
  }
  if (!answers)
    throw FileError(place + ": messages: expected one or more of the role assistant, got none");
  builder.add(before, false);
  return builder.finish();
}

Conversation conversation_of(const JsonNode& line, const ConversationFileOptions& options,
                             const std::string& place) {
  const json& object = line.value;
  const bool is_chat = object.contains("messages"), has_prompt = object.contains("prompt");
  if (is_chat == has_prompt)
    throw FileError(fmt::format(
        "{}: expected {{\"prompt\": \"Hi\", \"response\": \"Hello\"}} or {{\"messages\": "
        "[{{\"role\": \"user\", \"content\": \"Hi\"}}, ...]}}, got {}",
        place, is_chat ? "both in one object" : brief(object)));
  return is_chat ? chat(line, options, place) : prompt_and_response(line, options, place);
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

std::vector<Conversation> read_conversations(const std::string& path,
                                             const ConversationFileOptions& options) {
  std::vector<Conversation> conversations;
  for_each_json_line(path, [&](const JsonNode& line, const std::string& place) {
    conversations.push_back(conversation_of(line, options, place));
  });
  if (conversations.empty())
    throw ConfigError(path +
                      ": no conversations; expected a line such as {\"prompt\": \"Hi\", "
                      "\"response\": \"Hello\"}");
  return conversations;
}

}  // namespace zg::models
