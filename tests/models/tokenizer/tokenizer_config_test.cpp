// The files beside tokenizer.json, against AutoTokenizer: make_conversation_fixtures.py.

#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/file_io.h"

namespace zg::testing {
namespace {

using nlohmann::json;

/// A folder with hf_chat's tokenizer.json and these files.
struct ConfigFolder {
  TemporaryFolder folder;

  explicit ConfigFolder(const json& files) {
    write_file(folder / "tokenizer.json", read_text(ZG_FIXTURES "hf_chat/tokenizer.json"));
    for (const auto& [name, content] : files.items())
      write_file(folder / name, content.is_string() ? content.get<std::string>() : content.dump());
  }
  models::Tokenizer tokenizer() const { return models::load_tokenizer(folder.path()); }
};

json named_tokens(const models::Tokenizer& tokenizer) {
  json named;
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const std::optional<int32_t> id = models::named_token(tokenizer, key);
    named[key] = id ? json(*id) : json();
  }
  return named;
}

json added_tokens(const models::Tokenizer& tokenizer) {
  json added;
  for (const models::AddedToken& token : tokenizer.parts().added)
    added.push_back(
        {token.id, token.content, token.special, token.normalized, token.lstrip, token.rstrip});
  std::sort(added.begin(), added.end());
  return added;
}

}  // namespace

TEST_CASE("tokens and templates of the files beside tokenizer.json are those of AutoTokenizer") {
  const json fixture = json::parse(read_text(ZG_FIXTURES "tokenizer/configs.json"));
  for (const auto& [name, expected] : fixture["cases"].items()) {
    CAPTURE(name);
    const models::Tokenizer tokenizer = ConfigFolder(expected["files"]).tokenizer();
    CHECK(json(tokenizer.encode_document(fixture["text"].get<std::string>())) == expected["ids"]);
    CHECK(named_tokens(tokenizer) == expected["named"]);
    CHECK(models::chat_template_of(tokenizer) == expected["template"].get<std::string>());
    CHECK(added_tokens(tokenizer) == expected["added"]);
    // An exported folder reads the same.
    const json exported = {
        {"tokenizer.json", models::tokenizer_json(tokenizer)},
        {"chat_template.jinja", models::chat_template_of(tokenizer)},
        {"tokenizer_config.json", models::hf_tokenizer_config_json(tokenizer, {}, 128)}};
    const ConfigFolder again(exported);
    CHECK(named_tokens(again.tokenizer()) == expected["named"]);
    CHECK(added_tokens(again.tokenizer()) == expected["added"]);
    CHECK(models::chat_template_of(again.tokenizer()) == expected["template"].get<std::string>());
  }
}

TEST_CASE("a config's eos_token goes before names, and its members are written again") {
  const json files = {
      {"tokenizer_config.json",
       {{"eos_token", "<|im_end|>"}, {"model_max_length", 77}, {"padding", "left"}}}};
  const models::Tokenizer tokenizer = ConfigFolder(files).tokenizer();
  CHECK(models::special_tokens_of(tokenizer).eos == std::vector<int32_t>{2});
  const json written =
      json::parse(models::hf_tokenizer_config_json(tokenizer, {.bos = 0, .eos = {0}}, 128));
  CHECK(written["eos_token"] == "<|im_end|>");
  CHECK(written["bos_token"] == "<|endoftext|>");
  CHECK(written["model_max_length"] == 77);
  CHECK(written["padding"] == "left");
  // Without a class that has special tokens of its own, transformers knows no others.
  const json plain = {{"tokenizer_config.json", {{"tokenizer_class", "TokenizersBackend"}}}};
  CHECK(!json::parse(
             models::hf_tokenizer_config_json(ConfigFolder(plain).tokenizer(), {.bos = 0}, 128))
             .contains("bos_token"));
}

TEST_CASE("a wrong value beside tokenizer.json is an error with its file and key") {
  const auto refused = [](const char* name, const json& content) {
    const ConfigFolder folder(json{{name, content}});
    return message_of<FileError>([&] { folder.tokenizer(); }).substr(folder.folder.path().size());
  };
  CHECK(refused("tokenizer_config.json", {{"eos_token", 5}}) ==
        "/tokenizer_config.json: eos_token: expected a string, got 5");
  CHECK(refused("tokenizer_config.json", {{"added_tokens_decoder", {{"x", json::object()}}}}) ==
        "/tokenizer_config.json: added_tokens_decoder.x: expected an id as its key, got {}");
  CHECK(refused("tokenizer_config.json", {{"added_tokens_decoder", {{"5", json::object()}}}}) ==
        "/tokenizer_config.json: added_tokens_decoder.5.content: expected a string, got null");
  CHECK(refused("added_tokens.json", {{"<new>", "1"}}) ==
        "/added_tokens.json: <new>: expected an id, got \"1\"");
}

}  // namespace zg::testing
