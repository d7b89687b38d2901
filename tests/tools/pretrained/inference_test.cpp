#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/dtype.h"

// Tests that `generate` and `eval` use the memory that their plans predict.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Llama {
  int64_t layers = 4, width = 512, hidden = 1024, vocabulary = 30000;
};

/// Writes a folder with a Llama whose weights are bf16. If `sparse`, the weights are a hole in the
/// file, which takes no blocks on the disk; otherwise they are small values. Returns the bytes of
/// the weights.
int64_t write_llama(const std::string& folder, const Llama& model, bool sparse) {
  fs::create_directories(folder);
  write_file(folder + "/config.json", json{{"model_type", "llama"},
                                           {"hidden_size", model.width},
                                           {"num_hidden_layers", model.layers},
                                           {"num_attention_heads", 16},
                                           {"num_key_value_heads", 16},
                                           {"intermediate_size", model.hidden},
                                           {"vocab_size", model.vocabulary},
                                           {"max_position_embeddings", 4096},
                                           {"rms_norm_eps", 1e-5},
                                           {"hidden_act", "silu"},
                                           {"tie_word_embeddings", true}}
                                          .dump());
  json header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t bytes = 2;
    for (const int64_t extent : shape) bytes *= extent;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  add("model.embed_tokens.weight", {model.vocabulary, model.width});
  add("model.norm.weight", {model.width});
  for (int64_t i = 0; i < model.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      add(layer + "self_attn." + name + ".weight", {model.width, model.width});
    for (const char* name : {"gate_proj", "up_proj"})
      add(layer + "mlp." + name + ".weight", {model.hidden, model.width});
    add(layer + "mlp.down_proj.weight", {model.width, model.hidden});
    add(layer + "input_layernorm.weight", {model.width});
    add(layer + "post_attention_layernorm.weight", {model.width});
  }
  const std::string path = folder + "/model.safetensors", text = header.dump();
  std::ofstream file(path, std::ios::binary);
  const auto size = static_cast<uint64_t>(text.size());
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file << text;
  if (!sparse) {
    std::vector<bf16> block(4099);
    for (size_t i = 0; i < block.size(); ++i)
      block[i] = bf16(0.08f * (static_cast<float>(i * 7919 % 4099) / 4099.0f - 0.5f));
    const std::string values(reinterpret_cast<const char*>(block.data()), 2 * block.size());
    for (int64_t at = 0; at < end; at += std::ssize(values))
      file.write(values.data(), std::min<int64_t>(std::ssize(values), end - at));
  }
  file.close();
  fs::resize_file(path, static_cast<uintmax_t>(8 + std::ssize(text) + end));
  return end;
}

int64_t reserved(const std::string& path) {
  return json_lines(path).at(0).at("ranks").at(0).at("reserved").at("device").get<int64_t>();
}

}  // namespace

TEST_CASE(
    "generate and eval take the memory of bf16 weights, as planned, and answer as f32 weights do") {
  const TemporaryFolder folder;
  const std::string model = folder / "model", plan = folder / "plan", run = folder / "run";
  const int64_t weights = write_llama(model, {}, /*sparse=*/false);
  const std::string tokens = write_tokens(folder, {.vocabulary = 300, .count = 300});
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"generate", model, "--prompt", "7 8 9", "--length", "20",
                                 "--temperature", "0"},
        {"eval", model, "--data", tokens, "--val-fraction", "1", "--block-size", "64",
         "--batch-size", "2"}}) {
    CAPTURE(words.front());
    const auto with = [&](std::vector<std::string> before, const std::vector<std::string>& after) {
      before.insert(before.end(), words.begin(), words.end());
      before.insert(before.end(), after.begin(), after.end());
      return zerograd(before);
    };
    const Outcome planned = checked(with({"plan"}, {"--memory-json", plan}));
    CHECK(contains(planned.out, "of device memory, of which weights take "));
    const Outcome narrow = checked(with({}, {"--memory-json", run}));
    CHECK(json_lines(plan) == json_lines(run));
    const int64_t device = reserved(run), rest = int64_t{24} << 20;
    CHECK(device < weights + rest);
    CHECK(narrow.resident_bytes < weights + weights / 10 + rest + (int64_t{64} << 20));
    CHECK(checked(with({}, {"--dtype", "f32"})).out == narrow.out);

    // A command that needs more memory than the limit is refused before it reads the weights.
    const Outcome refused = checked(with({}, {"--device-memory", std::to_string(weights)}), 3);
    CHECK(refused.out.empty());
    CHECK(contains(refused.error, "error: OutOfMemory: --device-memory: the model takes "));
    CHECK(contains(refused.error, "expected at most "));
    const Outcome fits = checked(with({"plan"}, {"--device-memory", std::to_string(device)}));
    CHECK(contains(fits.out, "fits: yes"));
    CHECK(with({"plan"}, {"--device-memory", std::to_string(device - 1)}).status == 3);
    CHECK(with({}, {"--device-memory", std::to_string(device)}).status == 0);
  }
}

TEST_CASE("a model that this machine has no memory for is refused before its weights are read") {
  const TemporaryFolder folder;
  const std::string model = folder / "model";
  write_llama(model, {.layers = 400, .width = 16384, .hidden = 65536}, /*sparse=*/true);
  const Outcome refused = checked(
      zerograd({"generate", model, "--prompt", "7 8 9", "--length", "20", "--temperature", "0"}),
      3);
  CHECK(contains(refused.error, "error: OutOfMemory: the model takes "));
  CHECK(contains(refused.error, "; this machine has "));
  CHECK(refused.resident_bytes < int64_t{256} << 20);
}

}  // namespace zg::testing
