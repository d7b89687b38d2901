#include "zerograd/models/data/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/error_message.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/conversation_data.h"

namespace zg::testing {
namespace {

using models::ChatRenderer;
using models::ChatTemplate;
using models::RenderedChat;
using nlohmann::ordered_json;

const std::string templates = std::string(ZG_FIXTURES) + "chat_templates/";
const std::string hello = R"({"messages": [{"role": "user", "content": "Hi"}]})";

ChatTemplate template_of(const std::string& text) {
  return {.text = text,
          .name = "t.jinja",
          .variables = R"({"bos_token": "<s>", "eos_token": "</s>"})",
          .date = "2024-07-26"};
}

std::string rendered(const std::string& text, const std::string& row = hello) {
  return ChatRenderer(template_of(text), ChatRenderer::Text::chat, 2).render(row, "d.jsonl:1").text;
}

std::string refusal(const std::string& text, const std::string& row = hello) {
  return message_of<FileError>([&] { rendered(text, row); });
}

/// The bytes of each answer as [begin, end]; of the messages in `changed`, [0, 0].
ordered_json answers_of(const RenderedChat& chat) {
  ordered_json answers = ordered_json::array();
  for (const RenderedChat::Span& span : chat.answers) answers.push_back({span.begin, span.end});
  return answers;
}

}  // namespace

// tests/reference/make_chat_fixtures.py makes the expected texts and answers with transformers.
TEST_CASE("chat templates render as transformers renders them, and answers are what they mark") {
  const ordered_json expected = ordered_json::parse(read_file(templates + "expected.json"));
  REQUIRE(expected.size() == 6);
  for (const auto& [name, cases] : expected.items()) {
    const std::string marked = read_file(templates + name + ".jinja");
    const std::string plain =
        std::regex_replace(marked, std::regex(R"(\{%-? (end)?generation -?%\}\n?)"), "");
    REQUIRE(plain.size() < marked.size());
    ChatRenderer with_marks(template_of(marked), ChatRenderer::Text::chat);
    ChatRenderer without(template_of(plain), ChatRenderer::Text::chat);
    ChatRenderer prompts(template_of(plain), ChatRenderer::Text::prompt);
    for (const auto& [number, one] : cases.items()) {
      INFO("name ", name, ", number ", number);
      const std::string row = one["row"].dump(), text = one["text"], prompt = one["prompt"];
      const RenderedChat chat = with_marks.render(row, "row");
      CHECK(chat.text == text);
      CHECK(answers_of(chat) == one["answers"]);
      CHECK(prompts.render(row, "row").text == prompt);
      const RenderedChat spans = without.render(row, "row");
      CHECK(spans.text == text);
      // Each answer names its message, and those whose thoughts are left out have none.
      ordered_json answers = one["answers"];
      size_t answer = 0;
      const ordered_json& messages = one["row"]["messages"];
      for (size_t i = 0; i < messages.size(); ++i) {
        if (messages[i]["role"] != "assistant") continue;
        REQUIRE(answer < spans.answers.size());
        CHECK(spans.answers[answer].message == static_cast<int64_t>(i));
        if (std::ranges::count(one["changed"], ordered_json(i)) > 0) answers[answer] = {0, 0};
        ++answer;
      }
      CHECK(answers_of(spans) == answers);
    }
  }
}

TEST_CASE("chat templates have the functions of transformers") {
  CHECK(rendered("{{ {'b': 'é<', 'a': 1.0} | tojson }} {{ [1] | tojson(indent=1) }}") ==
        "{\"b\": \"é<\", \"a\": 1.0} [\n 1\n]");
  CHECK(rendered("{{ strftime_now('%d %b %Y, %H:%M') }}") == "26 Jul 2024, 00:00");
  CHECK(rendered("{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.role }}"
                 "{% endfor %}",
                 R"({"messages": [{"role": "a"}, {"role": "b"}]})") == "a");
  CHECK(rendered("{% if true %}\n  x\n  {% endif %}\n{{ bos_token }}") == "  x\n<s>");
  // Members that are null are absent, thoughts have three names, numbers keep their kind.
  CHECK(rendered("{% for m in messages %}{{ m | tojson }}{% endfor %}",
                 R"({"messages": [{"role": "a", "content": null, "n": [1, 1.0, 1e300]}]})") ==
        R"({"role": "a", "n": [1, 1.0, 1e+300]})");
  CHECK(rendered("{{ messages[0].thinking + messages[0].reasoning_content }}",
                 R"({"messages": [{"reasoning": "x"}]})") == "xx");
  CHECK(rendered("{{ tools[0].name }}{{ documents }}{{ level }}{{ eos_token }}",
                 R"({"messages": [], "tools": "[{\"name\": \"f\"}]", "documents": [],
                     "chat_template_kwargs": {"level": 3, "eos_token": "!"}})") == "f[]3!");
}

TEST_CASE("a chat template that refuses a chat is named with its line and the place of the data") {
  CHECK(refusal("a\n{{ raise_exception('turns must\\nalternate') }}") ==
        "d.jsonl:1: t.jinja, line 2: turns must\\x0aalternate");
  CHECK(refusal("{{ messages[0].content.foo.bar }}") ==
        "d.jsonl:1: t.jinja, line 1: UndefinedError: 'str object' has no attribute 'foo'");
  CHECK(refusal("\n{% if %}") ==
        "t.jinja, line 2: TemplateSyntaxError: Expected an expression, got 'end of statement "
        "block'");
  CHECK(refusal("{{ ''.__class__.__mro__ }}").find("unsafe") != std::string::npos);
  CHECK(refusal("{% set n = namespace() %}{% set n._a = 1 %}").find("SecurityError") !=
        std::string::npos);
  CHECK(refusal("a \xff") == "t.jinja: expected UTF-8, got another byte at offset 2");
  CHECK(refusal("{% include 'x' %}").find("no loader") != std::string::npos);
  CHECK(refusal("{{ '\\ud800' }}").find("UnicodeEncodeError") != std::string::npos);
  // The next row is rendered all the same.
  ChatRenderer renderer(template_of("{{ messages[0].content + 'x' }}"), ChatRenderer::Text::chat);
  CHECK_THROWS_AS(renderer.render(R"({"messages": []})", "p"), FileError);
  CHECK(renderer.render(hello, "p").text == "Hix");
}

TEST_CASE("chat templates without an end come to limits of time, memory and text") {
  CHECK(refusal("{% for i in range(99999) %}{% for j in range(99999) %}{% set k = j %}{% endfor %}"
                "{% endfor %}") ==
        "d.jsonl:1: t.jinja: it takes more than 2 s of processor time, and 20 ms a message");
  // Each text is within the limit, but not all texts of a chat.
  std::string row = R"({"messages": [)";
  for (int i = 0; i < 20; ++i) row += R"({"role": "user"}, {"role": "assistant"}, )";
  CHECK(contains(refusal("{% for i in range(30) %}{% for j in range(99999) %}{% endfor %}"
                         "{% endfor %}{{ messages | length }}",
                         row + R"({"role": "user"}]})"),
                 "it takes more than 2 s of processor time"));
  CHECK(refusal("{{ 'x' * 10**10 }}") ==
        "d.jsonl:1: t.jinja: it needs more than 512 MiB of memory");
  CHECK(refusal("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}") ==
        "d.jsonl:1: t.jinja: OverflowError: the text has more than 4194304 characters");
  CHECK(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("RecursionError") !=
        std::string::npos);
}

TEST_CASE("conversations of a chat template learn its answers, by weights, and note the rest") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  // Thoughts are shown in the last message alone.
  const std::string text =
      "{{ eos_token }}{% for m in messages %}{{ m.role[0] }}:"
      "{% if loop.last and m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}";
  std::string note;
  const auto read = [&](const std::string& row, const std::string& jinja) {
    write_file(path, row + "\n");
    const models::ChatFormat format{.first = "", .roles = {}, .jinja = template_of(jinja)};
    // The format as a checkpoint stores it.
    const models::ConversationFileOptions options{
        .encode =
            [](const std::string& all) {
              models::EncodedText encoded;
              for (size_t i = 0; i < all.size(); ++i) {
                encoded.ids.push_back(all[i]);
                encoded.spans.push_back({i, i + 1});
              }
              return encoded;
            },
        .end = '$',
        .chat = models::chat_format(models::chat_format_json(format), "f")};
    const models::Conversation chat = models::read_conversations(path, options, &note).at(0);
    std::string shown;
    for (size_t i = 0; i < chat.tokens.size(); ++i) {
      const bool before = i > 0 && chat.is_target[i - 1];
      if (before != chat.is_target[i]) shown += before ? ']' : '[';
      shown += static_cast<char>(chat.tokens[i]);
    }
    return shown + (chat.is_target.back() ? "]" : "");
  };
  const auto chat = [](const std::string& user, const std::string& first, const std::string& second,
                       const std::string& row = "") {
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"" + user +
           "}, {\"role\": \"assistant\", \"content\": \"b\"" + first +
           "}, {\"role\": \"user\", \"content\": \"v\"}, {\"role\": \"assistant\", "
           "\"content\": \"c\"" +
           second + "}]" + row + "}";
  };
  CHECK(read(chat("", "", ""), text) == "</s>u:u;a:[b;]u:v;a:[c;]");
  CHECK(note == "");
  CHECK(read(chat("", "", ", \"reasoning\": \"x\""), text) == "</s>u:u;a:[b;]u:v;a:[(x)c;]");
  CHECK(note == "");
  CHECK(read(chat("", ", \"reasoning\": \"x\"", ""), text) == "</s>u:u;a:b;u:v;a:[c;]");
  CHECK(note == path +
                    ": 1 answers are not learned, because the chat template changes them once "
                    "others follow");
  CHECK(read(chat("", ", \"weight\": 0", ""), text) == "</s>u:u;a:b;u:v;a:[c;]");
  CHECK(read(chat(", \"train\": true", "", ""), text) == "</s>u:[u;]a:[b;]u:v;a:[c;]");
  CHECK(read(chat(", \"name\": \"n\"", "", "", ", \"tools\": [1], \"id\": 3"), text) ==
        "</s>u:u;a:[b;]u:v;a:[c;]");
  CHECK(note == path + ": without effect: id (1), messages[].name (1), tools (1)");
  const std::string marks =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content + m.name | string }}{% endif %}{% endfor %}";
  CHECK(read(chat("", "", ""), marks) == "u[b]v[c]");
  CHECK(read(chat("", ", \"weight\": 0", ""), marks) == "ubv[c]");
  const auto refused = [&](const std::string& row, const std::string& jinja) {
    return message_of<FileError>([&] { read(row, jinja); });
  };
  CHECK(refused(chat("", ", \"weight\": 0", ""), "{% generation %}x{% endgeneration %}") ==
        path +
            ":1: messages: weight, train and training have no effect: the template marks 1 "
            "answers for 2 messages of the assistant");
  CHECK(refused(chat("", "", ""), "{{ raise_exception('no') }}") ==
        path + ":1: chat template, line 1: no");
  CHECK(contains(refused(chat("", "", "", ", \"weight\": 1"), text), ":1: weight: expected no"));
  CHECK(refused(R"({"messages": [{"role": "user", "content": "x"}]})", text) ==
        path + ":1: messages: expected one or more that are learned, got none");
  CHECK(
      message_of<FileError>([] { models::chat_format(R"({"template": "", "user": []})", "f"); }) ==
      "f: user: expected only template, tool_template, date and variables, an object, got []");
}

TEST_CASE("a folder's chat template is the one that transformers takes") {
  const TemporaryFolder folder;
  CHECK(models::folder_chat_template(folder.path()).text.empty());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "</s>", "bos_token": null})");
  write_file(folder / "special_tokens_map.json",
             R"({"eos_token": {"content": "<|end|>", "lstrip": false}, "pad_token": "<p>"})");
  CHECK(models::folder_chat_template(folder.path()).text.empty());
  write_file(folder / "tokenizer_config.json",
             R"({"eos_token": "</s>", "bos_token": null, "chat_template": "a"})");
  auto found = models::folder_chat_template(folder.path());
  CHECK(found.text == "a");
  CHECK(found.variables == R"({"eos_token":"<|end|>","pad_token":"<p>"})");
  write_file(folder / "tokenizer_config.json",
             R"({"eos_token": "</s>", "added_tokens_decoder": {}, "chat_template":
                 [{"name": "default", "template": "b"}, {"name": "rag", "template": "-"},
                  {"name": "tool_use", "template": "c{{ tools[0] }}"}]})");
  found = models::folder_chat_template(folder.path());
  CHECK(found.variables == R"({"eos_token":"</s>"})");
  ChatRenderer renderer(found, ChatRenderer::Text::chat);
  CHECK(renderer.render(hello, "p").text == "b");
  CHECK(renderer.render(R"({"messages": [], "tools": [7]})", "p").text == "c7");
  write_file(folder / "chat_template.jinja", "d");
  CHECK(models::folder_chat_template(folder.path()).text == "d");
  CHECK(models::folder_chat_template(folder.path()).tool_text.empty());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": 3})");
  CHECK_THROWS_AS(models::folder_chat_template(folder.path()), FileError);
}

TEST_CASE("what renders chat templates is named where it is missing or fails") {
  const TemporaryFolder folder;
  const auto with_python = [&](const std::string& script) {
    write_file(folder / "python3", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(folder / "python3", std::filesystem::perms::owner_all);
    const ScopedVariable path("PATH", folder.path().c_str());
    try {
      return rendered("a");
    } catch (const Error& error) {
      return error.type() + std::string(": ") + error.what();
    }
  };
  CHECK(with_python("read x; echo '{\"missing\": \"jinja2\"}'") ==
        "Unsupported: python3 has no package jinja2; chat templates are rendered by python3 with "
        "jinja2; try apt-get install python3-jinja2, or --chat-format F.json with a prefix and a "
        "suffix for each role");
  CHECK(with_python("echo no such module >&2; exit 7") ==
        "FileError: t.jinja: python3 ended with status 7: no such module\\x0a");
  CHECK(with_python("kill -SEGV $$") ==
        "FileError: t.jinja: python3 was ended by a signal: Segmentation fault");
  // Warnings are no answers.
  CHECK(with_python(
            "read x; echo warning; echo '{}'; read x; echo '{\"text\": \"b\", \"spans\": []}'") ==
        "b");
}

}  // namespace zg::testing
