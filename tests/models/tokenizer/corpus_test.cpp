// A corpus of files to tokens, and tokens to text one by one.
#include "zerograd/models/tokenizer/corpus.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

namespace zg::testing {
namespace {

using Ids = std::vector<int32_t>;

struct Collected final : models::TokenWriter {
  std::vector<Ids> documents;
  void add_document(std::span<const int32_t> tokens) override {
    documents.emplace_back(tokens.begin(), tokens.end());
  }
  void finish() override {}
};

models::Tokenizer gpt2() { return models::load_tokenizer(ZG_FIXTURES "tokenizer/gpt2"); }

}  // namespace

TEST_CASE(
    "a corpus has a document for each file and each line of JSON, with any number of threads") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "Hello, world.\n");
  write_file(folder / "b.jsonl",
             "{\"text\": \"na\\u00efve\"}\n\n{\"text\": \"\"}\n{\"text\": \"x\"}");
  const models::Tokenizer tokenizer = gpt2();
  for (int threads : {1, 3}) {
    CAPTURE(threads);
    models::TextDocuments documents({folder / "a.txt", folder / "b.jsonl"});
    Collected written;
    models::CorpusCounts last;
    const models::CorpusCounts counts = models::tokenize_corpus(
        documents, tokenizer, written,
        {.end_of_document = 7, .threads = threads, .progress = [&](const auto& so_far) {
           last = so_far;
         }});
    std::vector<Ids> expected;
    for (const char* document : {"Hello, world.\n", "na\u00efve", "x"}) {
      expected.push_back(tokenizer.encode(document));
      expected.back().push_back(7);
    }
    CHECK(written.documents == expected);
    CHECK(counts.documents == 3);
    CHECK(counts.empty == 1);
    CHECK(counts.bytes == 14 + 6 + 0 + 1);
    CHECK(counts.tokens == static_cast<int64_t>(expected[0].size() + expected[1].size() + 2));
    CHECK(last.tokens == counts.tokens);
  }
}

TEST_CASE("a JSON line without the text key is an error that names file and line") {
  const TemporaryFolder folder;
  write_file(folder / "b.jsonl", "{\"body\": \"one\"}\n{\"text\": \"two\"}");
  models::TextDocuments documents({folder / "b.jsonl"}, "body");
  std::string document;
  CHECK(documents.next(document));
  CHECK(document == "one");
  CHECK_ERROR(FileError, "b.jsonl:2: expected an", documents.next(document));
}

TEST_CASE("text_stream returns text as soon as tokens complete a character") {
  const auto words = models::text_stream(gpt2());
  // U+1F642 has four bytes, which no single token of this vocabulary holds.
  const std::string text = "a\U0001F642b";
  const Ids ids = words->encode(text);
  REQUIRE(ids.size() > 3);
  std::string shown;
  for (const int32_t id : ids) {
    const std::string more = words->decode(id);
    CAPTURE(more);
    CHECK((more.empty() || (static_cast<unsigned char>(more.front()) & 0xC0) != 0x80));
    shown += more;
  }
  CHECK(shown == text);
  CHECK(words->rest().empty());
  words->decode(ids[1]);
  CHECK(words->rest() == "\uFFFD");
  CHECK(words->rest().empty());
  CHECK(words->decode(1 << 20) == "\uFFFD");
}

TEST_CASE(
    "character_stream refuses unknown characters, and without characters its tokens are numbers") {
  const auto characters = models::character_stream("a\u00e9\n", "prompt");
  CHECK(characters->encode("\u00e9a\n") == Ids{1, 0, 2});
  CHECK(characters->decode(1) == "\u00e9");
  CHECK(characters->decode(3) == "\uFFFD");
  CHECK_THROWS_WITH_AS(characters->encode("ab"),
                       "prompt: the model does not know 'b'; expected only its 3 characters: "
                       "a\u00e9\\n",
                       ConfigError);
  const auto numbers = models::character_stream("", "prompt");
  CHECK(numbers->encode(" 15 2\n7") == Ids{15, 2, 7});
  CHECK(numbers->decode(15) == "15 ");
  for (const char* wrong : {"x", "-1", "-0", "1.5", "3x"})
    CHECK_ERROR(ConfigError, "expected tokens as in", numbers->encode(wrong));
  CHECK_THROWS_WITH_AS(numbers->encode("2147483648"),
                       "prompt: expected a whole number from 0 to 2147483647, got '2147483648'",
                       ConfigError);
}

}  // namespace zg::testing
