#include "zerograd/models/tokenizer/question_file.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

// Errors and special cases of question files; tests/models/gpt/multiple_choice_test.cpp compares
// the tokens of usual ones with lm-evaluation-harness.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;

namespace {

struct QuestionFile {
  TemporaryFolder folder;
  std::string path = folder / "q.jsonl";
  Tokenizer tokenizer = load_tokenizer(std::string(ZG_FIXTURES) + "hf_chat");

  std::vector<ChoiceQuestion> read(const std::string& text,
                                   const QuestionFileOptions& options = {}) {
    write_file(path, text);
    return read_questions(path, tokenizer, options);
  }
  /// The message about a line behind a good one and an empty one, from "q.jsonl" on.
  std::string refusal(const std::string& line) {
    const std::string good = R"({"ctx": "a", "endings": ["b", "c"], "label": 1})";
    const std::string message = message_of<FileError>([&] { read(good + "\n\n" + line + "\n"); });
    return message.starts_with(folder / "") ? message.substr((folder / "").size()) : message;
  }
};

}  // namespace

TEST_CASE("a bad line of a question file is an error that names line and member") {
  QuestionFile file;
  const auto with = [&](const std::string& members) {
    return file.refusal(R"({"ctx": "She opens", )" + members + "}");
  };
  CHECK(file.refusal("{").starts_with("q.jsonl:3:2: is not JSON: "));
  CHECK(file.refusal("\"\xff\"") == "q.jsonl:3:2: invalid UTF-8; expected text in UTF-8");
  CHECK(file.refusal(R"({"endings": ["b", "c"], "label": 1})") ==
        "q.jsonl:3: ctx: expected a string, got null");
  CHECK(file.refusal(R"({"ctx_a": "x", "endings": ["b", "c"], "label": 1})") ==
        "q.jsonl:3: activity_label: expected a string, got null");
  CHECK(with(R"("label": 0)") == "q.jsonl:3: endings: expected an array, got null");
  CHECK(with(R"("endings": [], "label": 0)") ==
        "q.jsonl:3: endings: expected two endings or more, got []");
  CHECK(with(R"("endings": ["b"], "label": 0)") ==
        "q.jsonl:3: endings: expected two endings or more, got [\"b\"]");
  CHECK(with(R"("endings": ["b", ""], "label": 0)") ==
        "q.jsonl:3: endings[1]: expected an ending with characters, got \"\"");
  CHECK(with(R"("endings": ["b", 2], "label": 0)") ==
        "q.jsonl:3: endings[1]: expected a string, got 2");
  for (const char* label : {"null", "\"\"", "2", "\"2\"", "-1", "1.0", "\"one\"", "true",
                            "\"99999999999999999999\"", "4294967296", "[0]"}) {
    CAPTURE(std::string(label));
    CHECK(with(R"("endings": ["b", "c"], "label": )" + std::string(label)) ==
          "q.jsonl:3: label: expected the index of the right ending, 0 to 1, got " +
              std::string(label));
  }
  CHECK(with(R"("endings": ["b", "c"])") ==
        "q.jsonl:3: label: expected the index of the right ending, 0 to 1, got null");
  CHECK(file.refusal(R"({"ctx": "", "endings": ["b", "c"], "label": 0})") ==
        "q.jsonl:3: the context is empty, and the tokenizer has no token that begins or ends a "
        "text; expected a context");
  CHECK(file.refusal(
            R"({"activity_label": "x", "ctx_a": "y", "endings": ["[b]", "c"], "label": 0})") ==
        "q.jsonl:3: endings[0]: expected an ending with characters, got \"[b]\"");
  CHECK(message_of<FileError>([&] { file.read("\n \n"); })
            .ends_with("q.jsonl: no questions; expected a line such as {\"ctx\": \"She opens "
                       "the\", \"endings\": "
                       "[\"door.\", \"moon.\"], \"label\": 0}"));
}

TEST_CASE("labels are numbers or strings, and places name file and line") {
  QuestionFile file;
  const auto questions = file.read(
      "{\"ctx\": \"a\", \"endings\": [\"b\", \"\u4f60\u597d\", \"d\"], \"label\": \"2\"}\n\n"
      "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 1, \"ind\": 7}");
  REQUIRE(questions.size() == 2);
  CHECK(questions[0].answer == 2);
  CHECK(questions[1].answer == 1);
  CHECK(questions[1].place == file.path + ":3");
  CHECK(questions[0].choices[1].characters == 2);  // of six bytes
}

TEST_CASE("an empty context is the token before a text, or the one that is named") {
  QuestionFile file;
  const std::string line = R"({"ctx": "  ", "endings": ["b", "<|endoftext|>c"], "label": 0})";
  const std::vector<int32_t> ending = file.tokenizer.encode("   b");
  const auto scored = [](const Choice& choice) {
    return std::vector<int32_t>(choice.tokens.end() - choice.scored, choice.tokens.end());
  };
  std::vector<ChoiceQuestion> questions = file.read(line, {.first = 0});
  CHECK(questions[0].choices[0].tokens.front() == 0);
  CHECK(scored(questions[0].choices[0]) == ending);  // the context's spaces too
  CHECK(questions[0].choices[0].characters == 1);
  TokenizerParts parts = file.tokenizer.parts();
  parts.around.before = {1, 2};
  file.tokenizer = Tokenizer(parts, "tokenizer");
  questions = file.read(line, {.first = 0});
  CHECK(questions[0].choices[0].tokens.size() == 2 + ending.size());
  CHECK(questions[0].choices[0].tokens[1] == 2);
  CHECK(scored(questions[0].choices[0]) == ending);
}

TEST_CASE("lines without ctx_a keep brackets and spaces, and all lines do so in plain files") {
  QuestionFile file;
  const std::string plain = R"("ctx": "A [x]  b", "endings": ["[y]  c", "d"], "label": 0)";
  const auto tokens = [&](const std::string& members, bool is_plain) {
    return file.read("{" + members + "}", {.plain = is_plain})[0].choices[0].tokens;
  };
  const std::vector<int32_t> expected = file.tokenizer.encode("A [x]  b [y]  c");
  CHECK(tokens(plain, false) == expected);
  const std::string hellaswag =
      plain + R"(, "activity_label": "Lab", "ctx_a": "A [x]", "ctx_b": "b")";
  CHECK(tokens(hellaswag, true) == expected);
  CHECK(tokens(hellaswag, false) == file.tokenizer.encode("Lab: A B  c"));
  // "ctx_b" may be absent.
  CHECK(tokens(plain + R"(, "activity_label": "Lab", "ctx_a": "A")", false) ==
        file.tokenizer.encode("Lab: A  c"));
}

TEST_CASE("plain questions encode the context and the ending one by one, as llm.c does") {
  QuestionFile file;
  const std::string line = R"({"ctx": "She opens the ", "endings": ["door.", "sky."], "label": 0})";
  const Choice plain = file.read(line, {.plain = true})[0].choices[0];
  std::vector<int32_t> expected = file.tokenizer.parts().around.before;
  for (const char* text : {"She opens the ", " door."})
    for (const int32_t id : file.tokenizer.encode(text)) expected.push_back(id);
  CHECK(plain.tokens == expected);
  CHECK(plain.scored == static_cast<int64_t>(file.tokenizer.encode(" door.").size()));
  CHECK(file.read(line)[0].choices[0].scored == plain.scored + 1);  // the harness moves the blank
}
