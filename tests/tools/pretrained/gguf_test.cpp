#include "tests/models/gguf/gguf_reader.h"
#include "tests/support/error_message.h"
#include "tests/tools/command.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/file_io.h"

// export --gguf. tests/models/gguf checks the files' contents.
using namespace zg;
using namespace zg::testing;

namespace {

const std::string gguf_run =
    " --n-layer 1 --n-head 2 --n-embd 32 --num-query-groups 1 --intermediate-size 64 --steps 2 "
    "--batch-size 2 --threads 1 --score-samples 0 --log-interval 0 --model-type ";

std::string gguf_hash(const std::string& line) { return hash_of(line); }

}  // namespace

TEST_CASE(
    "export --gguf writes a trained model and its tokenizer, and prints the hash of the weights") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog\n";
  write_file(folder / "text.txt", text);
  const std::string tokenizer = folder / "tokenizer", save = folder / "run",
                    file = folder / "out" + "/fox.gguf";
  models::save_tokenizer(models::train_tokenizer(text, {.vocabulary = 280}), tokenizer);
  const std::string hash =
      gguf_hash("train --data " + folder / "text.txt" + " --tokenizer " + tokenizer +
                " --block-size 16 --save " + save + gguf_run + "llama");
  for (const std::string dtype : {"", " --dtype q8_0", " --dtype bf16"}) {
    CAPTURE(dtype);
    CHECK(gguf_hash("export " + save + " --gguf " + file + dtype) == hash);
    const GGUFContents gguf(file);
    CHECK(gguf.text_of("general.name") == "fox");
    CHECK(gguf.text_of("tokenizer.ggml.pre") == "gpt-2");
    CHECK(gguf.at<std::vector<std::string>>("tokenizer.ggml.tokens")[0] == "<|endoftext|>");
    CHECK(gguf.count_of("tokenizer.ggml.eos_token_id") == 0);
    const uint32_t type = dtype.empty() ? 0 : dtype.ends_with("q8_0") ? 8 : 30;
    CHECK(gguf.tensors.at("blk.0.ffn_down.weight").type == type);
  }
  // A folder also has a chat template, and another tokenizer is refused.
  write_file(tokenizer + "/chat_template.jinja", "{{ messages }}");
  CHECK(gguf_hash("export " + save + " --gguf " + file + " --tokenizer " + tokenizer) == hash);
  CHECK(GGUFContents(file).text_of("tokenizer.chat_template") == "{{ messages }}");
  CHECK(gguf_hash("export " + save + " --gguf " + file + " --tokenizer none") == hash);
  CHECK(GGUFContents(file).text_of("tokenizer.ggml.model") == "none");
  const std::string other = std::string(ZG_FIXTURES) + "tokenizer/gpt2";
  check_refused("export " + save + " --gguf " + file + " --tokenizer " + other, 2,
                "is not the tokenizer");
  // A model exported to transformers and read from there is the same file.
  const std::string hf = folder / "hf", again = folder / "again" + "/fox.gguf";
  gguf_hash("export " + save + " --hf " + hf);
  CHECK(gguf_hash("export " + save + " --gguf " + file) == hash);
  CHECK(gguf_hash("export " + hf + " --gguf " + again) == hash);
  CHECK((read_file(again) == read_file(file)));
  // A token that only a file beside tokenizer.json names is a control token.
  write_file(hf + "/tokenizer_config.json", R"({"additional_special_tokens": ["q"]})");
  CHECK(gguf_hash("export " + hf + " --gguf " + again) == hash);
  const GGUFContents named(again);
  const auto tokens = named.at<std::vector<std::string>>("tokenizer.ggml.tokens");
  const auto q = std::ranges::find(tokens, "q") - tokens.begin();
  CHECK(named.at<std::vector<int32_t>>("tokenizer.ggml.token_type").at(q) == 3);
}

TEST_CASE("export --gguf says what a file lacks, and refuses what llama.cpp does not have") {
  const TemporaryFolder folder;
  const std::string llama = folder / "llama", gpt = folder / "gpt", file = folder / "x.gguf";
  gguf_hash("train --data sort --save " + llama + gguf_run + "llama");
  gguf_hash(
      "train --data sort --n-layer 1 --n-head 2 --n-embd 8 --steps 1 --log-interval 0 "
      "--score-samples 0 --save " +
      gpt);
  const Outcome plain = checked(zerograd("export " + llama + " --gguf " + file));
  CHECK(contains(plain.error, "note: the file has no tokenizer"));
  const std::string bytes = read_file(file);
  const auto refused = [&](int status, const std::string& arguments, const std::string& words) {
    CAPTURE(arguments);
    CHECK(contains(checked(zerograd("export " + arguments), status).error, words));
    CHECK((read_file(file) == bytes));
  };
  refused(6, gpt + " --gguf " + file, "gguf: the family is GPT-2; expected Llama, Mistral, Qwen2");
  refused(6, std::string(ZG_FIXTURES) + "hf_bart --gguf " + file, "has an encoder-decoder");
  refused(2, llama + " --gguf " + file + " --dtype q4_0", "--dtype: expected");
  refused(2, llama + " --gguf " + file + " --hf " + folder / "hf",
          "expected one of --hf, --gguf and --peft");
  refused(2, llama, "try --hf DIR, --gguf FILE or --peft DIR");
  refused(2, llama + " --hf " + folder / "hf" + " --dtype q8_0",
          "--dtype: expected f32, f16 or bf16 for --hf, got q8_0; try --gguf FILE");
  refused(2, llama + " --gguf " + llama + "/step_2/x.gguf", "step_2");
  refused(2, llama + " --gguf " + folder.path(), "CHECKPOINT and --gguf: ");
  refused(5, llama + " --gguf " + gpt, "is a folder; expected the path of a file");
  refused(5, llama + " --gguf " + file + "/x.gguf", "x.gguf");
  refused(5, folder / "absent" + " --gguf " + file, "absent");
}
