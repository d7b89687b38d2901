#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/safetensors.h"

// Folders of Hugging Face's; the fixture is made by tests/reference/make_hf_fixtures.py.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string gpt2_fixture = std::string(ZG_FIXTURES) + "hf_gpt2";

std::string train_from_hf(const TemporaryFolder& folder, const std::string& from,
                          const std::string& flags) {
  return "train --data " + write_tokens(folder, {.vocabulary = 61}) + " --from-hf " + from +
         " --order sequential --val-fraction 0 --batch-size 4 --log-interval 0 " + flags;
}

/// Some tensors of the fixture, renamed, into a file.
template <class Rename>
void write_part(const std::string& path, const Rename& rename) {
  const SafetensorsReader reader(gpt2_fixture + "/model.safetensors");
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<std::vector<float>> values;
  for (const auto& [name, entry] : reader.entries()) {
    const std::string renamed = rename(name);
    if (renamed.empty() || entry.dtype != DType::f32) continue;
    entries.push_back({renamed, DType::f32, entry.shape});
    values.push_back(reader.read_floats(name));
  }
  SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  for (const auto& tensor : values) writer.write_floats(tensor);
  writer.finish();
}

/// A text, a tokenizer and a folder of Hugging Face's with both a model and that tokenizer.
struct TextCase {
  TemporaryFolder folder;
  std::string text = folder / "text.txt", tokenizer = folder / "tokenizer", hf = folder / "hf";
  models::Tokenizer own;

  TextCase() : own(models::train_tokenizer(lines(), {.vocabulary = 280})) {
    write_file(text, lines());
    models::save_tokenizer(own, tokenizer);
    fs::create_directory(hf);
    for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
      fs::copy_file(tokenizer + "/" + name, hf + "/" + name);
    hash_of(model(" --vocab-size 280 --data " + write_tokens(folder, {.vocabulary = 61}) +
                  " --save " + (folder / "first")));
    hash_of("export " + (folder / "first") + " --hf " + hf);
    edit_json(hf + "/config.json", [](json& all) {
      all["eos_token_id"] = 5;
      all["bos_token_id"] = 4;
    });
    fs::remove(hf + "/generation_config.json");
  }
  static std::string lines() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dög\n";
    return text;
  }
  static std::string model(const std::string& flags) {
    return "train --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --steps 2 "
           "--val-fraction 0 --tied --log-interval 0" +
           flags;
  }
  /// One step from the folder on some data.
  Outcome from_hf(const std::string& flags) const {
    return zerograd("train --from-hf " + hf + " --steps 1 --batch-size 4 --log-interval 0 " +
                    flags);
  }
  /// Without any of a tokenizer's files.
  void forget_tokenizer() const {
    for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
      fs::remove(hf + "/" + name);
  }
};

std::string copy_of_config(const TemporaryFolder& folder, const std::string& name) {
  fs::create_directory(folder / name);
  fs::copy_file(gpt2_fixture + "/config.json", folder / (name + "/config.json"));
  return folder / name;
}

}  // namespace

TEST_CASE("a Hugging Face GPT-2 starts at PyTorch's loss and is exported with the same weights") {
  const TemporaryFolder folder;
  const std::string metrics = folder / "metrics", save = folder / "save";
  checked(zerograd(train_from_hf(
      folder, gpt2_fixture, "--steps 1 --dropout 0 --metrics " + metrics + " --save " + save)));
  const double expected = json::parse(read_file(gpt2_fixture + "/expected.json")).at("loss");
  // The mean of 64 numbers near 4.5 from f32 logits, each of which is known to a few u = 2^-24.
  CHECK(std::fabs(json_lines(metrics)[0].at("loss").get<double>() - expected) < 16 * 4.5 * 0x1p-24);

  // Loaded, and exported and loaded, the same bits; so for what training made of it.
  const std::string start =
      hash_of(train_from_hf(folder, gpt2_fixture, "--steps 0 --save " + (folder / "start")));
  CHECK(start.size() == 32);
  CHECK(hash_of(train_from_hf(folder, gpt2_fixture, "--steps 0 --ranks 2 --zero-stage 3")) ==
        start);
  for (const std::string& from : {folder / "start", save}) {
    const std::string out = from + "_hf";
    const std::string hash = hash_of("export " + from + " --hf " + out);
    CHECK(hash == (from == save ? hash_of("train --score-samples 0 --resume " + save) : start));
    CHECK(hash_of(train_from_hf(folder, out, "--steps 0")) == hash);
    const SafetensorsReader reader(out + "/model.safetensors");
    CHECK(reader.metadata().at("format") == "pt");
    CHECK(reader.entries().at("transformer.h.1.attn.c_attn.weight").shape == Shape{8, 24});
    CHECK(!reader.contains("lm_head.weight"));
  }
  const SafetensorsReader ours(folder / "start_hf/model.safetensors"),
      theirs(gpt2_fixture + "/model.safetensors");
  for (const auto& [name, entry] : ours.entries())
    CHECK(ours.read_floats(name) == theirs.read_floats(name));
  const std::string file = folder / "weights.safetensors";
  CHECK(hash_of("consolidate " + (folder / "start") + " " + file) == start);
  CHECK(hash_of("export " + file + " --hf " + (folder / "from_file")) == start);
}

TEST_CASE("an untied head is exported and loaded as an untied head") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", out = folder / "hf";
  const std::string hash =
      hash_of("train --data " + write_tokens(folder, {.vocabulary = 61}) +
              " --n-layer 1 --n-head 2 --n-embd 8 --block-size 16 --vocab-size 61 --val-fraction 0 "
              "--batch-size 2 --steps 2 --log-interval 0 --dropout 0.25 --untied --save " +
              save);
  CHECK(hash_of("export " + save + " --hf " + out) == hash);
  const json config = json::parse(read_file(out + "/config.json"));
  CHECK(config.at("tie_word_embeddings") == false);
  CHECK(config.at("resid_pdrop") == 0.25);
  CHECK(SafetensorsReader(out + "/model.safetensors").contains("lm_head.weight"));
  CHECK(hash_of(train_from_hf(folder, out, "--steps 0")) == hash);
  // Which of both transformers takes depends on its version.
  json ties = config;
  ties["tie_word_embeddings"] = true;
  write_file(out + "/config.json", ties.dump());
  check_refused(train_from_hf(folder, out, "--steps 0"), 5,
                "'lm_head.weight' has other values than 'transformer.wte.weight', to "
                "which config.json ties it");
}

TEST_CASE(
    "--from-hf reads names without prefix, sharded weights, and only the first positions if "
    "asked") {
  const TemporaryFolder folder;
  const std::string start = hash_of(train_from_hf(folder, gpt2_fixture, "--steps 0"));
  const std::string bare = copy_of_config(folder, "bare"), parts = copy_of_config(folder, "parts");
  write_part(bare + "/model.safetensors",
             [](const std::string& name) { return name.substr(std::strlen("transformer.")); });
  CHECK(hash_of(train_from_hf(folder, bare, "--steps 0")) == start);

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
  CHECK(hash_of(train_from_hf(folder, parts, "--steps 0")) == start);
  const auto refused_index = [&](const std::string& file) {
    json other = map;
    other["transformer.wte.weight"] = file;
    write_file(index, json{{"weight_map", other}}.dump());
    return checked(zerograd(train_from_hf(folder, parts, "--steps 0")), 5).error;
  };
  for (const std::string& path : {gpt2_fixture + "/model.safetensors", std::string("../x"),
                                  std::string(".."), std::string("")})
    CHECK(contains(refused_index(path), "expected the name of a file beside it"));
  CHECK(contains(refused_index("absent"), "has no absent; expected it, because"));
  CHECK(contains(refused_index("model-00001.safetensors"),
                 "'transformer.wte.weight' [61, 8]; the index says that model-00001.safetensors"));

  const Outcome shorter =
      checked(zerograd(train_from_hf(folder, gpt2_fixture, "--steps 1 --block-size 8")));
  CHECK(contains(shorter.error, "note: " + gpt2_fixture + " has 16 positions; the first 8 are"));
}

TEST_CASE("--from-hf refuses a folder that is not a supported GPT-2, and the error says why") {
  const TemporaryFolder folder;
  const auto refused = [&](int status, const std::string& from, const std::string& flags,
                           const std::string& what) {
    CHECK(contains(
        checked(zerograd(train_from_hf(folder, from, "--steps 0 " + flags)), status).error, what));
  };
  refused(5, folder / "absent", "", "absent: there is no such folder");
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
  refused(
      5, hf, "",
      "unexpected tensor 'transformer.h.1.attn.c_attn.bias' for a GPT-2 of 1 blocks (config.json)");
  // The commands that only read a folder make the same check.
  for (const std::string& line :
       {"eval " + hf + " --block-size 4 --data " + write_tokens(folder, {.vocabulary = 61}),
        "generate " + hf + " --prompt 1", "export " + hf + " --hf " + (folder / "out"),
        "consolidate " + hf + " " + (folder / "file")}) {
    CAPTURE(line);
    check_refused(line, 5, "for a GPT-2 of 1 blocks (config.json)");
  }
  config["attn_pdrop"] = 0.0;
  write_file(hf + "/config.json", config.dump());
  refused(6, hf, "", "resid_pdrop, embd_pdrop and attn_pdrop differ");
  refused(2, gpt2_fixture, "--n-layer 2 --n-head 2 --n-embd 8", "--n-layer: " + gpt2_fixture);
  refused(2, gpt2_fixture, "--untied", "--untied: " + gpt2_fixture);
  for (const char* flag : {"--norm-epsilon", "--rotary-base", "--num-query-groups", "--kv-channels",
                           "--ffn-hidden-size", "--sliding-window"})
    refused(2, gpt2_fixture, std::string(flag) + " 3",
            std::string(flag) + ": " + gpt2_fixture + " defines the model");
  refused(2, gpt2_fixture, "--block-size 17", "expected at most the 16 positions");
  refused(2, gpt2_fixture, "--init x", "expected one of --init and --from-hf");
  checked(zerograd("export absent --hf " + (folder / "out")), 5);
  checked(zerograd("export absent"), 2);
}

TEST_CASE(
    "--from-hf reads a text with the folder's tokenizer, and refuses a different one or none") {
  const TextCase a;
  const std::string save = a.folder / "save";
  const Outcome own = a.from_hf("--data " + a.text + " --save " + save);
  CAPTURE(own.error);
  CHECK(own.status == 0);
  CHECK(contains(own.error, " tokens; tokens: tokenizer " + a.hf + ", vocabulary 280\n"));
  const Outcome named = a.from_hf("--data " + a.text + " --tokenizer " + a.tokenizer);
  CHECK(line_after(named.out, "param_hash ") == line_after(own.out, "param_hash "));
  CHECK(zerograd({"generate", save, "--prompt", "the dög", "--length", "0"}).out == "the dög\n");
  // A token beyond the model's table is not an error in a text without it.
  const std::string exported = a.folder / "exported", more = a.folder / "more.txt";
  json grown = json::parse(read_file(a.hf + "/tokenizer.json"));
  grown["added_tokens"].push_back({{"id", 280}, {"content", "<extra>"}, {"special", true}});
  write_file(a.hf + "/tokenizer.json", grown.dump());
  CHECK(line_after(a.from_hf("--data " + a.text).out, "param_hash ") ==
        line_after(own.out, "param_hash "));
  write_file(more, TextCase::lines() + "sea\n<extra>\n");
  const std::string beyond = "'<extra>' in line 62 of the text is the token 280; expected tokens";
  check_refused("train --from-hf " + a.hf + " --steps 1 --data " + more, 2, more + ": " + beyond);
  check_refused("eval " + a.hf + " --data " + more, 2, more + ": " + beyond);
  check_refused("generate " + a.hf + " --prompt <extra>", 2, "--prompt: '<extra>' in line 1");
  hash_of("export " + a.hf + " --hf " + exported);
  CHECK(json::parse(read_file(exported + "/tokenizer.json")).at("added_tokens").size() ==
        grown.at("added_tokens").size());

  fs::remove(a.hf + "/tokenizer.json");  // vocab.json and merges.txt say the same
  CHECK(line_after(a.from_hf("--data " + a.text).out, "param_hash ") ==
        line_after(own.out, "param_hash "));

  // Another one, whose ids are other tokens.
  const std::string other = a.folder / "other";
  models::save_tokenizer(models::train_tokenizer("sea sea sea", {.vocabulary = 258}), other);
  const Outcome differs = a.from_hf("--data " + a.text + " --tokenizer " + other);
  CHECK(differs.status == 2);
  CHECK(contains(differs.error, other + " is not the tokenizer of " + a.hf + ": token 257 is '"));

  // Digits and the numbers of a file do without.
  const Outcome sort = a.from_hf("--data sort --block-size 11 --score-samples 0");
  CHECK(sort.status == 0);
  CHECK(contains(sort.error, "note: the tokenizer of " + a.hf +
                                 " is not used: the tokens of sort are digits\n"));
  CHECK(contains(sort.error, "; tokens: digits\n"));

  a.forget_tokenizer();
  const Outcome none = a.from_hf("--data " + a.text);
  CHECK(none.status == 2);
  CHECK(contains(none.error, "--data: without a tokenizer " + a.text +
                                 " is read as its 29 "
                                 "characters, and the model of " +
                                 a.hf + " knows 280 tokens"));
  CHECK(contains(none.error, "try --tokenizer PATH"));
  checked(zerograd("eval " + a.hf + " --data " + a.text), 2);
  checked(zerograd("generate " + a.hf + " --prompt the --data " + a.text), 2);
  CHECK(a.from_hf("--data " + a.text + " --tokenizer " + a.tokenizer).status == 0);

  write_file(a.hf + "/tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  CHECK(a.from_hf("--data " + a.text).status == 6);
  const Outcome numbers =
      a.from_hf("--val-fraction 0 --data " + write_tokens(a.folder, {.vocabulary = 61}));
  CHECK(numbers.status == 0);
  CHECK(contains(numbers.error, "note: the tokenizer of " + a.hf + " is not kept: "));
  CHECK(contains(numbers.error, "model.type is \"WordPiece\""));
  CHECK(contains(numbers.error, "; tokens: numbers\n"));
}

TEST_CASE(
    "--from-hf without a tokenizer takes characters as tokens if their number is equal, with a "
    "note") {
  const TextCase a;
  const std::string save = a.folder / "save", out = a.folder / "out";
  hash_of(TextCase::model(" --data " + a.text + " --save " + save));
  hash_of("export " + save + " --hf " + out);
  for (const char* absent : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(!fs::exists(out + "/" + absent));
  for (const char* file : {"config.json", "generation_config.json"}) {
    const json written = json::parse(read_file(out + "/" + file));
    CHECK(written.value("eos_token_id", json()) == nullptr);
    CHECK(written.value("bos_token_id", json()) == nullptr);
  }
  const Outcome again =
      checked(zerograd("train --from-hf " + out + " --steps 0 --log-interval 0 --data " + a.text));
  CHECK(contains(again.error, "note: " + out +
                                  " does not define its 29 tokens; the characters of " + a.text +
                                  " are used as tokens\n"));
  CHECK(contains(again.error, "; tokens: 29 characters\n"));
}

TEST_CASE(
    "export keeps the BOS and EOS tokens of a Hugging Face folder, or takes the tokenizer's") {
  const TextCase a;
  const auto exported = [&](const std::string& checkpoint, const std::string& name) {
    const std::string out = a.folder / name;
    hash_of("export " + checkpoint + " --hf " + out);
    const json config = json::parse(read_file(out + "/config.json")),
               generation = json::parse(read_file(out + "/generation_config.json")),
               tokenizer = json::parse(read_file(out + "/tokenizer_config.json"));
    for (const char* key : {"bos_token_id", "eos_token_id"})
      CHECK(config.at(key) == generation.at(key));
    const json& eos = config.at("eos_token_id");
    CHECK(tokenizer.at("eos_token") ==
          a.own.parts().tokens[(eos.is_array() ? eos.front() : eos).get<size_t>()]);
    return config.at("bos_token_id").dump() + " " + config.at("eos_token_id").dump();
  };
  const std::string imported = a.folder / "imported", further = a.folder / "further";
  CHECK(a.from_hf("--data " + a.text + " --save " + imported).status == 0);
  CHECK(exported(imported, "out1") == "4 5");
  hash_of("train --resume " + imported + " --steps 2 --log-interval 0 --save " + further);
  CHECK(exported(further, "out2") == "4 5");
  CHECK(exported(a.folder / "out2", "out3") == "4 5");
  write_file(a.hf + "/generation_config.json", R"({"eos_token_id": [7, 5]})");
  CHECK(exported(a.hf, "out4") == "4 [7,5]");

  const std::string trained = a.folder / "trained";
  hash_of(
      TextCase::model(" --data " + a.text + " --tokenizer " + a.tokenizer + " --save " + trained));
  CHECK(exported(trained, "out5") == "0 0");  // its one added token: <|endoftext|>
}

TEST_CASE(
    "eval, generate, export and consolidate take a Hugging Face folder in place of a checkpoint") {
  const TextCase a;
  const std::string save = a.folder / "save", out = a.folder / "out";
  // The same model as a checkpoint says the same.
  const std::string hash = hash_of("train --from-hf " + a.hf + " --steps 0 --save " + save);
  const std::string loss =
      line_after(zerograd("eval " + save + " --data " + a.text).out, "val loss ");
  CHECK(loss.size() == 6);
  CHECK(line_after(zerograd("eval " + a.hf + " --data " + a.text).out, "val loss ") == loss);
  const std::vector<std::string> words = {"--prompt", "the dög", "--length", "20"};
  const auto said = [&](const std::string& what) {
    std::vector<std::string> line = {"generate", what};
    line.insert(line.end(), words.begin(), words.end());
    const Outcome outcome = checked(zerograd(line));
    CHECK(outcome.out.starts_with("the dög"));
    return outcome.out;
  };
  CHECK(said(a.hf) == said(save));
  CHECK(hash_of("export " + a.hf + " --hf " + out) == hash);
  CHECK(said(out) == said(save));
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::string file = a.folder / dtype, theirs = a.folder / ("hf_" + dtype);
    const std::string expected = hash_of("consolidate " + save + " " + file + " --dtype " + dtype);
    CHECK(hash_of("consolidate " + a.hf + " " + theirs + " --dtype " + dtype) == expected);
    CHECK(said(theirs) == said(file));
  }

  // Shorter sequences than its positions, for a short text.
  const std::string text = a.folder / "short.txt";
  write_file(text, TextCase::lines().substr(0, 60));
  const std::string eval = "eval " + a.hf + " --val-fraction 0.5 --data " + text;
  checked(zerograd(eval), 2);
  checked(zerograd(eval + " --block-size 4"));

  const auto refused = [](int status, const std::string& line, const std::string& what) {
    CAPTURE(line);
    CHECK(contains(checked(zerograd(line), status).error, what));
  };
  refused(2, eval + " --block-size 17", "--block-size: expected at most the model's 16 positions");
  refused(2, "eval " + a.hf, a.hf + " does not name its data");
  refused(2, "generate " + a.hf + " --prompt a --n-head 2", "defines the model");
  refused(2, "export " + a.hf + " --hf " + a.hf + "/.", "CHECKPOINT and --hf: both name ");
  refused(2, "train --data " + a.text + " --init " + a.hf,
          "is a Hugging Face folder; try --from-hf");
  refused(2, "train --resume " + a.hf, "is a Hugging Face folder; try --from-hf");
  // A config.json beside checkpoints does not make a Hugging Face folder.
  refused(2, "export " + save + " --hf " + save, "/step_0 in it, which is read");
  write_file(save + "/config.json", read_file(a.hf + "/config.json"));
  CHECK(said(save) == said(a.hf));
  CHECK(hash_of("train --steps 1 --log-interval 0 --resume " + save + " --data " + a.text).size() ==
        32);
  edit_json(a.hf + "/config.json", [](json& all) { all["attn_pdrop"] = 0.5; });
  CHECK(contains(checked(zerograd("export " + a.hf + " --hf " + (a.folder / "one_dropout"))).error,
                 "note: " + a.hf + ": resid_pdrop, embd_pdrop and attn_pdrop differ"));
}

TEST_CASE(
    "a Hugging Face folder becomes a checkpoint without data, which trains once --data is given") {
  const TextCase a;
  const std::string save = a.folder / "save", direct = a.folder / "direct";
  const Outcome imported =
      checked(zerograd("train --from-hf " + a.hf + " --steps 0 --save " + save));
  CHECK(contains(imported.error, "no data; tokens: tokenizer " + a.hf + ", vocabulary 280\n"));
  CHECK(contains(imported.out, "saved " + save + "/step_0\n"));
  check_refused("train --resume " + save, 2,
                save + "/step_0 was made without data; try --data PATH");
  const std::string further = " --steps 2 --batch-size 4 --log-interval 0 --data " + a.text;
  const Outcome resumed = checked(zerograd("train --resume " + save + further));
  CHECK(!contains(resumed.error, "data.source"));  // there was none to change
  CHECK(line_after(resumed.out, "param_hash ") == hash_of("train --from-hf " + a.hf + further));
  checked(zerograd("train --from-hf " + a.hf + " --steps 1"), 2);
  checked(zerograd("train --from-hf " + a.hf + " --steps 0 --epochs 1"), 2);
  CHECK(contains(checked(zerograd("plan --batch-size 1 --from-hf " + a.hf)).out, "peak "));
}

}  // namespace zg::testing
