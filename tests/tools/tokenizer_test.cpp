#include <doctest/doctest.h>

#include <filesystem>

#include "models/tokenizer_files.h"
#include "models/utf8.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string small = " --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 ";

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "the quick brown fox jumps over the lazy dög\n";
  return text;
}

// A folder with text.txt and tokenizer/, trained on it.
struct Case {
  TemporaryFolder folder;
  std::string text = folder / "text.txt", tokenizer = folder / "tokenizer",
              save = folder / "checkpoints";
  models::Tokenizer own = models::train_tokenizer(lines(60), {.vocabulary = 280});

  Case() {
    write_file(text, lines(60));
    models::save_tokenizer(own, tokenizer);
  }
  std::string train() const {
    return "train --data " + text + " --tokenizer " + tokenizer + small + "--save " + save;
  }
};

}  // namespace

TEST_CASE("a model is trained on a tokenizer's tokens, evaluated and continued in text") {
  const Case a;
  const Outcome trained = zerograd(a.train() + " --steps 4 --eval-interval 4 --sample-interval 4");
  CAPTURE(trained.error);
  REQUIRE(trained.status == 0);
  CHECK(contains(trained.out, "sample after step 4:\n"));
  const int64_t tokens = static_cast<int64_t>(a.own.encode(lines(60)).size());
  const int64_t held_out = tokens / 10, seen = tokens - held_out;
  CHECK(contains(trained.error, std::to_string((seen - 1) / 16) + " training and " +
                                    std::to_string((held_out - 1) / 16) + " validation samples"));
  const std::string loss = line_after(trained.out, "val loss ");
  CHECK(line_after(zerograd("eval " + a.save + " --batch-size 4").out, "val loss ") == loss);

  // The prompt comes back as it was given, and 280 tokens mean characters that end.
  const std::vector<std::string> words = {"generate", a.save,     "--prompt",
                                          "the dög",  "--length", "40"};
  const Outcome said = zerograd(words);
  REQUIRE(said.status == 0);
  CHECK(said.out.starts_with("the dög"));
  CHECK(models::valid_utf8(said.out) == said.out.size());
  CHECK(zerograd({"generate", a.save, "--prompt", "a\xff", "--length", "0"}).out == "a\uFFFD\n");

  const std::string exported = a.folder / "exported";
  REQUIRE(zerograd("export " + a.save + " --hf " + exported).status == 0);
  CHECK(models::tokenizer_json(models::load_tokenizer(exported)) == models::tokenizer_json(a.own));

  // It goes on, and a plan has the bytes of the vocabulary.
  const Outcome resumed = zerograd("train --resume " + a.save + " --steps 5");
  CHECK(resumed.status == 0);
  CHECK(!contains(resumed.error, "tokenizer"));
  const Outcome planned = zerograd("plan --data " + a.text + " --tokenizer " + a.tokenizer + small);
  CHECK(planned.status == 0);
  CHECK(contains(planned.out, "parameters"));
}

TEST_CASE("a tokenizer that is gone, moved or another is told from the checkpoint's") {
  const Case a;
  REQUIRE(zerograd(a.train() + " --steps 1").status == 0);
  const std::string moved = a.folder / "moved";
  std::filesystem::rename(a.tokenizer, moved);
  for (const std::string& line : {"generate " + a.save + " --prompt the", "eval " + a.save,
                                  "train --resume " + a.save + " --steps 2"}) {
    CAPTURE(line);
    const Outcome gone = zerograd(line);
    CHECK(gone.status == 5);
    CHECK(contains(gone.error, a.tokenizer));
    CHECK(contains(gone.error, "the checkpoint was trained with this tokenizer"));
    // The same content, in whichever of its files.
    CHECK(zerograd(line + " --tokenizer " + moved).status == 0);
  }
  std::filesystem::remove(moved + "/tokenizer.json");
  CHECK(zerograd("eval " + a.save + " --tokenizer " + moved).status == 0);

  models::save_tokenizer(models::train_tokenizer(lines(60), {.vocabulary = 279}), a.tokenizer);
  for (const std::string& line : {"generate " + a.save + " --prompt the", "eval " + a.save,
                                  "train --resume " + a.save + " --steps 3"}) {
    CAPTURE(line);
    const Outcome other = zerograd(line);
    CHECK(other.status == 2);
    CHECK(contains(other.error, "is not the tokenizer that the checkpoint was trained with"));
  }
}

TEST_CASE("tokens of a file are spoken with the tokenizer that made them") {
  const Case a;
  const std::vector<int32_t> ids = a.own.encode(lines(60));
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
  const std::string line = "train --data " + file + small + "--steps 1 --save " + a.save;
  REQUIRE(zerograd(line).status == 0);
  CHECK(zerograd("generate " + a.save + " --prompt the --length 3").status == 2);
  const std::vector<std::string> words = {"generate", a.save,        "--prompt",
                                          "the fox",  "--tokenizer", a.tokenizer};
  CHECK(zerograd(words).out.starts_with("the fox"));

  // Remembered where training names it; then the model has all of its tokens.
  const std::string again = a.folder / "again";
  REQUIRE(zerograd("train --data " + file + " --tokenizer " + a.tokenizer + small +
                   "--steps 1 --save " + again)
              .status == 0);
  CHECK(zerograd({"generate", again, "--prompt", "QUICK \u4e2d"}).out.starts_with("QUICK \u4e2d"));

  models::save_tokenizer(models::train_tokenizer("", {.vocabulary = 257}), a.folder / "few");
  const Outcome few = zerograd("train --steps 1 --data " + file + small + " --tokenizer " +
                               a.folder.path() + "/few");
  CHECK(few.status == 2);
  CHECK(contains(few.error, "few has 257 tokens; "));
}

TEST_CASE("a tokenizer is refused where there is no text for it") {
  const Case a;
  const Outcome sort = zerograd("train --data sort --steps 1 --tokenizer " + a.tokenizer);
  CHECK(sort.status == 2);
  CHECK(contains(sort.error, "--tokenizer: expected data PATH.txt, PATH.bin or PREFIX, got sort"));
  REQUIRE(zerograd("train --data " + a.text + small + "--steps 1 --save " + a.save).status == 0);
  const Outcome characters =
      zerograd("generate " + a.save + " --prompt the --tokenizer " + a.tokenizer);
  CHECK(characters.status == 2);
  CHECK(contains(characters.error, "--tokenizer: the checkpoint's tokens are the characters of "));
  const Outcome none = zerograd("train --steps 1 --data " + a.text + " --tokenizer " + a.text);
  CHECK(none.status == 5);
  CHECK(contains(none.error, "text.txt: is not JSON at byte"));
}

TEST_CASE("bench tokenizer prints what a text takes to tokens and back") {
  const Case a;
  const std::string json = a.folder / "bench.json";
  const Outcome outcome =
      zerograd("bench tokenizer " + a.text + " --tokenizer train:300 --repeats 2 --json " + json);
  CAPTURE(outcome.error);
  REQUIRE(outcome.status == 0);
  CHECK(contains(outcome.out, "| encode | " + std::to_string(lines(60).size()) + " |"));
  const nlohmann::json record = nlohmann::json::parse(read_file(json));
  CHECK(record["bytes"] == lines(60).size());
  CHECK(record["rows"].size() == 2);
  for (const auto& row : record["rows"]) CHECK(row["bytes_per_s"] > 0.0);
  CHECK(zerograd("bench tokenizer " + a.text + " --tokenizer train:5").status == 2);
  CHECK(zerograd("bench tokenizer " + a.text).status == 2);
}

}  // namespace zg::testing
