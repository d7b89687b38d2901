#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "tests/models/tokenizer/tokenizer_text.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/tokenizer/corpus.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"

// Fine-tuning as transformers computes it: tests/reference/make_conversation_fixtures.py makes the
// fixtures.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

const std::string chat_folder = std::string(ZG_FIXTURES) + "hf_chat";

std::vector<Conversation> chats_of_fixture(const Tokenizer& tokenizer, bool by_template = false) {
  return read_conversations(
      chat_folder + "/chats.jsonl",
      {.encode = [&](const std::string& text) { return tokenizer.encode_with_spans(text); },
       .end = tokenizer.id_of_added("<|endoftext|>"),
       .end_text = "<|endoftext|>",
       .chat = by_template
                   ? ChatFormat{.jinja = folder_chat_template(chat_folder)}
                   : chat_format(read_text(chat_folder + "/chat_format.json"), "chat_format")});
}

struct ChatModel : GPTCase {
  explicit ChatModel(const HuggingFaceFolder& folder, const Device& where)
      : GPTCase(folder.model().config, where) {
    load_weights(folder.weights(gpt.config()), *this);
  }
  Var loss_of(Tape& tape, const Batch& batch) const {
    return gpt.loss(tape, batch.ids, batch.targets, {}, /*checkpointing=*/false,
                    {.starts = batch.starts, .positions = batch.positions});
  }
};

}  // namespace

TEST_CASE("conversations have the ids and targets of transformers' chat template") {
  const Tokenizer tokenizer = load_tokenizer(chat_folder);
  const json expected = json::parse(read_text(chat_folder + "/expected.json"));
  for (const bool by_template : {false, true}) {
    CAPTURE(by_template);
    const std::vector<Conversation> chats = chats_of_fixture(tokenizer, by_template);
    REQUIRE(chats.size() == expected.size());
    for (size_t i = 0; i < chats.size(); ++i) {
      CAPTURE(i);
      CHECK(chats[i].tokens == expected[i]["ids"].get<std::vector<int32_t>>());
      std::vector<int> is_target(chats[i].is_target.begin(), chats[i].is_target.end());
      CHECK(is_target == expected[i]["is_target"].get<std::vector<int>>());
    }
  }
}

TEST_CASE("chats with white space at every border have the ids and masks of transformers") {
  const json fixture = json::parse(read_text(ZG_FIXTURES "tokenizer/borders.json"));
  const TemporaryFolder folder;
  std::string lines;
  for (const json& chat : fixture["chats"]) lines += json{{"messages", chat}}.dump() + "\n";
  write_file(folder / "chats.jsonl", lines);
  for (const auto& [kind, expected] : fixture["rows"].items()) {
    CAPTURE(kind);
    const size_t slash = kind.find('/');
    const json family =
        json::parse(read_text(ZG_FIXTURES "tokenizer/families/" + kind.substr(0, slash) + ".json"));
    const Tokenizer tokenizer = tokenizer_from_json(family["tokenizer"].dump(), kind);
    const std::vector<Conversation> chats = read_conversations(
        folder / "chats.jsonl",
        {.encode = [&](const std::string& text) { return tokenizer.encode_with_spans(text); },
         .chat = chat_format(fixture["formats"][kind.substr(slash + 1)].dump(), "format")});
    REQUIRE(chats.size() == expected.size());
    for (size_t i = 0; i < chats.size(); ++i) {
      CAPTURE(fixture["chats"][i].dump());
      CHECK(json(chats[i].tokens) == expected[i][0]);
      std::string mask;
      for (const bool is_target : chats[i].is_target) mask += is_target ? '1' : '0';
      CHECK(mask == expected[i][1].get<std::string>());
    }
  }
}

// tests/reference/make_chat_fixtures.py makes the file; tests/long/chat-templates a larger one.
TEST_CASE("ids and targets of chat templates are those of transformers for each tokenizer") {
  const char* larger = std::getenv("ZG_CHAT_TOKENS");
  const std::string fixtures = ZG_FIXTURES, folder = fixtures + "chat_templates/";
  const auto expected =  // members in their order, as templates see them
      nlohmann::ordered_json::parse(read_text(larger ? larger : folder + "ids.json"));
  const std::regex mark(R"(\{%-? (end)?generation -?%\}\n?)");
  std::map<std::string, std::vector<RenderedConversation>> rendered;
  for (const auto& [name, rows] : expected["rows"].items())
    for (const std::string kind : {"", ", unmarked"}) {
      ChatTemplate chat_template{.text = read_text(folder + name + ".jinja"),
                                 .variables = R"({"bos_token": "<s>", "eos_token": "</s>"})",
                                 .date = "2024-07-26"};
      if (!kind.empty()) chat_template.text = std::regex_replace(chat_template.text, mark, "");
      ChatRenderer renderer(chat_template, ChatRenderer::Text::chat);
      for (const auto& row : rows) {
        RenderedChat chat = renderer.render(row.dump(), name);
        RenderedConversation& one = rendered[name + kind].emplace_back();
        one.text = std::move(chat.text);
        for (const auto& [begin, end, message] : chat.answers)
          if (begin < end) one.learned.push_back({begin, end});
      }
    }
  REQUIRE(rendered.size() == 12);
  int64_t wrong = 0, all = 0;
  for (const std::string kind : expected["tokenizers"]) {
    const size_t comma = kind.find(", ");
    const json family =
        json::parse(read_text(fixtures + "tokenizer/families/" + kind.substr(0, comma) + ".json"));
    json file = family["tokenizer"];
    if (comma != std::string::npos)
      file = patched(file, family["variants"][kind.substr(comma + 2)]["patch"]);
    const Tokenizer tokenizer = tokenizer_from_json(file.dump(), kind);
    for (const auto& [name, conversations] : rendered)
      for (size_t i = 0; i < conversations.size(); ++i) {
        const ConversationFileOptions options{
            .encode = [&](const std::string& text) { return tokenizer.encode_with_spans(text); }};
        const auto& wanted = expected["tokens"][kind + ": " + name][i];
        ++all;
        if (wanted[1] == 0) {  // the tokenizer has no tokens for the answers
          CHECK_THROWS_AS(conversation_of(conversations[i], options, name), FileError);
          continue;
        }
        const Conversation made = conversation_of(conversations[i], options, name);
        std::vector<int32_t> both = made.tokens;
        both.insert(both.end(), made.is_target.begin(), made.is_target.end());
        const nlohmann::ordered_json got = {made.tokens.size(),
                                            std::ranges::count(made.is_target, true),
                                            checksum(std::as_bytes(std::span(both)))};
        if (got == wanted || ++wrong > 20) continue;
        INFO("kind ", kind, ", name ", name, ", i ", i, ", ", conversations[i].text);
        CHECK(got.dump() == wanted.dump());
      }
  }
  CAPTURE(all);
  CHECK(wrong == 0);
  if (larger)
    std::printf("%lld chats have the tokens of transformers\n",
                static_cast<long long>(all - wrong));
}

TEST_CASE("losses and gradients of packed and padded conversations match transformers") {
  const HuggingFaceFolder folder(chat_folder);
  const std::vector<Conversation> chats = chats_of_fixture(load_tokenizer(chat_folder));
  const json each = json::parse(read_text(chat_folder + "/expected.json"));
  const SafetensorsReader expected(chat_folder + "/expected.safetensors");
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (const bool pack : {true, false}) {
      CAPTURE(pack);
      const ConversationDataset data(chats, {}, {.block_size = 80, .pack = pack});
      CHECK(data.epoch_samples(Split::train) == (pack ? 2 : 6));
      ChatModel model(folder, device);
      Tape tape = model.tape();
      const Var loss = model.loss_of(
          tape, data.batch(Split::train, 0, data.epoch_samples(Split::train), device));
      CHECK(relative_error({loss.value().item()}, expected.read_floats("loss")) < 1e-6);
      tape.backward(loss);
      for (const auto& parameter : model.store.parameters()) {
        CAPTURE(parameter->name);
        CHECK(relative_error(model.source.gradients[parameter.get()],
                             expected.read_floats("gradient." + parameter->name)) < 1e-5);
      }
    }
    for (size_t i = 0; i < chats.size(); ++i) {
      CAPTURE(i);
      const ConversationDataset one({chats[i]}, {}, {.block_size = 80});
      ChatModel model(folder, device);
      Tape tape = model.tape(TapeMode::inference);
      const Var loss = model.loss_of(tape, one.batch(Split::train, 0, 1, device));
      CHECK(loss.value().item() == doctest::Approx(each[i]["loss"].get<double>()).epsilon(1e-6));
    }
  }
}
