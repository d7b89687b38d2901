#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "zerograd/models/data/conversation_data.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::models {
namespace {

using nlohmann::json;

constexpr const char* assistant = "assistant";
const std::set<std::string> message_members = {"role", "content", "weight", "train", "training"};

std::string names_of(const ChatFormat& format) {
  std::vector<std::string> names;
  for (const auto& [name, role] : format.roles) names.push_back(printable(name));
  return join(names, ", ");
}

/// Members that are not used, with the number of objects that have them.
using Unused = std::map<std::string, int64_t>;

struct FileState {
  Unused unused = {};
  int64_t changed = 0;  // answers that the template changes because others follow
  std::unique_ptr<ChatRenderer> renderer = {};  // made for the first chat
};

/// True if a template names a member. transformers passes thoughts by several names.
bool is_read(const std::string& jinja, const std::string& key) {
  const auto has = [&](const std::string& name) { return jinja.find(name) != std::string::npos; };
  return has(key) || (key.starts_with("reasoning") && has("thinking"));
}

/// Counts the members that have no effect: neither in `used` nor named by the template. Throws
/// FileError for such a member of `refused`.
void check_members(const JsonNode& object, const std::set<std::string>& used,
                   const std::set<std::string>& refused, const std::string& jinja,
                   const std::string& prefix, Unused& unused) {
  for (const auto& [key, value] : object.value.items()) {
    const bool is_empty = value.is_null() || value == "" || value == json::array();
    if (is_empty || used.contains(key) || is_read(jinja, key)) continue;
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

RenderedConversation jinja_chat(const JsonNode& line, const ChatTemplate& jinja,
                                const std::string& place, FileState& state) {
  const std::string source = jinja.text + jinja.tool_text;
  check_members(line, {"messages", "chat_template_kwargs"}, {"weight", "train", "training"}, source,
                "", state.unused);
  const std::vector<JsonNode> messages = line.at("messages").members();
  std::vector<size_t> by_assistant;
  std::vector<bool> learned;
  bool by_role = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool answers = messages[i].at("role").text() == assistant;
    if (answers) by_assistant.push_back(i);
    learned.push_back(is_learned(messages[i], answers));
    by_role = by_role && learned.back() == answers;
    check_members(messages[i], message_members, {}, source, "messages[].", state.unused);
  }
  if (std::ranges::count(learned, true) == 0)
    throw FileError(place + ": messages: expected one or more that are learned, got none");
  if (!state.renderer)
    state.renderer = std::make_unique<ChatRenderer>(jinja, ChatRenderer::Text::chat);
  RenderedChat chat = state.renderer->render(line.source, place);
  RenderedConversation rendered{.text = std::move(chat.text)};
  const bool in_order = chat.answers.size() == by_assistant.size();
  for (size_t i = 0; i < chat.answers.size(); ++i) {
    const auto& [begin, end, message] = chat.answers[i];
    if (message < 0 && !by_role && !in_order)
      raise<FileError>(
          "{}: messages: weight, train and training have no effect: the template marks {} answers "
          "for {} messages of the assistant",
          place, chat.answers.size(), by_assistant.size());
    const bool is_learned =
        message >= 0 ? learned[static_cast<size_t>(message)] : by_role || learned[by_assistant[i]];
    if (is_learned && begin < end)
      rendered.learned.push_back({begin, end});
    else if (is_learned)
      ++state.changed;
  }
  return rendered;
}

RenderedConversation chat(const JsonNode& line, const ConversationFileOptions& options,
                          const std::string& place, FileState& state) {
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
        message, message_members,
        {"tool_calls", "function_call", "tool_call_id", "reasoning_content", "reasoning",
         "thinking", "thoughts", "name", "audio", "images", "training_detail", "train_detail"},
        "", "messages[].", state.unused);
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
                              const std::string& place, FileState& state) {
  const json& object = line.value;
  const bool is_chat = object.contains("messages"), has_prompt = object.contains("prompt");
  if (is_chat == has_prompt)
    raise<FileError>(
        "{}: expected {{\"prompt\": \"Hi\", \"response\": \"Hello\"}} or {{\"messages\": "
        "[{{\"role\": \"user\", \"content\": \"Hi\"}}, ...]}}, got {}",
        place, is_chat ? "both in one object" : brief(object));
  if (is_chat && options.chat && options.chat->jinja)
    return jinja_chat(line, *options.chat->jinja, place, state);
  check_members(
      line, {"messages", "prompt", "response", "completion"},
      {"tools", "functions", "documents", "chat_template_kwargs", "weight", "train", "training"},
      "", "", state.unused);
  return is_chat ? chat(line, options, place, state) : prompt_and_response(line, options, place);
}

std::string note_of(const FileState& state, const std::string& path) {
  std::vector<std::string> members;
  for (const auto& [key, count] : state.unused)
    members.push_back(fmt::format("{} ({})", printable(key), count));
  std::vector<std::string> notes;
  if (!members.empty()) notes.push_back("without effect: " + join(members, ", "));
  if (state.changed > 0)
    notes.push_back(fmt::format(
        "{} answers are not learned, because the chat template changes them once others follow",
        state.changed));
  return notes.empty() ? "" : path + ": " + join(notes, "; ");
}

}  // namespace

ChatFormat chat_format(const std::string& text, const std::string& path) {
  const json object = parse_json_object(text, path);
  const JsonNode root{object, path + ": "};
  ChatFormat format;
  if (object.contains("template")) {
    ChatTemplate& jinja = format.jinja.emplace();
    for (const auto& [key, value] : object.items()) {
      const JsonNode node = root.at(key);
      if (key == "template")
        jinja.text = node.text();
      else if (key == "tool_template")
        jinja.tool_text = node.text();
      else if (key == "date")
        jinja.date = node.text();
      else if (key == "variables" && value.is_object())
        jinja.variables = value.dump();
      else
        node.fail("only template, tool_template, date and variables, an object");
    }
    return format;
  }
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
    raise<FileError>("{}: expected the role assistant, whose messages are learned, got {}", path,
                     format.roles.empty() ? "no roles" : "the roles " + names_of(format));
  return format;
}

std::string chat_format_json(const ChatFormat& format) {
  nlohmann::ordered_json object;
  if (const auto& jinja = format.jinja) {
    object = {{"template", jinja->text},
              {"variables", parse_json_object(jinja->variables, "variables")}};
    if (!jinja->tool_text.empty()) object["tool_template"] = jinja->tool_text;
    if (!jinja->date.empty()) object["date"] = jinja->date;
  }
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
    raise<ConfigError>("{}: {}", place, error.what());
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
    raise<FileError>(
        "{}: there is nothing to predict; expected a response of two tokens or more, or a prompt "
        "before it",
        place);
  return conversation;
}

std::vector<Conversation> read_conversations(const std::string& path,
                                             const ConversationFileOptions& options,
                                             std::string* note) {
  std::vector<Conversation> conversations;
  FileState state;
  for_each_json_line(path, [&](const JsonNode& line, const std::string& place) {
    conversations.push_back(conversation_of(rendered(line, options, place, state), options, place));
  });
  if (note) *note = note_of(state, path);
  if (conversations.empty())
    throw ConfigError(path +
                      ": no conversations; expected a line such as {\"prompt\": \"Hi\", "
                      "\"response\": \"Hello\"}");
  return conversations;
}

}  // namespace zg::models
