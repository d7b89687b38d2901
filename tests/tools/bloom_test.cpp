#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/storage/safetensors.h"

// BLOOM through the command. tests/reference/bloom.py makes the Hugging Face folder.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string bloom_fixture = std::string(ZG_FIXTURES) + "hf_bloom";
const std::string tiny_bloom = " --model-type bloom --n-layer 2 --n-head 3 --n-embd 12";
const std::string quiet = " --log-interval 0 --score-samples 0";

std::string from_hf(const TemporaryFolder& folder, const std::string& from,
                    const std::string& flags) {
  return "train --data " + write_tokens(folder, {.vocabulary = 97}) + " --from-hf " + from +
         " --order sequential --val-fraction 0 --batch-size 4 --block-size 16" + quiet + " " +
         flags;
}

std::string succeed(const std::string& line, const std::string& prefix) {
  CAPTURE(line);
  return line_after(checked(zerograd(line)).out, prefix);
}

/// Copies a file's tensors under the names that `rename` returns; "": the tensor is omitted.
template <class Rename>
void write_renamed(const std::string& from, const std::string& to, const Rename& rename) {
  const SafetensorsReader reader(from);
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<std::vector<float>> values;
  for (const auto& [name, entry] : reader.entries()) {
    const std::string renamed = rename(name);
    if (renamed.empty()) continue;
    entries.push_back({renamed, DType::f32, entry.shape});
    values.push_back(reader.read_floats(name));
  }
  SafetensorsWriter writer(to, entries, {});
  for (const auto& tensor : values) writer.write_floats(tensor);
  writer.finish();
}

}  // namespace

TEST_CASE("BLOOM trains, resumes with the same bits, evaluates and generates") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", train = "train --data sort" + tiny_bloom + quiet;
  const std::string whole =
      hash_of(train + " --steps 4 --save " + save + " --save-interval 2 --save-top-k -1");
  CHECK(hash_of("train --resume " + save + "/step_2" + quiet) == whole);
  CHECK(hash_of(train + " --steps 4 --activation-checkpoint --ranks 2 --batch-size 32") ==
        hash_of(train + " --steps 4 --batch-size 32 --grad-accum 2"));
  const std::string loss = succeed("eval " + save + " --score-samples 0", "val loss ");
  const Outcome generated =
      checked(zerograd("generate " + save + " --prompt 210 --length 9 --seed 1"));
  CHECK(generated.out.size() == 3 + 9 + 1);
  CHECK(contains(generated.out, "210"));

  // A file with settings describes its model. Without settings the names show all but the heads.
  const std::string file = folder / "weights.safetensors", bare = folder / "bare.safetensors";
  CHECK(hash_of("consolidate " + save + " " + file) == whole);
  write_renamed(file, bare, [](const std::string& name) { return name; });
  CHECK(succeed("eval " + file + " --score-samples 0", "val loss ") == loss);
  check_refused("eval " + bare + " --data sort --model-type bloom", 2, "try --n-head N");
  check_refused("eval " + bare + " --data sort --model-type bloom-560m", 2, "try --n-head N");
  check_refused("train --data sort --init " + bare, 5,
                "2 blocks of width 12, 3 tokens and block size 2048, tied, ALiBi, with BLOOM's "
                "tensor names; expected this run's model of 3 blocks of width 48");
  check_refused("train --data sort --init " + bare, 5,
                "try --model-type bloom --n-layer 2 --n-head N --n-embd 12 --position-embedding "
                "alibi --tied");
  CHECK(hash_of(train + " --steps 0 --init " + bare) == whole);

  check_refused("train --position-embedding learned --resume " + save, 2,
                "model.position: expected \"alibi\" as in the checkpoint, got \"learned\"");
  check_refused("train --untied --resume " + save, 2, "model.tied: expected true");
  check_refused("train --model-type gpt-nano --resume " + save, 2, "as in the checkpoint");
}

TEST_CASE("GPT and BLOOM take learned positions or ALiBi, and a checkpoint keeps the choice") {
  const TemporaryFolder folder;
  const std::string gpt = folder / "gpt", bloom = folder / "bloom";
  for (const std::string& line :
       {"train --data sort --position-embedding alibi --steps 2 --save " + gpt + quiet,
        "train --data sort" + tiny_bloom +
            " --position_embedding_type learned --untied --steps 2 --save " + bloom + quiet}) {
    const std::string hash = hash_of(line);
    CHECK(hash_of("train --resume " + (contains(line, "bloom") ? bloom : gpt) + quiet) == hash);
  }
  const std::string files[] = {folder / "a.safetensors", folder / "b.safetensors"};
  checked(zerograd("consolidate " + gpt + " " + files[0]));
  checked(zerograd("consolidate " + bloom + " " + files[1]));
  const SafetensorsReader ours(files[0]), theirs(files[1]);
  CHECK(!ours.contains("transformer.wpe.weight"));
  CHECK(ours.contains("transformer.wte.weight"));
  CHECK(theirs.entries().at("transformer.position_embeddings.weight").shape == Shape{11, 12});
  CHECK(theirs.contains("lm_head.weight"));
  CHECK(theirs.contains("transformer.word_embeddings_layernorm.weight"));
  // A config that transformers does not support is not exported.
  check_refused("export " + gpt + " --hf " + (folder / "out"), 6, "position is alibi");
  check_refused("export " + bloom + " --hf " + (folder / "out"), 6, "position is learned");
  CHECK(!std::filesystem::exists(folder / "out"));
  check_refused("train --data sort --position-embedding alibii", 2, "did you mean alibi?");
  check_refused("train --data sort --model-type bloom", 2, "--n-layer, --n-head and --n-embd");
  check_refused("train --data sort --model-type bloom-560m --n-head 3", 2, "--model-type");
  check_refused("train --data sort --model-type bloom-560", 2, "did you mean bloom-560m?");
}

TEST_CASE(
    "a Hugging Face BLOOM starts at transformers' loss and is exported with the same weights") {
  const TemporaryFolder folder;
  const std::string metrics = folder / "metrics", save = folder / "save", out = folder / "hf";
  const std::string start =
      hash_of(from_hf(folder, bloom_fixture, "--steps 0 --ranks 2 --zero-stage 3"));
  hash_of(from_hf(folder, bloom_fixture, "--steps 1 --metrics " + metrics + " --save " + save));
  const double expected = json::parse(read_file(bloom_fixture + "/expected.json")).at("loss");
  // The mean of 64 numbers near 6, from f32 logits with an error of a few u = 2^-24.
  CHECK(std::fabs(json_lines(metrics)[0].at("loss").get<double>() - expected) < 16 * 6.1 * 0x1p-24);

  hash_of(from_hf(folder, bloom_fixture, "--steps 0 --save " + (folder / "start")));
  CHECK(hash_of("export " + (folder / "start") + " --hf " + out) == start);
  CHECK(hash_of(from_hf(folder, out, "--steps 0")) == start);
  const json config = json::parse(read_file(out + "/config.json")),
             first = json::parse(read_file(bloom_fixture + "/config.json"));
  for (const char* key : {"architectures", "model_type", "vocab_size", "hidden_size", "n_layer",
                          "n_head", "layer_norm_epsilon", "tie_word_embeddings"})
    CHECK(config.at(key) == first.at(key));
  CHECK(config.at("seq_length") == 16);
  const SafetensorsReader ours(out + "/model.safetensors"),
      theirs(bloom_fixture + "/model.safetensors");
  CHECK(ours.metadata().at("format") == "pt");
  CHECK(ours.entries().size() == theirs.entries().size());
  for (const auto& [name, entry] : theirs.entries()) {
    CHECK(ours.entries().at(name).shape == entry.shape);
    CHECK(ours.read_floats(name) == theirs.read_floats(name));
  }

  // The form of published files: no prefix, other keys, and a head that repeats the embedding.
  const std::string bare = folder / "bare";
  fs::create_directory(bare);
  json published = first;
  published.erase("hidden_size");
  published.erase("n_head");
  published["n_embed"] = 24;
  published["num_attention_heads"] = 12;
  write_file(bare + "/config.json", published.dump());
  write_renamed(bloom_fixture + "/model.safetensors", bare + "/model.safetensors",
                [](const std::string& name) { return name.substr(std::strlen("transformer.")); });
  CHECK(hash_of(from_hf(folder, bare, "--steps 0")) == start);
  published["n_layer"] = 1;
  write_file(bare + "/config.json", published.dump());
  check_refused(from_hf(folder, bare, "--steps 0"), 5, "for a BLOOM of 1 blocks (config.json)");
  published["apply_residual_connection_post_layernorm"] = true;
  write_file(bare + "/config.json", published.dump());
  check_refused(from_hf(folder, bare, "--steps 0"), 6,
                "apply_residual_connection_post_layernorm is true; expected false");
  check_refused(from_hf(folder, bloom_fixture, "--position-embedding learned"), 2,
                "--position-embedding: " + bloom_fixture + " defines the model");
}

TEST_CASE("BLOOM weights without the embedding's LayerNorm become a checkpoint without it") {
  const TemporaryFolder folder;
  const std::string file = folder / "weights.safetensors", split = folder / "split";
  write_renamed(bloom_fixture + "/model.safetensors", file, [](const std::string& name) {
    return contains(name, "word_embeddings_layernorm") ? std::string() : name;
  });
  const std::string hash = hash_of("consolidate --split " + file + " " + split + " --n-head 12");
  const std::string data =
      " --block-size 16 --val-fraction 0 --data " + write_tokens(folder, {.vocabulary = 97});
  check_refused("train --steps 0 --model-type bloom --n-layer 2 --n-head 12 --n-embd 24 --resume " +
                    split + data,
                2, "model.embedding_norm: expected false as in the checkpoint, got true");
  const Outcome resumed = zerograd("train --steps 0 --resume " + split + data + quiet);
  CHECK(line_after(resumed.out, "param_hash ") == hash);
  // ALiBi supports any length.
  CHECK(contains(resumed.error, "model.block_size: 2048 in the checkpoint, 16 now"));
}

}  // namespace zg::testing
