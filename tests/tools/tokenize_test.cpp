#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

namespace zg::testing {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const std::string gpt2 = std::string(ZG_FIXTURES) + "tokenizer/gpt2";

std::vector<Ids> documents_of(const std::string& prefix) {
  const models::IndexedDataset data(models::indexed_files(prefix));
  std::vector<Ids> documents;
  for (int64_t i = 0; i < data.sequences(); ++i) {
    documents.emplace_back(static_cast<size_t>(data.size(i)));
    data.read(i, 0, documents.back());
  }
  return documents;
}

}  // namespace

TEST_CASE("tokenize writes a document for each text and each line of JSON, in their order") {
  const TemporaryFolder folder;
  const std::string first = "Hello, world.\nAnd again: hello!\n", second = "na\u00efve caf\u00e9";
  write_file(folder / "a.txt", first);
  write_file(folder / "b.jsonl",
             "{\"text\": \"na\\u00efve caf\\u00e9\", \"id\": 1}\r\n\n{\"id\": 2, \"text\": \"\"}\n"
             "{\"text\": \"last\"}");
  const models::Tokenizer tokenizer = models::load_tokenizer(gpt2);
  const Ids end = {tokenizer.id_of_added("<|endoftext|>").value()};
  const auto ended = [&](Ids ids) { return ids.insert(ids.end(), end.begin(), end.end()), ids; };
  const std::vector<Ids> expected = {tokenizer.encode(first), tokenizer.encode(second),
                                     tokenizer.encode("last")};

  const std::string inputs = "tokenize " + (folder / "a.txt") + " " + (folder / "b.jsonl");
  const std::string out = folder / "data";
  const Outcome outcome = checked(zerograd(inputs + " --tokenizer " + gpt2 + " --out " + out));
  CHECK(documents_of(out) == expected);
  CHECK(outcome.out.find("saved " + out + ".bin and " + out + ".idx: 3 documents, ") !=
        std::string::npos);
  CHECK(outcome.out.find("; 1 empty left out") != std::string::npos);

  // In Megatron's spellings, from GPT-2's two files, by one thread.
  checked(zerograd("tokenize --input " + (folder / "b.jsonl") +
                   " --json-keys text --tokenizer-type GPT2BPETokenizer --vocab-file " + gpt2 +
                   "/vocab.json --merge-file " + gpt2 +
                   "/merges.txt --append-eod --dataset_impl mmap " +
                   "--workers 1 --output-prefix " + out));
  CHECK(documents_of(out + "_text_document") ==
        std::vector<Ids>{ended(expected[1]), ended(expected[2])});

  // llm.c's file has them end to end.
  Ids all;
  for (const Ids& ids : expected)
    for (int32_t id : ended(ids)) all.push_back(id);
  checked(zerograd(inputs + " --tokenizer " + gpt2 +
                   "/tokenizer.json --append-eod --format llmc --out " + (folder / "c.bin")));
  const std::string bytes = read_file(folder / "c.bin");
  REQUIRE(bytes.size() == 1024 + 2 * all.size());
  for (size_t i = 0; i < all.size(); ++i)
    CHECK(static_cast<unsigned char>(bytes[1024 + 2 * i]) +
              256 * static_cast<unsigned char>(bytes[1025 + 2 * i]) ==
          all[i]);
}

TEST_CASE("Llama's <s> begins each document that is tokenized, trained on or given as a prompt") {
  const TemporaryFolder folder;
  const nlohmann::json record =
      nlohmann::json::parse(read_file(ZG_FIXTURES "tokenizer/families/llama2.json"));
  const std::string path = folder / "tokenizer.json", text = folder / "text.txt";
  write_file(path, record["tokenizer"].dump());
  std::string words;
  for (int i = 0; i < 40; ++i) words += "the quick brown fox jumps over the lazy dog\n";
  write_file(text, words);
  const models::Tokenizer tokenizer = models::load_tokenizer(path);
  const int32_t bos = tokenizer.id_of_added("<s>").value();

  checked(zerograd("tokenize " + text + " " + text + " --tokenizer " + path +
                   " --append-eod --out " + (folder / "data")));
  Ids document = {bos};
  for (const int32_t id : tokenizer.encode(words)) document.push_back(id);
  document.push_back(tokenizer.id_of_added("</s>").value());
  CHECK(documents_of(folder / "data") == std::vector<Ids>{document, document});

  const std::string save = folder / "run", exported = folder / "hf";
  const std::string sizes = " --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4";
  const Outcome trained = checked(zerograd("train --data " + text + " --tokenizer " + path + sizes +
                                           " --steps 2 --save " + save));
  const auto tokens = static_cast<int64_t>(document.size()) - 1, held_out = tokens / 10;
  CHECK(contains(trained.error, std::to_string((tokens - held_out - 1) / 16) + " training and "));
  // <s> is not printed.
  CHECK(checked(zerograd({"generate", save, "--prompt", "the world", "--length", "3"}))
            .out.starts_with("the world"));
  CHECK(zerograd({"generate", save, "--prompt", "the world", "--length", "0"}).out ==
        "the world\n");

  checked(zerograd("export " + save + " --hf " + exported));
  CHECK(models::tokenizer_json(models::load_tokenizer(exported)) ==
        models::tokenizer_json(tokenizer));
  CHECK(!fs::exists(exported + "/vocab.json"));
  const Outcome again = checked(zerograd("train --data " + text + " --from-hf " + exported +
                                         " --block-size 16 --batch-size 4 --steps 1"));
  CHECK(contains(again.error, std::to_string((tokens - held_out - 1) / 16) + " training and "));
}

TEST_CASE("tokenize trains a tokenizer, and train learns from what it wrote") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the " + std::to_string(i % 7) + " men and the women; ";
  write_file(folder / "in.txt", text);
  const std::string out = folder / "data";
  const Outcome outcome =
      checked(zerograd("tokenize " + (folder / "in.txt") + " --tokenizer train:270 --out " + out));
  const models::Tokenizer tokenizer = models::load_tokenizer(out + ".tokenizer");
  CHECK(tokenizer.vocabulary() == 270);
  CHECK(outcome.out.find("saved " + out + ".tokenizer: 270 tokens") != std::string::npos);
  const std::vector<Ids> documents = documents_of(out);
  REQUIRE(documents.size() == 1);
  CHECK(documents[0].size() < text.size() / 2);
  CHECK(tokenizer.decode(documents[0]) == text);
  const std::string train =
      "train --data " + out +
      " --split 1 --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --steps 2 ";
  const std::string hash = hash_of(train + "--vocab-size 270");
  CHECK(hash.size() == 32);
  // The tokenizer knows the vocabulary, and what tokens mean.
  const std::string save = folder / "run";
  CHECK(hash_of(train + "--tokenizer " + out + ".tokenizer --save " + save) == hash);
  const Outcome spoken = checked(zerograd("generate " + save + " --prompt women; --length 3"));
  CHECK(spoken.out.starts_with("women;"));
}

TEST_CASE("tokenize refuses wrong options and inputs by name and leaves no files") {
  const TemporaryFolder folder;
  const std::string text = folder / "in.txt", out = " --out " + (folder / "data");
  const std::string with = " --tokenizer " + gpt2;
  write_file(text, "text");
  check_refused("tokenize" + with + out, 2, "expected texts to tokenize, got none");
  check_refused("tokenize " + text + out, 2, "--tokenizer: expected one of --tokenizer and ");
  check_refused("tokenize " + text + out + with + " --vocab-file v --merge-file m", 2, "got both");
  check_refused("tokenize " + text + out + " --vocab-file v", 2,
                "expected --vocab-file and --merge-file together, got one");
  check_refused("tokenize " + text + with, 2, "--out: expected one of --out and --output-prefix");
  check_refused("tokenize " + text + out + " --tokenizer train:9", 2, "--tokenizer train:SIZE");
  check_refused("tokenize " + text + out + " --tokenizer " + (folder / "none"), 5, folder / "none");
  check_refused("tokenize " + text + out + with + " --eod x", 2, "expected --append-eod with it");
  check_refused("tokenize " + text + out + with + " --append-eod --eod <none>", 2,
                "--append-eod: expected <none> among the tokenizer's added tokens");
  check_refused("tokenize " + text + out + with + " --formt llmc", 2,
                "unknown flag --formt; did you mean --format?");
  check_refused("tokenize " + text + out + with + " --dataset-impl lazy", 2, "--dataset-impl");
  check_refused("tokenize " + (folder / "none.txt") + out + with, 5, folder / "none.txt");
  check_refused("tokenize " + (folder / "none.jsonl") + out + with, 5,
                (folder / "none.jsonl") + ": cannot be read: No such file");
  check_refused("tokenize " + text + with + " --out " + (folder / "no/data"), 5,
                folder / "no/data.bin");
  check_refused("tokenize " + text + with + " --out " + (folder / "none"), 0, "");
  check_refused("tokenize " + text + with + " --format llmc --out " + (folder / "none"), 2,
                (folder / "none.idx") + " is there");
  fs::copy_file(text, folder / "tokens.bin");
  check_refused("tokenize " + (folder / "tokens.bin") + with + " --out " + (folder / "tokens"), 2,
                "IN and --out: both name ");

  const auto lines = [&](const std::string& bytes, const std::string& part) {
    write_file(folder / "in.jsonl", bytes);
    check_refused("tokenize " + (folder / "in.jsonl") + with + out, 5,
                  (folder / "in.jsonl") + ":" + part);
  };
  lines("{\"text\": \"a\"}\n{\"text\": \"b\"",
        "2:13: is not JSON: syntax error while parsing object - unexpected end of input");
  lines("{\"text\": 3}", "1: expected an object with a text under \"text\", got '{\"text\": 3}'");
  lines("{\"body\": \"a\"}", "1: expected an object with a text under \"text\"");
  lines("\n[1]", "2:1: expected a JSON object, got [1]");
  lines("{\"text\": \"\xff\"}", "1:11: invalid UTF-8");
  lines(std::string("{\"text\": \"a\"}\0{", 15), "1:14: has a zero byte");
  for (const char* end : {".bin", ".idx", ".bin.unfinished", ".idx.unfinished"})
    CHECK_FALSE(fs::exists((folder / "data") + end));
}

}  // namespace zg::testing
