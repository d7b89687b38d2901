#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/temporary_folder.h"
#include "tests/tools/command.h"
#include "zero/safetensors.h"

// Folders of Hugging Face's; the fixture is made by tests/reference/make_hf_fixtures.py.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string fixture = std::string(ZG_FIXTURES) + "hf_gpt2";

/// The fixture's tokens in llm.c's format.
std::string write_tokens(const TemporaryFolder& folder) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 65;
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 65; ++i) tokens.push_back(static_cast<uint16_t>((i * i + 3 * i) % 61));
  std::string bytes(1024 + 130, '\0');
  std::memcpy(bytes.data(), header.data(), 1024);
  std::memcpy(bytes.data() + 1024, tokens.data(), 130);
  write_file(folder / "tokens.bin", bytes);
  return folder / "tokens.bin";
}

std::string train(const TemporaryFolder& folder, const std::string& from,
                  const std::string& flags) {
  return "train --data " + write_tokens(folder) + " --from-hf " + from +
         " --order sequential --val-fraction 0 --batch-size 4 --log-interval 0 " + flags;
}

std::string hash_of(const std::string& line) {
  const Outcome outcome = zerograd(line);
  CAPTURE(line);
  CAPTURE(outcome.error);
  CHECK(outcome.status == 0);
  return line_after(outcome.out, "param_hash ");
}

/// Some tensors of the fixture, renamed, into a file.
template <class Rename>
void write_part(const std::string& path, const Rename& rename) {
  const zero::SafetensorsReader reader(fixture + "/model.safetensors");
  std::vector<zero::SafetensorsWriter::Entry> entries;
  std::vector<std::vector<float>> values;
  for (const auto& [name, entry] : reader.entries()) {
    const std::string renamed = rename(name);
    if (renamed.empty() || entry.dtype != DType::f32) continue;
    entries.push_back({renamed, DType::f32, entry.shape});
    values.push_back(reader.read_floats(name));
  }
  zero::SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  for (const auto& tensor : values) writer.write_floats(tensor);
  writer.finish();
}

std::string copy_of_config(const TemporaryFolder& folder, const std::string& name) {
  fs::create_directory(folder / name);
  fs::copy_file(fixture + "/config.json", folder / (name + "/config.json"));
  return folder / name;
}

}  // namespace

TEST_CASE("a Hugging Face GPT-2 trains from PyTorch's loss and comes back as it went") {
  const TemporaryFolder folder;
  const std::string metrics = folder / "metrics", save = folder / "save";
  REQUIRE(zerograd(train(folder, fixture,
                         "--steps 1 --dropout 0 --metrics " + metrics + " --save " + save))
              .status == 0);
  const double expected = json::parse(read_file(fixture + "/expected.json")).at("loss");
  // The mean of 64 numbers near 4.5 from f32 logits, each of which is known to a few u = 2^-24.
  CHECK(std::fabs(json_lines(metrics)[0].at("loss").get<double>() - expected) < 16 * 4.5 * 0x1p-24);

  // Loaded, and exported and loaded, the same bits; so for what training made of it.
  const std::string start =
      hash_of(train(folder, fixture, "--steps 0 --save " + (folder / "start")));
  CHECK(start.size() == 32);
  CHECK(hash_of(train(folder, fixture, "--steps 0 --ranks 2 --zero-stage 3")) == start);
  for (const std::string& from : {folder / "start", save}) {
    const std::string out = from + "_hf";
    const std::string hash = hash_of("export " + from + " --hf " + out);
    CHECK(hash == (from == save ? hash_of("train --score-samples 0 --resume " + save) : start));
    CHECK(hash_of(train(folder, out, "--steps 0")) == hash);
    const zero::SafetensorsReader reader(out + "/model.safetensors");
    CHECK(reader.metadata().at("format") == "pt");
    CHECK(reader.entries().at("transformer.h.1.attn.c_attn.weight").shape == Shape{8, 24});
    CHECK(!reader.contains("lm_head.weight"));
  }
  const zero::SafetensorsReader ours(folder / "start_hf/model.safetensors"),
      theirs(fixture + "/model.safetensors");
  for (const auto& [name, entry] : ours.entries())
    CHECK(ours.read_floats(name) == theirs.read_floats(name));
  const std::string file = folder / "weights.safetensors";
  CHECK(hash_of("consolidate " + (folder / "start") + " " + file) == start);
  CHECK(hash_of("export " + file + " --hf " + (folder / "from_file")) == start);
}

TEST_CASE("a head of its own is exported and loaded as one") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", out = folder / "hf";
  const std::string hash =
      hash_of("train --data " + write_tokens(folder) +
              " --n-layer 1 --n-head 2 --n-embd 8 --block-size 16 --vocab-size 61 --val-fraction 0 "
              "--batch-size 2 --steps 2 --log-interval 0 --dropout 0.25 --untied --save " +
              save);
  CHECK(hash_of("export " + save + " --hf " + out) == hash);
  const json config = json::parse(read_file(out + "/config.json"));
  CHECK(config.at("tie_word_embeddings") == false);
  CHECK(config.at("resid_pdrop") == 0.25);
  CHECK(zero::SafetensorsReader(out + "/model.safetensors").contains("lm_head.weight"));
  CHECK(hash_of(train(folder, out, "--steps 0")) == hash);
}

TEST_CASE("names without their prefix, shards, and fewer positions") {
  const TemporaryFolder folder;
  const std::string start = hash_of(train(folder, fixture, "--steps 0"));
  const std::string bare = copy_of_config(folder, "bare"), parts = copy_of_config(folder, "parts");
  write_part(bare + "/model.safetensors",
             [](const std::string& name) { return name.substr(std::strlen("transformer.")); });
  CHECK(hash_of(train(folder, bare, "--steps 0")) == start);

  json map;
  for (const std::string half : {"0", "1"}) {
    const std::string file = "model-0000" + half + ".safetensors";
    write_part(parts + "/" + file, [&](const std::string& name) {
      const bool here = (name.find(".h.1.") != std::string::npos) == (half == "1");
      if (here) map[name] = file;
      return here ? name : "";
    });
  }
  for (auto it = map.begin(); it != map.end();)  // masks were left out
    it = it.key().ends_with(".attn.bias") ? map.erase(it) : std::next(it);
  const std::string index = parts + "/model.safetensors.index.json";
  write_file(index, json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  CHECK(hash_of(train(folder, parts, "--steps 0")) == start);
  const auto refused_index = [&](const std::string& file) {
    json other = map;
    other["transformer.wte.weight"] = file;
    write_file(index, json{{"weight_map", other}}.dump());
    const Outcome outcome = zerograd(train(folder, parts, "--steps 0"));
    CHECK(outcome.status == 5);
    return outcome.error;
  };
  for (const std::string& path :
       {fixture + "/model.safetensors", std::string("../x"), std::string(".."), std::string("")})
    CHECK(contains(refused_index(path), "expected the name of a file beside it"));
  CHECK(contains(refused_index("absent"), parts + "/absent: No such file"));
  CHECK(contains(refused_index("model-00001.safetensors"), "has no tensor 'transformer.wte"));

  const Outcome shorter = zerograd(train(folder, fixture, "--steps 1 --block-size 8"));
  CHECK(shorter.status == 0);
  CHECK(contains(shorter.error, "note: of the 16 positions in " + fixture + " the first 8"));
}

TEST_CASE("a folder that is none of GPT-2's is refused by what is wrong with it") {
  const TemporaryFolder folder;
  const auto refused = [&](int status, const std::string& from, const std::string& flags,
                           const std::string& what) {
    const Outcome outcome = zerograd(train(folder, from, "--steps 0 " + flags));
    CAPTURE(outcome.error);
    CHECK(outcome.status == status);
    CHECK(contains(outcome.error, what));
  };
  refused(5, folder / "absent", "", "absent/config.json: No such file");
  const std::string hf = copy_of_config(folder, "hf");
  refused(5, hf, "", "expected a folder with model.safetensors");
  write_file(hf + "/pytorch_model.bin", "pickle");
  refused(6, hf, "", "a pickle, which can run any program");
  write_part(hf + "/model.safetensors", [](const std::string& name) {
    return name == "transformer.ln_f.bias" ? std::string() : name;
  });
  refused(5, hf, "", "has no 'transformer.ln_f.bias' [8]");
  write_part(hf + "/model.safetensors", [](const std::string& name) {
    return name == "transformer.ln_f.bias"    ? std::string("transformer.wpe.weight")
           : name == "transformer.wpe.weight" ? std::string("transformer.ln_f.bias")
                                              : name;
  });
  refused(5, hf, "", "has shape [16, 8]; expected [8]");
  json config = json::parse(read_file(hf + "/config.json"));
  config["n_layer"] = 1;
  write_file(hf + "/config.json", config.dump());
  write_part(hf + "/model.safetensors", [](const std::string& name) { return name; });
  refused(5, hf, "", "'transformer.h.1.attn.c_attn.bias', which a GPT-2 of 1 blocks has not");
  config["attn_pdrop"] = 0.0;
  write_file(hf + "/config.json", config.dump());
  refused(6, hf, "", "resid_pdrop, embd_pdrop and attn_pdrop differ");
  refused(2, fixture, "--n-layer 2 --n-head 2 --n-embd 8", "--n-layer: " + fixture);
  refused(2, fixture, "--untied", "--untied: " + fixture);
  refused(2, fixture, "--block-size 17", "expected at most the 16 positions");
  refused(2, fixture, "--init x", "expected one of --init and --from-hf");
  CHECK(zerograd("export absent --hf " + (folder / "out")).status == 5);
  CHECK(zerograd("export absent").status == 2);
}

TEST_CASE("plan knows a Hugging Face GPT-2 by its config") {
  const TemporaryFolder folder;
  const std::string flags = "--data " + write_tokens(folder) + " --val-fraction 0 --from-hf ";
  const Outcome outcome = zerograd("plan " + flags + fixture);
  CAPTURE(outcome.error);
  CHECK(outcome.status == 0);
  CHECK(contains(outcome.out, "peak "));
}

}  // namespace zg::testing
