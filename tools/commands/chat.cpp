#include "tools/commands/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

/// Converts messages to the text that an answer continues.
class ChatText {
 public:
  explicit ChatText(const models::ChatFormat& format) : format_(format) {
    if (format.jinja)
      renderer_ =
          std::make_unique<models::ChatRenderer>(*format.jinja, models::ChatRenderer::Text::prompt);
    for (const char* role : {"user", "assistant"})
      if (!format.jinja && !format.roles.contains(role))
        raise<ConfigError>("--chat-format: expected the role {} to talk, got none", role);
  }
  std::string prompt(const nlohmann::ordered_json& messages) {
    if (renderer_)
      return renderer_
          ->render(nlohmann::ordered_json{{"messages", messages}}.dump(
                       -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                   "chat")
          .text;
    std::string text = format_.first;
    for (const auto& message : messages) {
      const auto& [prefix, suffix] = format_.roles.at(message["role"]);
      text += prefix + message["content"].get<std::string>() + suffix;
    }
    return text + format_.roles.at("assistant").prefix;
  }

 private:
  const models::ChatFormat& format_;
  std::unique_ptr<models::ChatRenderer> renderer_;
};

nlohmann::ordered_json message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

/// The special token behind an answer, if there is one.
std::optional<int32_t> token_behind_answers(ChatText& chat, const models::Tokenizer& tokenizer) {
  const std::string mark = "\uE000";  // a private-use character, which no template contains
  std::string text;
  try {
    text = chat.prompt({message("user", "x"), message("assistant", mark)});
  } catch (const FileError&) {  // the template refuses such a chat
  }
  const size_t at = text.find(mark);
  if (at == std::string::npos) return std::nullopt;
  const std::vector<int32_t> ids = tokenizer.encode(text.substr(at + mark.size()));
  for (const models::AddedToken& token : tokenizer.parts().added)
    if (!ids.empty() && token.special && token.id == ids.front()) return token.id;
  return std::nullopt;
}

}  // namespace

void check_prompt(const char* flag, std::span<const int32_t> prompt, int64_t vocabulary) {
  for (const int32_t token : prompt)
    if (token < 0 || token >= vocabulary)
      raise<ConfigError>("{}: expected tokens below {}, got {}", flag, vocabulary, token);
}

void print_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string write_continuation(const TrainedModel& trained, const std::vector<int32_t>& prompt,
                               int64_t length, models::SamplingOptions sampling,
                               models::TextStream* words, InferenceMode mode) {
  // In a plan each token is 0. The first pass needs the most memory, so a budget ends after it.
  if (mode == InferenceMode::budget) sampling.ends = {0};
  const bool writes = words && mode == InferenceMode::run;
  std::string text;
  const auto print = [&](const std::string& part) {
    text += part;
    print_text(part);
  };
  models::generate(*trained.model.decoder, trained.make_tape(), {prompt}, length, sampling,
                   [&](int32_t token) {
                     if (writes && std::ranges::count(sampling.ends, token) == 0)
                       print(words->decode(token));
                   });
  if (!writes) return text;
  print(words->rest());
  print_text("\n");
  return text;
}

void talk(const TrainedModel& trained, const models::Tokenizer& tokenizer,
          const ChatOptions& options, InferenceMode mode) {
  const models::GPT& model = *trained.model.decoder;
  ChatText chat(options.format);
  std::vector<int32_t> ends = options.ends;
  if (const auto end = token_behind_answers(chat, tokenizer)) ends.push_back(*end);
  const bool is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  const int64_t context = models::longest_context(model.config());
  auto messages = nlohmann::ordered_json::array();
  uint64_t turn = 0;
  for (std::string line = options.prompt;; line.clear()) {
    if (mode != InferenceMode::run && line.empty()) line = "Hi";
    while (line.empty()) {
      if (is_terminal) std::fputs("> ", stdout);
      std::fflush(stdout);
      if (!std::getline(std::cin, line)) return;
    }
    messages.push_back(message("user", line));
    const std::vector<int32_t> ids = tokenizer.encode(chat.prompt(messages));
    check_prompt("--chat", ids, model.config().vocabulary);
    int64_t length = options.length;
    models::SamplingOptions sampling = options.sampling(ids, length);
    sampling.ends = ends;
    sampling.seed += turn++;  // other draws for each answer
    if (const auto all = std::ssize(ids) + length; all > context)
      print_line(stderr, "note: chat and answer may have {} tokens, and the model sees the last {}",
                 all, context);
    const auto words = models::text_stream(tokenizer);
    const std::string answer =
        write_continuation(trained, ids, length, sampling, words.get(), mode);
    if (mode != InferenceMode::run) return;
    messages.push_back(message("assistant", answer));
  }
}

}  // namespace zg::tools
