#include <cmath>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"

// Adapters from the command line. The bases are fixtures of tests/reference/make_llama_fixtures.py.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string llama_base = std::string(ZG_FIXTURES) + "hf_llama";
const std::string hf_other = std::string(ZG_FIXTURES) + "hf_chat";

std::string data_flags(const TemporaryFolder& folder) {
  return "--data " + write_tokens(folder, {.vocabulary = 61, .count = 400}) +
         " --order sequential --log-interval 0 ";
}

/// Trains adapters of every layer of the fixture, with 8 samples in a step.
std::string train_adapters(const TemporaryFolder& folder, const std::string& flags) {
  return "train " + data_flags(folder) + "--from-hf " + llama_base +
         " --block-size 16 --lora 4 --lora-alpha 16 --lora-targets all-linear --lora-dropout 0.1 "
         "--lr 0.01 --train-batch-size 8 " +
         flags;
}

json manifest_of(const std::string& step_n) {
  return json::parse(read_file(step_n + "/manifest.json"));
}

}  // namespace

TEST_CASE("adapters train to one hash with every stage, offload, axis and restart") {
  for (const std::string precision : {"f32", "bf16"}) {
    CAPTURE(precision);
    const TemporaryFolder folder;
    const std::string own = " --steps 4 --precision " + precision +
                            " --param-persistence-threshold 1 --nvme-path " + folder.path() + " ";
    const auto run = [&](const std::string& flags) {
      return hash_of(train_adapters(folder, own + flags));
    };
    const std::string expected = run("--batch-size 2");
    CHECK(expected != hash_of(train_adapters(folder, own + "--batch-size 2 --steps 3")));
    CHECK(expected != run("--batch-size 2 --lora-dropout 0"));
    const char* const layouts[] = {
        "--activation-checkpoint",
        "--ranks 2 --zero-stage 1",
        "--ranks 2 --zero-stage 3",
        "--ranks 4 --zero-stage 2",
        "--zero-stage 3 --offload-param host --offload-optimizer host",
        "--ranks 2 --zero-stage 3 --offload-param nvme --offload-optimizer nvme "
        "--offload-gradients host",
        "--ranks 2 --pipeline-parallel 2",
        "--ranks 4 --pipeline-parallel 2 --zero-stage 3"};
    // Each with one precision.
    for (size_t i = precision == "f32" ? 0 : 1; i < std::size(layouts); i += 2) {
      CAPTURE(layouts[i]);
      CHECK(run(std::string("--batch-size 2 ") + layouts[i]) == expected);
    }
    const std::string save = folder / "half";
    hash_of(train_adapters(folder, own + "--batch-size 2 --steps 2 --save " + save));
    for (const char* flags : {"--ranks 1", "--ranks 2 --zero-stage 3 --offload-param host"}) {
      CAPTURE(std::string(flags));
      CHECK(hash_of("train --log-interval 0 --steps 4 --param-persistence-threshold 1 --resume " +
                    save + " " + flags) == expected);
    }
  }
}

TEST_CASE("a plan with adapters is the run to the byte, and less than full training") {
  const TemporaryFolder folder;
  for (const char* flags :
       {"--precision bf16 --batch-size 4", "--batch-size 4 --ranks 2 --zero-stage 3",
        "--batch-size 4 --zero-stage 3 --offload-param host --precision bf16",
        "--batch-size 2 --ranks 2 --pipeline-parallel 2 --activation-checkpoint"}) {
    const std::string more = std::string("--steps 3 --param-persistence-threshold 1 ") + flags;
    check_plan_is_run(train_adapters(folder, more).substr(5));
  }
  // Full training has sums, masters and two moments for every parameter.
  const auto resting = [&](const std::string& flags) {
    const std::string path = folder / "resting";
    checked(
        zerograd("plan --model-type smollm2-135m --block-size 64 --batch-size 1 --precision "
                 "bf16 --memory-json " +
                 path + flags));
    const json rest = json::parse(read_file(path)).at("ranks").at(0).at("rest");
    return rest.at("parameter").get<int64_t>() + rest.at("gradient").get<int64_t>() +
           rest.at("optimizer").get<int64_t>();
  };
  const int64_t adapters = resting(" --lora 8"), whole = resting("");
  CHECK(adapters * 6 < whole);  // 2 bytes of a parameter and little more, of 18
}

TEST_CASE("a checkpoint of adapters has no weight of the base, and finds it again") {
  const TemporaryFolder folder;
  const std::string base = folder / "base", save = folder / "save";
  fs::copy(llama_base, base);
  const std::string run =
      "train " + data_flags(folder) + "--from-hf " + base + " --block-size 16 --batch-size 4 ";
  hash_of(run + "--lora 2 --steps 2 --save " + save);
  const json manifest = manifest_of(save + "/step_2");
  CHECK(manifest.at("base").at("path") == base);
  CHECK(manifest.at("base").at("hash") == hash_of(run + "--steps 0"));
  CHECK(manifest.at("parameters").size() == 8);  // A and B of q_proj and v_proj in two layers
  for (const auto& [name, shape] : manifest.at("parameters").items())
    CHECK(name.find(".lora_") != std::string::npos);
  checked(zerograd("verify " + save));
  const std::string resume = "train --log-interval 0 --batch-size 4 --steps 3 --resume " + save;
  hash_of(resume);
  // A flag may repeat what the checkpoint has.
  hash_of(resume + " --lora 2 --lora-targets q_proj,v_proj");
  check_refused(resume + " --lora 3", 2, "run.lora_rank: expected 2 as in the checkpoint, got 3");
  check_refused(resume + " --lora-alpha 3", 2, "run.lora_alpha: expected 8.0");
  check_refused(resume + " --lora-targets q_proj", 2,
                "run.lora_targets: expected \"q_proj,v_proj\"");
  check_refused(resume + " --rslora", 2, "run.rslora: expected false");

  // Nothing is written over the base.
  const std::string weights = base + "/model-00001-of-00004.safetensors",
                    bytes_before = read_file(weights);
  check_refused("export " + save + " --merge --hf " + base, 2,
                "the adapters' base and --hf: both name ");
  check_refused("export " + save + " --merge --gguf " + weights, 2, "which is read; expected a");
  check_refused("export " + base + " --gguf " + weights, 2, "CHECKPOINT and --gguf: ");
  check_refused("consolidate " + base + " " + weights, 2, "FROM and TO: ");
  check_refused(run + "--lora 2 --steps 1 --save " + base, 2, "--from-hf and --save: both name ");
  CHECK((read_file(weights) == bytes_before));

  fs::remove_all(base);
  check_refused(resume, 5, "base: " + base + ", the weights that the adapters are trained for");
  check_refused(resume, 5, "try --base PATH with the path where they are now");
  fs::copy(llama_base, base);
  edit_json(base + "/config.json", [](json& all) { all["rms_norm_eps"] = 0.25; });
  check_refused("eval " + save, 5, "describes another model than the one that the adapters are");
  check_refused("eval " + save, 5, "rms_norm_eps is 0.25, expected");
  fs::remove_all(base);
  fs::copy(llama_base, base);
  for (const auto& file : fs::directory_iterator(base)) {
    if (file.path().extension() != ".safetensors") continue;
    std::string bytes = read_file(file.path().string());
    bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
    write_file(file.path().string(), bytes);
  }
  const std::string changed = hash_of(run + "--steps 0");
  const std::string refusal = "base: " + base + ": the weights have the hash " + changed +
                              "; expected " + manifest.at("base").at("hash").get<std::string>();
  check_refused(resume, 5, refusal);
  check_refused("eval " + save, 5, refusal);
  check_refused("export " + save + " --merge --hf " + (folder / "merged"), 5, refusal);
}

TEST_CASE("the base of adapters may move, and is known by its hash") {
  const TemporaryFolder folder;
  const std::string base = folder / "base", moved = folder / "moved", save = folder / "save";
  fs::copy(llama_base, base);
  hash_of("train " + data_flags(folder) + "--from-hf " + base +
          " --block-size 16 --batch-size 4 --lora 2 --steps 2 --save " + save);
  const std::string resume =
      "train --log-interval 0 --steps 3 --save " + save + " --resume " + save;
  const std::string expected = hash_of("train --log-interval 0 --steps 3 --resume " + save);
  const std::string loss = line_after(zerograd("eval " + save).out, "val loss ");
  fs::rename(base, moved);
  check_refused("eval " + save, 5, "base: " + base + ", the weights");
  CHECK(line_after(zerograd("eval " + save + " --base " + moved).out, "val loss ") == loss);
  checked(zerograd("export " + save + " --base " + moved + " --merge --hf " + folder / "merged"));
  check_refused("export " + save + " --base " + moved + " --merge --hf " + moved, 2,
                "--base and --hf: both name ");
  check_refused("eval " + save + " --base " + hf_other, 5, "describes another model");
  check_refused("eval " + moved + " --base " + moved, 2,
                "--base: " + moved + " has a whole model, not adapters");
  check_refused("train --data sort --steps 1 --base " + moved, 2, "--base: expected --resume");
  CHECK(hash_of(resume + " --base " + moved) == expected);
  CHECK(manifest_of(save + "/step_3").at("base").at("path") == moved);
  checked(zerograd("eval " + save));  // the next checkpoint names the new path
}

TEST_CASE("a moved base that is a run's step is found among that run's later steps") {
  const TemporaryFolder folder;
  const std::string whole = folder / "whole", moved = folder / "moved", save = folder / "save";
  const std::string model = "train " + data_flags(folder) +
                            "--model-type llama --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 "
                            "--batch-size 4 ";
  hash_of(model + "--steps 1 --save " + whole);
  hash_of(model + "--init " + whole + " --lora 2 --steps 1 --save " + save);
  fs::rename(whole, moved);
  const std::string resume =
      "train --log-interval 0 --save " + save + " --resume " + save + " --steps ";
  hash_of(resume + "2 --base " + moved);
  CHECK(manifest_of(save + "/step_2").at("base").at("path") == moved + "/step_1");
  hash_of("train --log-interval 0 --save-top-k -1 --steps 2 --save " + moved + " --resume " +
          moved);
  hash_of(resume + "3");
  checked(zerograd("eval " + save + " --base " + moved));
}

TEST_CASE("one command line with --resume auto begins with --from-hf, and then goes on") {
  const TemporaryFolder folder;
  const std::string save = folder / "save";
  const std::string line = "train " + data_flags(folder) + "--from-hf " + llama_base +
                           " --block-size 16 --batch-size 4 --lora 2 --resume auto --save " + save;
  hash_of(line + " --steps 2");
  const Outcome again = checked(zerograd(line + " --steps 3"));
  CHECK(contains(again.error, "resumed " + save + "/step_2"));
  CHECK(hash_of(again) == hash_of("train " + data_flags(folder) + "--from-hf " + llama_base +
                                  " --block-size 16 --batch-size 4 --lora 2 --steps 3"));
}

TEST_CASE("adapters go to PEFT's format and back, and into merged weights") {
  const TemporaryFolder folder;
  const std::string save = folder / "save", peft = folder / "peft", merged = folder / "merged",
                    again = folder / "again", eval = " --batch-size 4 ";
  const std::string hash =
      hash_of(train_adapters(folder, "--batch-size 4 --steps 5 --save " + save));
  const auto loss = [&](const std::string& words) {
    const Outcome outcome =
        checked(zerograd("eval " + words + eval + "--data " + folder / "tokens.bin"));
    return std::stod(line_after(outcome.out, "val loss "));
  };
  const double base_loss = loss(llama_base + " --block-size 16"), own_loss = loss(save);
  CHECK(own_loss < base_loss - 0.05);
  checked(zerograd("export " + save + " --peft " + peft));
  CHECK(models::open_peft(peft).lora.rank == 4);
  CHECK(models::open_peft(peft).base == llama_base);
  CHECK(loss(llama_base + " --block-size 16 --adapter " + peft) == own_loss);
  checked(zerograd("export " + save + " --merge --hf " + merged));
  // Printed with four decimals.
  CHECK(std::fabs(loss(merged + " --block-size 16") - own_loss) < 2e-4);
  checked(zerograd("export " + llama_base + " --adapter " + peft + " --merge --hf " + again));
  CHECK(read_file(again + "/model.safetensors") == read_file(merged + "/model.safetensors"));

  // A run that starts from the folder starts with these adapters; alpha and targets are the
  // folder's.
  const std::string start = "train " + data_flags(folder) + "--from-hf " + llama_base +
                            " --block-size 16 --batch-size 4 --init-adapter " + peft;
  CHECK(hash_of(start + " --steps 0") == hash);
  hash_of(start + " --steps 1 --lora 4 --lora-dropout 0.2");
  check_refused(start + " --steps 1 --lora 8", 2, "--lora: " + peft + " says another value");
  checked(zerograd({"generate", save, "--prompt", "1 2 3", "--length", "4"}));

  check_refused("export " + save + " --hf " + merged, 2, "expected --merge with it");
  check_refused("export " + llama_base + " --merge --hf " + merged, 2, "has no adapters");
  check_refused("export " + llama_base + " --peft " + peft, 2, "has no adapters");
  check_refused("consolidate " + save + " " + (folder / "file"), 2, "has adapters alone, of");
  check_refused("eval " + save + " --adapter " + peft, 2, "has adapters itself");
  check_refused("train " + data_flags(folder) + "--init " + save + " --block-size 16 --steps 1", 2,
                "--init: ");
}

TEST_CASE("a GPT-2 merged with adapters of fewer positions keeps all of the base, in any dtype") {
  const TemporaryFolder folder;
  const std::string base = std::string(ZG_FIXTURES) + "hf_gpt2", save = folder / "save",
                    merged = folder / "merged";
  hash_of("train " + data_flags(folder) + "--from-hf " + base +
          " --block-size 8 --batch-size 4 --lora 2 --lr 0.01 --steps 1 --save " + save);
  hash_of("export " + save + " --merge --hf " + merged + " --dtype bf16");
  const SafetensorsReader ours(merged + "/model.safetensors"), theirs(base + "/model.safetensors");
  const std::string table = "transformer.wpe.weight";
  CHECK(ours.entries().at(table).dtype == DType::bf16);
  std::vector<float> expected = theirs.read_floats(table);
  for (float& value : expected) value = static_cast<float>(bf16(value));
  CHECK(ours.read_floats(table) == expected);
  CHECK(json::parse(read_file(merged + "/config.json")).at("n_positions") == 16);
  check_refused("export " + save + " --merge --hf " + merged + " --dtype q8_0", 2,
                "expected f32, f16 or bf16 for --hf, got q8_0");
  check_refused("export " + save + " --peft " + merged + " --dtype bf16", 2,
                "--dtype: adapters are written in f32");
}

TEST_CASE("flags of adapters without adapters or without a base are refused") {
  const TemporaryFolder folder;
  const std::string run = "train --data sort --steps 1 ";
  check_refused(run + "--lora 2", 2, "--lora: adapters are trained for a model that has weights");
  for (const char* flag :
       {"--lora-alpha 2", "--lora-dropout 0.1", "--lora-targets c_fc", "--rslora"})
    check_refused(run + flag, 2, "expected --lora RANK with it, got none");
  check_refused(train_adapters(folder, "--steps 1 --lora-targets c_attn"), 2,
                "lora: targets: 'c_attn' names no linear layer of the model; expected some of "
                "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, or all-linear");
  check_refused(
      "train --data x.jsonl --from-hf " + std::string(ZG_FIXTURES) + "hf_bart --lora 2 --steps 1",
      6, "--lora: an encoder-decoder has no adapters here");
}

TEST_CASE("a base may be a checkpoint or a file of weights") {
  const TemporaryFolder folder;
  const std::string model =
      "train --data sort --n-layer 1 --n-head 2 --n-embd 16 --batch-size 4 "
      "--score-samples 0 --log-interval 0 ";
  const std::string base = folder / "base", file = folder / "base.safetensors";
  hash_of(model + "--steps 2 --save " + base);
  hash_of("consolidate " + base + " " + file);
  const std::string from_checkpoint = folder / "one", from_file = folder / "two";
  const std::string hash =
      hash_of(model + "--init " + base + " --lora 2 --steps 3 --save " + from_checkpoint);
  CHECK(hash == hash_of(model + "--init " + file + " --lora 2 --steps 3 --save " + from_file));
  CHECK(manifest_of(from_checkpoint + "/step_3").at("base").at("path") == base + "/step_2");
  CHECK(manifest_of(from_checkpoint + "/step_3").at("base").at("hash") ==
        manifest_of(from_file + "/step_3").at("base").at("hash"));
  for (const std::string& save : {from_checkpoint, from_file}) {
    CHECK(hash_of("train --score-samples 0 --log-interval 0 --resume " + save) == hash);
    checked(zerograd("eval --score-samples 50 " + save));
  }
}

}  // namespace zg::testing
