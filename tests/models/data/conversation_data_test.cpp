#include "zerograd/models/data/conversation_data.h"

#include <algorithm>
#include <set>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace zg::testing {
namespace {

using models::ChatFormat;
using models::Conversation;
using models::ConversationDataset;
using models::ConversationFileOptions;
using models::Order;
using models::read_conversations;
using models::Split;

/// The bytes of a text as tokens; "==" is one token, 300.
models::EncodedText byte_tokens(const std::string& text) {
  models::EncodedText encoded;
  for (size_t at = 0; at < text.size(); at = encoded.spans.back().end) {
    const bool is_pair = text.compare(at, 2, "==") == 0;
    encoded.ids.push_back(is_pair ? 300 : static_cast<unsigned char>(text[at]));
    encoded.spans.push_back({at, at + (is_pair ? 2 : 1)});
  }
  return encoded;
}

/// The text of the tokens; those that are targets in brackets.
std::string marked(const Conversation& conversation) {
  std::string text;
  for (size_t i = 0; i < conversation.tokens.size(); ++i) {
    const bool is_target = conversation.is_target[i];
    if (is_target && (i == 0 || !conversation.is_target[i - 1])) text += '[';
    text += conversation.tokens[i] == 300
                ? "=="
                : std::string(1, static_cast<char>(conversation.tokens[i]));
    const bool ends = i + 1 == conversation.tokens.size() || !conversation.is_target[i + 1];
    if (is_target && ends) text += ']';
  }
  return text;
}

ChatFormat short_format() {
  return {.first = "^",
          .roles = {{"system", {"S:", ";"}}, {"user", {"U:", ";"}}, {"assistant", {"A:", ";"}}}};
}

/// A conversation of `length` + 1 tokens, all `token`; the last `targets` are targets.
Conversation conversation_of(int32_t token, size_t length, size_t targets) {
  Conversation conversation{.tokens = std::vector<int32_t>(length + 1, token),
                            .is_target = std::vector<bool>(length + 1 - targets, false)};
  conversation.is_target.resize(length + 1, true);
  return conversation;
}

struct HostSample {
  std::vector<int32_t> ids, targets, starts;
};
HostSample host_sample(const models::Dataset& data, Split split, int64_t index) {
  const std::vector<int32_t> empty(static_cast<size_t>(data.block_size()));
  HostSample sample{empty, empty, empty};
  data.sample(split, index, sample.ids.data(), sample.targets.data());
  data.document_starts(split, index, sample.starts.data());
  return sample;
}

}  // namespace

TEST_CASE("conversations are read from prompts with responses and from messages") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  write_file(path,
             "{\"prompt\": \"ab\", \"response\": \"cd\", \"id\": 7}\r\n\n \t\n"
             "{\"completion\": \"\\u00e9\", \"prompt\": \"\"}\n"
             "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"name\": null}, "
             "{\"role\": \"assistant\", \"content\": \"y\"}, {\"role\": \"system\", \"content\": "
             "\"\"}, {\"role\": \"assistant\", \"content\": \"z\"}, {\"role\": \"user\", "
             "\"content\": \"w\"}]}");
  ConversationFileOptions options{
      .encode = byte_tokens, .first = {'<'}, .end = '>', .chat = short_format()};
  std::vector<Conversation> read = read_conversations(path, options);
  REQUIRE(read.size() == 3);
  CHECK(marked(read[0]) == "<ab[cd>]");
  CHECK(marked(read[1]) == "<[\xc3\xa9>]");
  CHECK(marked(read[2]) == "^U:x;A:[y;]S:;A:[z;]U:w;");
  options.first.clear();
  options.end.reset();
  read = read_conversations(path, options);
  CHECK(marked(read[0]) == "ab[cd]");
  CHECK(marked(read[1]) == "\xc3[\xa9]");  // no token before the first one could predict it
}

TEST_CASE("a conversation is encoded as one text, and a token across a border is learned") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  const auto of_line = [&](const std::string& line, const ConversationFileOptions& options) {
    write_file(path, line);
    return marked(read_conversations(path, options).at(0));
  };
  const auto of_chat = [&](const std::string& user, const std::string& answer) {
    return of_line("{\"messages\": [{\"role\": \"user\", \"content\": \"" + user +
                       "\"}, {\"role\": \"assistant\", \"content\": \"" + answer + "\"}]}",
                   {.encode = byte_tokens,
                    .chat = ChatFormat{.first = "",
                                       .roles = {{"user", {"", "="}}, {"assistant", {"", "="}}}}});
  };
  CHECK(of_chat("u", "a") == "u=[a=]");
  CHECK(of_chat("u", "=a") == "u[==a=]");
  CHECK(of_chat("u", "a=") == "u=[a==]");
  CHECK(of_chat("", "==") == "==[==]");  // nothing predicts the first one
  const auto of_prompt = [&](const std::string& prompt, const std::string& response) {
    return of_line("{\"prompt\": \"" + prompt + "\", \"response\": \"" + response + "\"}",
                   {.encode = byte_tokens, .first = {'<'}, .end = '>', .end_text = ">"});
  };
  // As TRL, which adds the end where the response does not have it.
  CHECK(of_prompt("p", "r") == "<p[r>]");
  CHECK(of_prompt("p", "r>") == "<p[r>]");
  CHECK(of_prompt("p", "r> ") == "<p[r> >]");
  CHECK(of_prompt("p=", "=r") == "<p[==r>]");
  CHECK(of_prompt("p", "") == "<p[>]");
  CHECK(of_prompt("", "") == "<[>]");
  CHECK(of_line("{\"prompt\": \"1\", \"response\": \"2\"}",
                {.encode = byte_tokens, .end = '>', .separator = " "}) == "1 [2>]");
}

TEST_CASE("weights of messages decide what is learned, and other members are noted or refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  const auto messages = [](const std::string& user, const std::string& answer,
                           const std::string& row = "") {
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"" + user +
           "}, {\"role\": \"assistant\", \"content\": \"a\"" + answer +
           "}, {\"role\": \"user\", \"content\": \"v\"}, {\"role\": \"assistant\", "
           "\"content\": \"b\"}]" +
           row + "}\n";
  };
  std::string note;
  const auto read = [&](const std::string& lines) {
    write_file(path, lines);
    return marked(
        read_conversations(path, {.encode = byte_tokens, .chat = short_format()}, &note).at(0));
  };
  const std::string all = "^U:u;A:[a;]U:v;A:[b;]", second = "^U:u;A:a;U:v;A:[b;]";
  CHECK(read(messages("", ", \"weight\": 1, \"tool_calls\": null")) == all);
  CHECK(note == "");
  CHECK(read(messages("", ", \"weight\": 0")) == second);
  CHECK(read(messages("", ", \"train\": false")) == second);
  CHECK(read(messages(", \"weight\": 0", ", \"training\": false")) == second);
  CHECK(read(messages(", \"train\": true", "")) == "^U:[u;]A:[a;]U:v;A:[b;]");
  CHECK(read(messages("", ", \"like\": 3", ", \"id\": 1") + messages("", "", ", \"id\": 2")) ==
        all);
  CHECK(note == path + ": without effect: id (2), messages[].like (1)");
  const auto refused = [&](const std::string& line) {
    return message_of<FileError>([&] { read(line); });
  };
  const std::string why =
      "expected no such member, which a chat format with a prefix and a suffix for each role "
      "cannot show, got ";
  CHECK(refused(messages("", ", \"tool_calls\": [1]")) ==
        path + ":1: messages[1].tool_calls: " + why + "[1]");
  CHECK(refused(messages("", ", \"reasoning_content\": \"x\"")) ==
        path + ":1: messages[1].reasoning_content: " + why + "\"x\"");
  CHECK(refused(messages(", \"name\": \"me\"", "")) ==
        path + ":1: messages[0].name: " + why + "\"me\"");
  CHECK(refused(messages("", "") + messages("", "", ", \"tools\": [{}]")) ==
        path + ":2: tools: " + why + "[{}]");
  CHECK(refused(messages("", ", \"weight\": 0.5")) ==
        path + ":1: messages[1].weight: expected 0, 1, true or false, got 0.5");
}

TEST_CASE("an invalid line of conversations is refused with its file and number") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  const std::string good = "{\"prompt\": \"a\", \"response\": \"b\"}\n";
  const std::string user = "{\"role\": \"user\", \"content\": \"x\"}";
  const auto refuses_at = [&](const char* place, const std::string& line,
                              const std::string& expected) {
    write_file(path, good + "\n" + line + "\n" + good);
    CHECK(message_of<FileError>([&] {
            read_conversations(path, {.encode = byte_tokens, .chat = short_format()});
          }) == path + place + expected);
  };
  const auto refuses = [&](const std::string& line, const std::string& expected) {
    refuses_at(":3: ", line, expected);
  };
  const std::string forms =
      "expected {\"prompt\": \"Hi\", \"response\": \"Hello\"} or {\"messages\": [{\"role\": "
      "\"user\", \"content\": \"Hi\"}, ...]}, got ";
  refuses_at(":3:12: ", "{\"prompt\": ",
             "is not JSON: syntax error while parsing value - unexpected end of input; expected "
             "'[', '{', or a literal");
  refuses_at(":3:1: ", "[1]", "expected a JSON object, got [1]");
  refuses_at(":3:13: ", "{\"prompt\": \"\xff\"}", "invalid UTF-8; expected text in UTF-8");
  refuses_at(":3:31: ", std::string("{\"prompt\": \"a\", \"response\": 1}\0{", 33),
             "has a zero byte");
  refuses("{\"text\": \"a\"}", forms + "{\"text\":\"a\"}");
  refuses("{\"prompt\": \"a\", \"messages\": []}", forms + "both in one object");
  refuses("{\"prompt\": \"a\"}", "prompt: expected response or completion beside it, got neither");
  refuses("{\"prompt\": \"a\", \"response\": \"b\", \"completion\": \"c\"}",
          "expected one of response and completion, got both");
  refuses("{\"prompt\": 1, \"response\": \"b\"}", "prompt: expected a string, got 1");
  refuses("{\"prompt\": \"a\", \"response\": null}", "response: expected a string, got null");
  refuses("{\"prompt\": \"a\", \"completion\": \"\"}",
          "there is nothing to predict; expected a response of two tokens or more, or a prompt "
          "before it");
  refuses("{\"prompt\": \"\", \"response\": \"b\"}",
          "there is nothing to predict; expected a response of two tokens or more, or a prompt "
          "before it");
  refuses("{\"messages\": {}}", "messages: expected an array, got {}");
  refuses("{\"messages\": []}", "messages: expected one or more of the role assistant, got none");
  refuses("{\"messages\": [" + user + "]}",
          "messages: expected one or more of the role assistant, got none");
  refuses("{\"messages\": [1]}", "messages[0]: expected an object, got 1");
  refuses("{\"messages\": [" + user + ", {\"role\": \"tool\", \"content\": \"x\"}]}",
          "messages[1].role: expected a role of the chat format: assistant, system, user, got "
          "\"tool\"");
  refuses("{\"messages\": [" + user + ", {\"role\": \"assistant\"}]}",
          "messages[1].content: expected a string, got null");
}

TEST_CASE("a file without conversations, messages without a format and refused text are errors") {
  const TemporaryFolder folder;
  const std::string path = folder / "chats.jsonl";
  const auto read = [&](const ConversationFileOptions& options) {
    return [&path, options] { read_conversations(path, options); };
  };
  CHECK(contains(message_of<FileError>(read({.encode = byte_tokens})), path));
  write_file(path, " \n\n");
  CHECK(message_of<ConfigError>(read({.encode = byte_tokens})) ==
        path +
            ": no conversations; expected a line such as {\"prompt\": \"Hi\", \"response\": "
            "\"Hello\"}");
  write_file(path, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
  CHECK(message_of<Unsupported>(read({.encode = byte_tokens})) ==
        path + ":1: messages: there is no chat format that says how roles become text");
  write_file(path, "{\"prompt\": \"a\", \"response\": \"b\"}");
  const auto refuse = [](const std::string&) -> models::EncodedText {
    throw ConfigError("no letters");
  };
  CHECK(message_of<ConfigError>(read({.encode = refuse})) == path + ":1: no letters");
}

TEST_CASE("a chat format is read from JSON, written again, and refused where it is not a format") {
  const ChatFormat format = short_format();
  CHECK(models::chat_format(models::chat_format_json(format), "f") == format);
  CHECK(models::chat_format("{\"assistant\": [\"\", \"\"]}", "f").first.empty());
  const auto refused = [](const std::string& json) {
    return message_of<FileError>([&] { models::chat_format(json, "f.json"); });
  };
  CHECK(refused("{\"user\": [\"a\", \"b\"]}") ==
        "f.json: expected the role assistant, whose messages are learned, got the roles user");
  CHECK(refused("{\"a\\tb\": [\"a\", \"b\"]}") ==
        "f.json: expected the role assistant, whose messages are learned, got the roles a\\x09b");
  CHECK(contains(refused("{\"a\\tb\": 1}"), "f.json: a\\x09b: expected the text before and"));
  CHECK(refused("{}") ==
        "f.json: expected the role assistant, whose messages are learned, got no roles");
  CHECK(refused("{\"assistant\": [\"a\"]}") ==
        "f.json: assistant: expected the text before and after a message, such as "
        "[\"<|im_start|>user\\n\", \"<|im_end|>\\n\"], got [\"a\"]");
  CHECK(refused("{\"assistant\": [\"a\", 1]}") == "f.json: assistant[1]: expected a string, got 1");
  CHECK(refused("{\"first\": 1}") == "f.json: first: expected a string, got 1");
  CHECK(contains(refused("{"), "f.json:1:2: is not JSON"));
}

TEST_CASE("best fit puts each item into the fullest bin with room, and fills no bin beyond it") {
  const std::vector<int64_t> lengths = {5, 7, 3, 2, 4, 1};
  CHECK(models::best_fit(lengths, 8) == std::vector<std::vector<int64_t>>{{0, 2}, {1, 5}, {3, 4}});
  uint64_t state = 7;
  std::vector<int64_t> many;
  for (int i = 0; i < 500; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    many.push_back(static_cast<int64_t>(state >> 33) % 64 + 1);
  }
  std::set<int64_t> seen;
  for (const std::vector<int64_t>& bin : models::best_fit(many, 64)) {
    int64_t sum = 0;
    for (const int64_t item : bin) {
      sum += many[static_cast<size_t>(item)];
      CHECK(seen.insert(item).second);
    }
    CHECK(sum <= 64);
    CHECK(std::ranges::is_sorted(bin));
  }
  CHECK(seen.size() == many.size());
  const std::vector<int64_t> none = {0}, long_one = {9};
  CHECK(message_of<ConfigError>([&] { models::best_fit(none, 8); }) ==
        "best_fit: length 0 is 0; expected 1 to the capacity 8");
  CHECK_ERROR(ConfigError, "is 9", models::best_fit(long_one, 8));
}

TEST_CASE("a packed sample has whole conversations, their starts, and targets of responses alone") {
  // In the order of length: 4 goes first, then 3, then 2 beside 3, then 1 beside 4.
  const std::vector<Conversation> all = {conversation_of(1, 1, 1), conversation_of(2, 2, 1),
                                         conversation_of(3, 3, 2), conversation_of(4, 4, 1)};
  const ConversationDataset data(all, {}, {.block_size = 6});
  CHECK(data.has_documents());
  CHECK(data.vocabulary() == 5);
  REQUIRE(data.epoch_samples(Split::train) == 2);
  CHECK(data.epoch_samples(Split::validation) == 0);
  HostSample first = host_sample(data, Split::train, 0),
             second = host_sample(data, Split::train, 1);
  if (first.ids[0] == 3) std::swap(first, second);
  CHECK(first.ids == std::vector<int32_t>{4, 4, 4, 4, 2, 2});
  CHECK(first.targets == std::vector<int32_t>{-1, -1, -1, 4, -1, 2});
  CHECK(first.starts == std::vector<int32_t>{0, 0, 0, 0, 4, 4});
  CHECK(second.ids == std::vector<int32_t>{3, 3, 3, 1, 0, 0});
  CHECK(second.targets == std::vector<int32_t>{-1, 3, 3, 1, -1, -1});
  CHECK(second.starts == std::vector<int32_t>{0, 0, 0, 3, 4, 4});
  CHECK(data.targets(Split::train, 0) + data.targets(Split::train, 1) == 5);
  CHECK(data.count_targets(Split::train, 0, 4) == 10);
  CHECK(data.counts(Split::train).targets == 5);
  CHECK(data.counts(Split::train).tokens == 10);
  const models::Batch batch = data.batch(Split::train, 0, 2, Device::cpu());
  std::vector<int32_t> starts = batch.starts.to_host<int32_t>(),
                       positions = batch.positions.to_host<int32_t>();
  for (size_t t = 0; t < starts.size(); ++t)
    CHECK(starts[t] + positions[t] == static_cast<int32_t>(t % 6));
  const models::Batch planned = data.batch(Split::train, 0, 2, Device::meta());
  CHECK(planned.positions.shape() == Shape{2, 6});
}

TEST_CASE("without packing a sample is one conversation and padding") {
  const std::vector<Conversation> all = {conversation_of(1, 1, 1), conversation_of(2, 2, 1)};
  const ConversationDataset data(all, {},
                                 {.block_size = 3, .pack = false, .order = Order::sequential});
  REQUIRE(data.epoch_samples(Split::train) == 2);
  CHECK(!data.has_documents());
  CHECK(host_sample(data, Split::train, 0).ids == std::vector<int32_t>{1, 0, 0});
  CHECK(host_sample(data, Split::train, 3).ids == std::vector<int32_t>{2, 2, 0});
  CHECK(host_sample(data, Split::train, 1).targets == std::vector<int32_t>{-1, 2, -1});
  CHECK(!data.batch(Split::train, 0, 1, Device::cpu()).starts);
}

TEST_CASE("every epoch of conversations has each of them once, in another order by the seed") {
  std::vector<Conversation> all;
  for (int32_t i = 1; i <= 30; ++i)
    all.push_back(conversation_of(i, static_cast<size_t>(i % 7 + 1), 1));
  const auto epoch_of = [](const ConversationDataset& data, int64_t epoch) {
    std::vector<int32_t> targets;
    const int64_t count = data.epoch_samples(Split::train);
    for (int64_t i = 0; i < count; ++i)
      for (const int32_t id : host_sample(data, Split::train, epoch * count + i).targets)
        if (id >= 0) targets.push_back(id);
    return targets;
  };
  std::vector<int32_t> each(30);
  for (int32_t i = 0; i < 30; ++i) each[static_cast<size_t>(i)] = i + 1;
  const ConversationDataset data(all, {}, {.block_size = 9}), same(all, {}, {.block_size = 9}),
      other(all, {}, {.block_size = 9, .seed = 1}),
      in_order(all, {}, {.block_size = 9, .order = Order::sequential});
  std::vector<std::vector<int32_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    epochs.push_back(epoch_of(data, epoch));
    CHECK(epoch_of(same, epoch) == epochs.back());
    std::vector<int32_t> sorted = epochs.back();
    std::ranges::sort(sorted);
    CHECK(sorted == each);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(epoch_of(other, 0) != epochs[0]);
  CHECK(epoch_of(in_order, 0) == epoch_of(in_order, 1));
  REQUIRE(!epoch_of(in_order, 0).empty());
  CHECK(epoch_of(in_order, 0).front() == 1);
  // Packing leaves at most a quarter of the tokens empty here; in the order of the file more.
  CHECK(data.epoch_samples(Split::train) * 9 * 3 <= data.counts(Split::train).tokens * 4);
  CHECK(data.epoch_samples(Split::train) <= in_order.epoch_samples(Split::train));
}

TEST_CASE(
    "a conversation beyond the block size is cut, or left out without a target, and counted") {
  const std::vector<Conversation> all = {conversation_of(1, 4, 4), conversation_of(2, 5, 3),
                                         conversation_of(3, 9, 2), conversation_of(4, 8, 5)};
  const ConversationDataset data(all, {all[2], all[0]}, {.block_size = 4});
  const ConversationDataset::Counts& train = data.counts(Split::train);
  CHECK(train.conversations == 3);
  CHECK(train.cut == 2);
  CHECK(train.left_out == 1);
  CHECK(train.targets == 4 + 2 + 1);
  CHECK(data.counts(Split::validation).left_out == 1);
  CHECK(data.counts(Split::validation).conversations == 1);
  CHECK(data.epoch_samples(Split::train) == 3);
  CHECK(message_of<ConfigError>([&] { ConversationDataset({all[2]}, {}, {.block_size = 4}); }) ==
        "conversations: none of 1 has a target within the first 5 tokens (the longest has 10); "
        "expected a larger block size than 4, or shorter prompts");
  CHECK_ERROR(ConfigError, "block_size is 0; expected 1 or more",
              ConversationDataset(all, {}, {.block_size = 0}));
  CHECK(message_of<ConfigError>([&] {
          ConversationDataset(all, {}, {.block_size = 8, .vocabulary = 4});
        }) == "conversations: token 4; expected 0 to 3, the vocabulary");
  CHECK_ERROR(ConfigError, "2 tokens and 1 of is_target",
              ConversationDataset({{.tokens = {1, 2}, .is_target = {true}}}, {}, {}));
  const ConversationDataset one({}, {all[0]}, {.block_size = 4});
  CHECK(message_of<ConfigError>([&] { one.targets(Split::train, 0); }) ==
        "conversations: there are none to train on");
}

TEST_CASE("the end of the conversations is split off, and one always stays to train on") {
  std::vector<Conversation> all;
  for (int32_t i = 0; i < 10; ++i) all.push_back(conversation_of(i, 2, 1));
  std::vector<Conversation> part = models::split_off(all, 0.25);
  CHECK(all.size() == 7);  // 2.5 is rounded up
  REQUIRE(part.size() == 3);
  CHECK(part[0].tokens[0] == 7);
  CHECK(models::split_off(all, 0.0).empty());
  std::vector<Conversation> one = {conversation_of(1, 2, 1)};
  CHECK(models::split_off(one, 0.9).empty());
  CHECK(one.size() == 1);
  CHECK(models::split_off(one, 1.0).size() == 1);  // to evaluate a whole file
  CHECK(one.empty());
  CHECK(message_of<ConfigError>([&] { models::split_off(all, 1.5); }) ==
        "conversations: the validation fraction is 1.5; expected a number from 0 to 1");
}

}  // namespace zg::testing
