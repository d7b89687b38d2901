#include "zerograd/models/data/chat_template.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {

extern const char* const chat_program;  // render_chats.py

namespace {

using nlohmann::json;

constexpr int most_characters = 1 << 22;        // of a text
constexpr size_t most_bytes = size_t{1} << 26;  // of an answer; up to 12 a character
constexpr int64_t memory = int64_t{1} << 29;
constexpr int silence_ms = 600'000;  // a row may have many texts, and the machine may be slow

constexpr const char* package =
    "chat templates are rendered by python3 with jinja2; try apt-get install python3-jinja2, or "
    "--chat-format F.json with a prefix and a suffix for each role";

/// Throws FileError if `answer` has an error of the template, with its line.
void refuse_error(const json& answer, const std::string& place) {
  if (!answer.contains("error")) return;
  const std::string line =
      answer["line"].is_null() ? "" : fmt::format(", line {}", answer["line"].dump());
  raise<FileError>("{}{}: {}", place, line, printable(answer["error"], 1000));
}

}  // namespace

ChatTemplate folder_chat_template(const std::string& folder) {
  const std::string files[] = {folder + "/tokenizer_config.json",
                               folder + "/special_tokens_map.json"};
  const std::string separate = folder + "/chat_template.jinja",
                    with_tools = folder + "/additional_chat_templates/tool_use.jinja";
  json roots[2] = {json::object(), json::object()};
  for (const size_t i : {0, 1})
    if (is_regular_file(files[i])) roots[i] = parse_json_object(read_text(files[i]), files[i]);
  const JsonNode config{roots[0], files[0] + ": "}, node = config.at("chat_template");
  ChatTemplate result{.name = separate};
  if (is_regular_file(separate)) {
    result.text = read_text(separate);
    if (is_regular_file(with_tools)) result.tool_text = read_text(with_tools);
  } else if (!node.value.is_null()) {
    result.name = node.name;
    if (!node.value.is_array())
      result.text = node.text();
    else
      for (const JsonNode& named : node.members())
        if (const std::string& name = named.at("name").text();
            name == "default" || name == "tool_use")
          (name == "default" ? result.text : result.tool_text) = named.at("template").text();
  }
  // Older folders, without added_tokens_decoder, have special tokens in special_tokens_map.json.
  if (!config.at("added_tokens_decoder").value.is_null()) roots[1] = json::object();
  json variables = json::object();
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    for (const size_t i : {0, 1}) {
      const JsonNode token = JsonNode{roots[i], files[i] + ": "}.at(key);
      if (token.value.is_null()) continue;
      variables[key] = token.value.is_object() ? token.at("content").text() : token.text();
    }
  result.variables = variables.dump();
  return result;
}

/// The process of Python and the socket that is its stdin, stdout and stderr.
struct ChatRenderer::Child {
  pid_t process = -1;
  int socket = -1;
  int64_t seconds = 0;  // processor time for a chat, in addition to 20 ms a message

  Child() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      raise<Unsupported>("chat template: no socket: {}", std::strerror(errno));
    socket = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_adddup2(&actions, ends[1], stream);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    // The child gets only the variables that are needed to find Python.
    std::vector<std::string> environment;
    for (const char* name : {"PATH", "HOME"})
      if (const char* value = std::getenv(name))
        environment.push_back(fmt::format("{}={}", name, value));
    std::vector<char*> variables;
    for (std::string& variable : environment) variables.push_back(variable.data());
    variables.push_back(nullptr);
    std::string words[] = {"python3", "-I", "-X", "utf8", "-c", chat_program};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                         words[4].data(), words[5].data(), nullptr};
    int error = ENOENT;
    for (const char* python : {"python3", "/usr/bin/python3"})
      if (error != 0)
        error = posix_spawnp(&process, python, &actions, nullptr, arguments, variables.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) {
      close(socket);
      raise<Unsupported>("python3 cannot be started: {}; {}", std::strerror(error), package);
    }
  }

  ~Child() {
    end(SIGKILL);
    close(socket);
  }

  /// Sends a signal, or none if it is 0, and returns the status of waitpid().
  int end(int signal) {
    int status = 0;
    if (process < 0) return status;
    if (signal != 0) kill(process, signal);
    while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    process = -1;
    return status;
  }

  /// Sends a line and returns the answer. If there is none, the result has a member "error".
  json ask(std::string line) {
    std::ranges::replace(line, '\n', ' ');  // line breaks of JSON are only between values
    line += '\n';
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t count = send(socket, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno != EINTR) break;  // the child has ended, as recv() reports
      sent += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
    std::string said;
    const auto none = [&](const std::string& why) {
      return json{{"error", why}, {"line", nullptr}};
    };
    for (pollfd waiting{socket, POLLIN, 0};;) {
      const int ready = poll(&waiting, 1, silence_ms);
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0)
        return end(SIGKILL), none(fmt::format("no answer within {} s", silence_ms / 1000));
      char bytes[1 << 16];
      const ssize_t count = recv(socket, bytes, sizeof bytes, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return none(cause_of(end(0), said));
      said.append(bytes, static_cast<size_t>(count));
      if (said.size() > most_bytes) return end(SIGKILL), none("an answer without an end");
      if (!said.ends_with('\n')) continue;
      // Warnings of Python may come before.
      const size_t begin = said.rfind('\n', said.size() - 2) + 1;
      if (said[begin] == '{')
        return parse_json_object(std::string_view(said).substr(begin), "chat template: an answer");
    }
  }

  std::string cause_of(int status, const std::string& said) const {
    if (!WIFSIGNALED(status))
      return fmt::format("python3 ended with status {}: {}", WEXITSTATUS(status),
                         printable(said, 400));
    if (WTERMSIG(status) == SIGPROF)
      return fmt::format("it takes more than {} s of processor time, and 20 ms a message", seconds);
    return fmt::format("python3 was ended by a signal: {}", strsignal(WTERMSIG(status)));
  }
};

ChatRenderer::ChatRenderer(ChatTemplate chat_template, Text text, int64_t seconds)
    : template_(std::move(chat_template)), child_(std::make_unique<Child>()) {
  child_->seconds = seconds;
  for (const std::string& program : {template_.text, template_.tool_text})
    if (const size_t at = valid_utf8(program); at < program.size())
      raise<FileError>("{}: expected UTF-8, got another byte at offset {}", template_.name, at);
  const json task = {{"template", template_.text},
                     {"tool_template", template_.tool_text},
                     {"variables", parse_json_object(template_.variables, template_.name)},
                     {"date", template_.date},
                     {"prompts", text == Text::prompt},
                     {"seconds", seconds},
                     {"characters", most_characters},
                     {"bytes", memory}};
  const json answer = child_->ask(task.dump());
  if (answer.contains("missing"))
    raise<Unsupported>("python3 has no package {}; {}", answer["missing"].get<std::string>(),
                       package);
  refuse_error(answer, template_.name);
}

ChatRenderer::~ChatRenderer() = default;

RenderedChat ChatRenderer::render(const std::string& row, const std::string& place) {
  const json answer = child_->ask(row);
  refuse_error(answer, fmt::format("{}: {}", place, template_.name));
  RenderedChat chat{.text = answer["text"]};
  for (const json& span : answer["spans"]) chat.answers.push_back({span[0], span[1], span[2]});
  return chat;
}

}  // namespace zg::models
