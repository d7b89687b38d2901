#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

// Sizes in a small folder that would take all memory or time if a model were built of them.
namespace zg::testing {
namespace {

using nlohmann::json;

constexpr int64_t small = int64_t{200} << 20;  // the command itself takes less

/// A copy of a fixture with other values in one of its files.
struct Edited : FolderCopy {
  Edited(const std::string& fixture, const std::string& file, const json& values)
      : FolderCopy(ZG_FIXTURES + fixture) {
    edit_json(*this / file, [&](json& all) { all.update(values); });
  }
};

void check_small_refusal(const std::string& line, int status, const std::string& part) {
  CAPTURE(line);
  const Outcome outcome = checked(zerograd(line), status);
  CHECK(contains(outcome.error, part));
  CHECK(outcome.resident_bytes < small);
}

}  // namespace

TEST_CASE(
    "sizes in a config.json that the tensors do not have are refused before memory is taken") {
  const struct {
    const char* fixture;
    json values;
    int status;
    const char* part;
  } cases[] = {
      {"hf_llama", {{"vocab_size", 50000000}}, 5, "' has shape"},
      {"hf_llama", {{"num_hidden_layers", 65536}}, 5, "config.json has 65536 blocks"},
      {"hf_llama", {{"num_hidden_layers", 2147483647}}, 5, "_layers: expected 1 to 65536"},
      {"hf_llama", {{"intermediate_size", 1048576}}, 5, "' has shape"},
      {"hf_llama", {{"hidden_size", 1048576}, {"num_attention_heads", 1024}}, 5, "' has shape"},
      {"hf_gpt2", {{"n_positions", 50000000}, {"n_ctx", 50000000}}, 5, "wpe.weight' has shape"},
      {"hf_bart", {{"vocab_size", 50000000}}, 5, "' has shape"},
      {"hf_bart", {{"decoder_layers", 65536}}, 5, "blocks"},
      {"hf_bart", {{"encoder_layers", 2147483647}}, 5, "encoder_layers: expected 1 to 65536"},
      {"hf_bart", {{"decoder_ffn_dim", 1000000}}, 5, "' has shape"},
  };
  for (const auto& c : cases) {
    const Edited model(c.fixture, "config.json", c.values);
    check_small_refusal("generate " + model.path + " --prompt 1 --length 1", c.status, c.part);
    check_small_refusal("consolidate " + model.path + " " + (model.folder / "f"), c.status, c.part);
  }
  const Edited wide("hf_bart", "config.json", {{"vocab_size", 50000000}});
  const std::string pairs = wide.folder / "p.jsonl";
  write_file(pairs, R"({"source": "5", "target": "6"})");
  for (const char* line : {"train --steps 1 --data ", "plan --steps 1 --data "})
    check_small_refusal(line + pairs + " --from-hf " + wide.path, 5, "has shape");
  const Edited adapter("lora_llama", "adapter_config.json", {{"r", 1000000}});
  check_small_refusal(
      "generate " ZG_FIXTURES "hf_llama --prompt 1 --length 1 --adapter " + adapter.path, 5,
      "has shape");
}

TEST_CASE("more beams than a search may have are refused") {
  const Edited many("hf_bart", "generation_config.json", {{"num_beams", 100000}});
  for (const std::string& line :
       {"generate " + many.path + " --prompt 5 --length 4",
        std::string("generate " ZG_FIXTURES "hf_bart --prompt 5 --num-beams 100000")})
    check_small_refusal(line, 2, "beams from 1 to 1024, got 100000");
}

TEST_CASE("a folder with 100,000 tensors is read in linear time") {
  const TemporaryFolder folder;
  const std::string model = folder / "m";
  std::filesystem::copy(ZG_FIXTURES "hf_bart", model);
  const std::string file = read_file(model + "/model.safetensors");
  const auto length = static_cast<size_t>(*reinterpret_cast<const uint64_t*>(file.data()));
  std::string header = file.substr(8, file.rfind('}', 8 + length - 1) - 8);
  for (int i = 0; i < 100000; ++i)
    header += ",\"x" + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  header += "}";
  const uint64_t bytes = header.size();
  write_file(model + "/model.safetensors", std::string(reinterpret_cast<const char*>(&bytes), 8) +
                                               header + file.substr(8 + length));
  const Outcome outcome = checked(zerograd("consolidate " + model + " " + (folder / "f")));
  CHECK(contains(outcome.error, "100000 tensors are not used, 'x0' for one"));
}

}  // namespace zg::testing
