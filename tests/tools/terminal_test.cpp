#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

// Names from files that others wrote: what a terminal would interpret is printed as \x1b.
namespace zg::testing {
namespace {

using nlohmann::json;

// An escape sequence that sets a window's title, BEL, CR, a CSI of one code point, and a mark that
// turns the direction of the text.
const std::string hostile = "a\x1b]0;t\a\r\u009b31m\u202eb";

/// Checks that the command ends with this status and shows the hostile text, in whatever form.
void check_shown(const std::vector<std::string>& words, int status) {
  const Outcome outcome = zerograd(words);
  const std::string shown = outcome.out + outcome.error;
  INFO("words ", words, ", shown ", shown);
  CHECK(outcome.status == status);
  CHECK(contains(shown, "]0;t"));
  for (const char* raw : {"\x1b", "\a", "\r", "\u009b", "\u202e"}) CHECK(!contains(shown, raw));
}

/// Edits the header of a safetensors file.
void edit_header(const std::string& path, const std::function<void(json&)>& edit) {
  const std::string file = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  json header = json::parse(file.substr(sizeof length, length));
  edit(header);
  const std::string text = header.dump(), data = file.substr(sizeof length + length);
  length = text.size();
  write_file(path,
             std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}

std::vector<std::string> generate(const std::string& model) {
  return {"generate", model, "--prompt", "1", "--length", "1"};
}

}  // namespace

TEST_CASE("names of tensors and values of a model's folder reach the terminal escaped") {
  const auto check_edited = [](const char* file, int status, const auto& edit) {
    const FolderCopy model(ZG_FIXTURES "hf_llama");
    edit_json(model / file, edit);
    check_shown(generate(model.path), status);
  };
  const char* index = "model.safetensors.index.json";
  check_edited(index, 5, [](json& all) { all["weight_map"][hostile] = "../x"; });
  check_edited(index, 5, [](json& all) { all["weight_map"]["x"] = hostile; });
  check_edited("config.json", 6, [](json& all) { all["model_type"] = hostile; });
  check_edited("config.json", 6, [](json& all) { all["hidden_act"] = hostile; });
  check_edited("config.json", 5, [](json& all) { all["vocab_size"] = {{hostile, 1}}; });
  check_edited("generation_config.json", 5, [](json& all) { all["eos_token_id"] = hostile; });
  const json none = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  const auto check_tensor = [&](const std::string& name, const json& entry, int status) {
    const FolderCopy model(ZG_FIXTURES "hf_chat");
    edit_header(model / "model.safetensors", [&](json& all) { all[name] = entry; });
    check_shown(generate(model.path), status);
  };
  check_tensor(hostile, none, 0);  // a note
  check_tensor("model.layers.77." + hostile, none, 5);
  check_tensor(hostile, {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 0}}}, 5);
  check_tensor("x", {{"dtype", hostile}, {"shape", {0}}, {"data_offsets", {0, 0}}}, 5);
  const auto check_tokenizer = [](const auto& edit, int status) {
    const FolderCopy model(ZG_FIXTURES "hf_chat");
    edit_json(model / "tokenizer.json", edit);
    check_shown(generate(model.path), status);
  };
  check_tokenizer([](json& all) { all["model"]["type"] = hostile; }, 6);
  check_tokenizer([](json& all) { all["model"]["vocab"][hostile] = "x"; }, 5);
  check_tokenizer([](json& all) { all["model"]["merges"] = {hostile}; }, 5);
  const auto check_adapter = [](const char* key, const json& value, int status) {
    const FolderCopy adapter(ZG_FIXTURES "lora_llama");
    edit_json(adapter / "adapter_config.json", [&](json& all) { all[key] = value; });
    std::vector<std::string> words = generate(ZG_FIXTURES "hf_llama");
    words.insert(words.end(), {"--adapter", adapter.path});
    check_shown(words, status);
  };
  check_adapter("target_modules", {hostile}, 2);
  check_adapter("peft_type", hostile, 6);
}

TEST_CASE("keys and values of configs and lines of data reach the terminal escaped") {
  const TemporaryFolder folder;
  const std::string file = folder / "f", text = json(hostile).dump();
  const auto check_file = [&](const std::string& bytes, std::vector<std::string> words, int status,
                              const char* ending = "") {
    write_file(file + ending, bytes);
    words.push_back(file + ending);
    check_shown(words, status);
  };
  const std::vector<std::string> train = {"train", "--data", "sort", "--steps", "0", "--config"};
  check_file("{" + text + ": 1}", train, 2, ".json");
  check_file("{\"train_batch_size\": " + text + "}", train, 2, ".json");
  check_file("{\"zero_optimization\": {" + text + ": {}}}", train, 2, ".json");
  check_file(text + ": 1", train, 2, ".yaml");
  const std::vector<std::string> tune = {"finetune", "--from-hf", ZG_FIXTURES "hf_chat", "--data"};
  check_file("{" + text + ": 1}", tune, 5, ".jsonl");
  std::vector<std::string> with_format = tune;
  with_format.insert(with_format.end() - 1,
                     {"--chat-format", ZG_FIXTURES "hf_chat/chat_format.json"});
  check_file("{\"messages\": [{\"role\": " + text + ", \"content\": \"x\"}]}", with_format, 5,
             ".jsonl");
  check_file("{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"], \"label\": " + text + "}",
             {"eval", ZG_FIXTURES "hf_chat", "--multiple-choice"}, 5, ".jsonl");
  check_file("{\"schema\": " + text + "}",
             {"plan", "--data", "sort", "--kernels", folder / "k", "--peaks"}, 5);
  check_file("{" + text + ": 1}",
             {"tokenize", "--tokenizer", ZG_FIXTURES "hf_chat", "--out", folder / "o"}, 5,
             ".jsonl");
  // Names of files and words of the command line, in results too.
  write_file(folder / (hostile + ".txt"), std::string(2000, 'x'));
  check_shown({"train", "--data", folder / (hostile + ".txt"), "--steps", "0", "--n-layer", "1",
               "--n-head", "1", "--n-embd", "16", "--save", folder / hostile},
              0);
  check_shown({"verify", folder / hostile}, 0);
  check_shown({hostile}, 2);
}

}  // namespace zg::testing
