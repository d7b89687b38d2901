#include <cmath>
#include <filesystem>

#include "tests/tools/command.h"
#include "zerograd/models/data/token_writer.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/text/utf8.h"
#include "zerograd/zero/checkpoint/manifest.h"

namespace zg::testing {
namespace {

const std::string small_model_flags =
    " --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 ";

std::string fox_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "the quick brown fox jumps over the lazy dög\n";
  return text;
}

// A folder with text.txt and tokenizer/, trained on it.
struct Case {
  TemporaryFolder folder;
  std::string text = folder / "text.txt", tokenizer = folder / "tokenizer",
              save = folder / "checkpoints";
  models::Tokenizer own = models::train_tokenizer(fox_lines(60), {.vocabulary = 280});

  Case() {
    write_file(text, fox_lines(60));
    models::save_tokenizer(own, tokenizer);
  }
  std::string train() const {
    return "train --data " + text + " --tokenizer " + tokenizer + small_model_flags + "--save " +
           save;
  }
};

}  // namespace

TEST_CASE("a model is trained on a tokenizer's tokens, evaluated and continued in text") {
  const Case a;
  const Outcome trained =
      checked(zerograd(a.train() + " --steps 4 --eval-interval 4 --sample-interval 4"));
  CHECK(contains(trained.out, "sample after step 4:\n"));
  const int64_t tokens = static_cast<int64_t>(a.own.encode(fox_lines(60)).size());
  const int64_t held_out = tokens / 10, seen = tokens - held_out;
  CHECK(contains(trained.error, std::to_string((seen - 1) / 16) + " training and " +
                                    std::to_string((held_out - 1) / 16) + " validation samples"));
  const std::string loss = line_after(trained.out, "val loss ");
  CHECK(line_after(zerograd("eval " + a.save + " --batch-size 4").out, "val loss ") == loss);

  // The prompt comes back as it was given, and 280 tokens mean characters that end.
  const std::vector<std::string> words = {"generate", a.save,     "--prompt",
                                          "the dög",  "--length", "40"};
  const Outcome said = checked(zerograd(words));
  CHECK(said.out.starts_with("the dög"));
  CHECK(valid_utf8(said.out) == said.out.size());
  CHECK(zerograd({"generate", a.save, "--prompt", "a\xff", "--length", "0"}).out == "a\uFFFD\n");

  const std::string exported = a.folder / "exported";
  checked(zerograd("export " + a.save + " --hf " + exported));
  CHECK(models::tokenizer_json(models::load_tokenizer(exported)) == models::tokenizer_json(a.own));

  // It goes on, and a plan has the bytes of the vocabulary.
  const Outcome resumed = checked(zerograd("train --resume " + a.save + " --steps 5"));
  CHECK(!contains(resumed.error, "changed: data."));
  const Outcome planned = checked(
      zerograd("plan --data " + a.text + " --tokenizer " + a.tokenizer + small_model_flags));
  CHECK(contains(planned.out, "parameters"));
}

TEST_CASE("a checkpoint contains its tokenizer, and so do weights that are consolidated from it") {
  const Case a;
  checked(zerograd(a.train() + " --steps 1"));
  const std::string step = a.save + "/step_1", file = a.folder / "weights.safetensors",
                    split = a.folder / "split", exported = a.folder / "exported";
  CHECK(read_file(step + "/tokenizer.json") == models::tokenizer_json(a.own));
  CHECK(zero::read_manifest(step).file_checksums.contains("tokenizer.json"));
  checked(zerograd("consolidate " + a.save + " " + file));
  std::filesystem::remove_all(a.tokenizer);
  checked(zerograd("consolidate --split " + file + " " + split));
  CHECK(read_file(split + "/step_0/tokenizer.json") == models::tokenizer_json(a.own));
  const std::string said = zerograd("generate " + a.save + " --prompt the --length 9").out;
  CHECK(said.starts_with("the"));
  const std::string loss = zerograd("eval " + a.save).out;
  CHECK(loss.starts_with("val loss "));
  CHECK(std::stod(line_after(loss, "perplexity ")) ==
        doctest::Approx(std::exp(std::stod(line_after(loss, "val loss ")))).epsilon(1e-4));
  checked(zerograd("eval " + a.save + " --val-fraction 1"));  // the whole text
  check_refused("eval " + a.save + " --val-fraction 1.5", 2, "expected a number from 0 to 1");
  for (const std::string& other : {file, split}) {
    CHECK(zerograd("generate " + other + " --prompt the --length 9").out == said);
    CHECK(zerograd("eval " + other).out == loss);
  }
  checked(zerograd("export " + file + " --hf " + exported));
  CHECK(read_file(exported + "/tokenizer.json") == models::tokenizer_json(a.own));
  const Outcome resumed =
      checked(zerograd("train --steps 2 --resume " + a.save + " --save " + a.save));
  CHECK(!contains(resumed.error, "changed: data."));
  CHECK(read_file(a.save + "/step_2/tokenizer.json") == models::tokenizer_json(a.own));

  // Another one that is named is refused, whatever lies where the first one was.
  models::save_tokenizer(models::train_tokenizer(fox_lines(60), {.vocabulary = 279}), a.tokenizer);
  checked(zerograd("generate " + a.save + " --prompt the --length 9"));
  for (const std::string& line :
       {"generate " + a.save + " --prompt the", "eval " + a.save,
        "train --resume " + a.save + " --steps 3", "export " + a.save + " --hf " + exported}) {
    CAPTURE(line);
    check_refused(line + " --tokenizer " + a.tokenizer, 2,
                  "is not the tokenizer that the checkpoint was trained with");
  }
  // It lies under the manifest's checksum.
  write_file(split + "/step_0/tokenizer.json", models::tokenizer_json(a.own) + " ");
  checked(zerograd("verify " + split), 5);
}

TEST_CASE(
    "a checkpoint finds its text and tokenizer from any working directory, or names the missing "
    "file") {
  const Case a;
  const std::string here = "env -C " + a.folder.path() + " " + ZG_COMMAND + " ";
  const Outcome trained =
      checked(program(here + "train --data ./text.txt --tokenizer tokenizer --steps 2" +
                      small_model_flags + "--save checkpoints"));
  const std::string loss = line_after(trained.out, "val loss ");
  CHECK(loss.size() == 6);
  CHECK(line_after(zerograd("eval " + a.save + " --batch-size 4").out, "val loss ") == loss);
  CHECK(zerograd("generate " + a.save + " --prompt the --length 3").out.starts_with("the"));
  const auto unchanged = [&](const Outcome& resumed) {
    CAPTURE(resumed.error);
    CHECK(resumed.status == 0);
    CHECK(!contains(resumed.error, "changed: data."));
  };
  unchanged(zerograd("train --resume " + a.save + " --steps 3"));
  unchanged(program(here + "train --resume checkpoints --steps 3 --data text.txt"));
  unchanged(zerograd("train --resume " + a.save + " --steps 3 --tokenizer " + a.tokenizer));

  const std::string moved = a.folder / "moved.txt";
  std::filesystem::rename(a.text, moved);
  for (const std::string& line : {"eval " + a.save, "train --steps 3 --resume " + a.save}) {
    CAPTURE(line);
    check_refused(line, 5,
                  "--data: the data " + a.text + ", with which " + a.save +
                      "/step_2 was trained, does not exist; give --data PATH with the "
                      "new path of the data\n");
    checked(zerograd(line + " --data " + moved));
  }
}

TEST_CASE(
    "an older checkpoint with only the path of its tokenizer is read with a tokenizer of equal "
    "content") {
  const Case a;
  checked(zerograd(a.train() + " --steps 1"));
  const std::string step = a.save + "/step_1";
  zero::Manifest manifest = zero::read_manifest(step);
  manifest.file_checksums.clear();
  auto config = nlohmann::json::parse(manifest.info.config_json);
  for (const char* key : {"bos_token", "eos_tokens", "pad_token"}) config["data"].erase(key);
  manifest.info.config_json = config.dump();
  write_file(step + "/manifest.json", zero::manifest_text(manifest));
  std::filesystem::remove(step + "/tokenizer.json");
  checked(zerograd("verify " + a.save));

  const std::string moved = a.folder / "moved";
  const std::string lines_of_use[] = {"generate " + a.save + " --prompt the", "eval " + a.save,
                                      "train --resume " + a.save + " --steps 2"};
  for (const std::string& line : lines_of_use) checked(zerograd(line));
  std::filesystem::rename(a.tokenizer, moved);
  for (const std::string& line : lines_of_use) {
    CAPTURE(line);
    const Outcome gone = checked(zerograd(line), 5);
    CHECK(contains(gone.error, a.tokenizer));
    CHECK(contains(gone.error, "the checkpoint was trained with this tokenizer"));
    // The same content, in whichever of its files.
    checked(zerograd(line + " --tokenizer " + moved));
  }
  std::filesystem::remove(moved + "/tokenizer.json");
  checked(zerograd("eval " + a.save + " --tokenizer " + moved));

  models::save_tokenizer(models::train_tokenizer(fox_lines(60), {.vocabulary = 279}), a.tokenizer);
  for (const std::string& line : lines_of_use) {
    CAPTURE(line);
    check_refused(line, 2, "is not the tokenizer that the checkpoint was trained with");
  }
}

TEST_CASE("--init refuses weights whose token ids mean other tokens than the run's") {
  const Case a;
  const std::string other_text = a.folder / "other.txt", numbers = a.folder / "numbers",
                    characters = a.folder / "characters", digits = a.folder / "digits";
  const std::string model = small_model_flags + "--vocab-size 300 --steps 0 --log-interval 0";
  checked(zerograd(a.train() + model));
  checked(zerograd("train --data " + a.text + model + " --save " + characters));
  checked(
      zerograd("train --data sort --n-layer 1 --n-head 2 --n-embd 16 --steps 0 --save " + digits));
  const auto init = [&](const std::string& weights, const std::string& flags) {
    return zerograd("train --init " + weights + model + flags);
  };
  const auto refused = [&](const std::string& weights, const std::string& flags,
                           const std::string& what) {
    const Outcome outcome = checked(init(weights, flags), 2);
    CHECK(contains(outcome.error, what));
    CHECK(contains(outcome.error, ": the same id would mean another token; try "));
  };
  const auto passes = [&](const std::string& weights, const std::string& flags,
                          const std::string& note) {
    const Outcome outcome = checked(init(weights, flags));
    CHECK(contains(outcome.error, "note: --init: ") == !note.empty());
    CHECK(contains(outcome.error, note));
  };
  const std::string as_text = " --data " + a.text, tokenized = as_text + " --tokenizer ";
  passes(a.save, tokenized + a.tokenizer, "");
  passes(a.save, tokenized + a.save + "/step_0", "");  // which has it
  refused(a.save, as_text,
          "are those of the tokenizer " + a.tokenizer +
              ", the run's are the "
              "characters of " +
              a.text);
  refused(a.save, as_text, "; try --tokenizer " + a.save);
  passes(characters, as_text, "");
  refused(characters, tokenized + a.tokenizer, "are the characters of " + a.text);
  // More characters behind those that both have; others between them.
  write_file(other_text, fox_lines(60) + "\u4e2d\u6587");
  passes(characters, " --data " + other_text, "");
  write_file(other_text, fox_lines(60) + "!");
  refused(characters, " --data " + other_text, "the run's are the characters of " + other_text);
  const std::string another = a.folder / "another";
  models::save_tokenizer(models::train_tokenizer(fox_lines(60), {.vocabulary = 279}), another);
  refused(a.save, tokenized + another, "the run's are those of the tokenizer " + another);
  passes(digits, " --vocab-size 3 --block-size 11 --data sort", "");

  // Numbers may mean the same: a note says that this cannot be known.
  const auto writer = models::token_file_writer(a.folder / "tokens.bin", 300);
  std::vector<int32_t> ids = a.own.encode(fox_lines(60));
  writer->add_document(ids);
  writer->finish();
  const std::string as_numbers = " --data " + (a.folder / "tokens.bin");
  checked(zerograd("train" + as_numbers + model + " --save " + numbers));
  passes(numbers, as_numbers, "");
  passes(numbers, tokenized + a.tokenizer,
         "note: --init: the tokens of " + numbers + "/step_0 are numbers");
  passes(a.save, as_numbers, "are numbers: whether an id means the same is not known\n");
  CHECK(contains(init(numbers, as_numbers).error, "; tokens: numbers\n"));
  CHECK(contains(init(numbers, as_numbers + " --tokenizer " + a.tokenizer).error,
                 "; tokens: tokenizer " + a.tokenizer + ", vocabulary 280\n"));
  check_refused("train --resume " + numbers + " --steps 1" + as_text, 2,
                "is read as its 29 characters, and the model of " + numbers);
}

TEST_CASE(
    "a model trained on a token file generates text with the tokenizer of train or generate") {
  const Case a;
  const std::vector<int32_t> ids = a.own.encode(fox_lines(60));
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<int32_t>(ids.size());
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  for (const int32_t id : ids) {
    bytes += static_cast<char>(id & 0xff);
    bytes += static_cast<char>(id >> 8);
  }
  const std::string file = a.folder / "tokens.bin";
  write_file(file, bytes);
  const std::string line =
      "train --data " + file + small_model_flags + "--steps 1 --save " + a.save;
  checked(zerograd(line));
  checked(zerograd("generate " + a.save + " --prompt the --length 3"), 2);
  const std::vector<std::string> words = {"generate", a.save,        "--prompt",
                                          "the fox",  "--tokenizer", a.tokenizer};
  CHECK(zerograd(words).out.starts_with("the fox"));

  // Remembered where training names it; then the model has all of its tokens.
  const std::string again = a.folder / "again";
  checked(zerograd("train --data " + file + " --tokenizer " + a.tokenizer + small_model_flags +
                   "--steps 1 --save " + again));
  CHECK(zerograd({"generate", again, "--prompt", "QUICK \u4e2d"}).out.starts_with("QUICK \u4e2d"));

  models::save_tokenizer(models::train_tokenizer("", {.vocabulary = 257}), a.folder / "few");
  check_refused("train --steps 1 --data " + file + small_model_flags + " --tokenizer " +
                    a.folder.path() + "/few",
                2, "few has 257 tokens; ");
}

TEST_CASE(
    "--tokenizer is refused for data sort, for a checkpoint of characters, and if it is not JSON") {
  const Case a;
  check_refused("train --data sort --steps 1 --tokenizer " + a.tokenizer, 2,
                "--tokenizer: expected data PATH.txt, PATH.bin or PREFIX, got sort");
  checked(zerograd("train --data " + a.text + small_model_flags + "--steps 1 --save " + a.save));
  check_refused("generate " + a.save + " --prompt the --tokenizer " + a.tokenizer, 2,
                "--tokenizer: the checkpoint's tokens are the characters of ");
  const Outcome none =
      checked(zerograd("train --steps 1 --data " + a.text + " --tokenizer " + a.text), 5);
  for (const char* part : {"text.txt:1:", ": is not JSON: "}) CHECK(contains(none.error, part));
}

TEST_CASE("bench tokenizer prints the speed at which a text is encoded and decoded") {
  const Case a;
  const std::string json = a.folder / "bench.json";
  const Outcome outcome = checked(
      zerograd("bench tokenizer " + a.text + " --tokenizer train:300 --repeats 2 --json " + json));
  CHECK(contains(outcome.out, "| encode | " + std::to_string(fox_lines(60).size()) + " |"));
  const nlohmann::json record = nlohmann::json::parse(read_file(json));
  CHECK(record["bytes"] == fox_lines(60).size());
  CHECK(record["rows"].size() == 2);
  for (const auto& row : record["rows"]) CHECK(row["bytes_per_s"] > 0.0);
  checked(zerograd("bench tokenizer " + a.text + " --tokenizer train:5"), 2);
  checked(zerograd("bench tokenizer " + a.text), 2);
}

}  // namespace zg::testing
