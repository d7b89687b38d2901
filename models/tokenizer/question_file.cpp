#include "zerograd/models/tokenizer/question_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

constexpr size_t max_endings = 256;  // the whole context is encoded again with each ending

/// The characters that Python's str.strip() removes: Unicode's White_Space and four separators.
bool is_python_space(char32_t code) {
  return is_white_space(code) || (code >= 0x1c && code <= 0x1f);
}

/// The number of bytes before the white space at the end of the text.
size_t end_of_text(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();)
    if (!is_python_space(next_code_point(text, at, "question"))) end = at;
  return end;
}

std::string_view stripped(std::string_view text) {
  text = text.substr(0, end_of_text(text));
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_python_space(next_code_point(text, at, "question"))) return text.substr(begin);
  }
  return {};
}

/// The text without the matches of Python's regular expression \[.*?\]: a match is on one line.
std::string without_brackets(std::string_view text) {
  std::string out;
  size_t close = 0;  // the first ']' or end of a line at or after the last '['
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '[' && close <= at) close = text.find_first_of("]\n", at);
    if (text[at] == '[' && close < text.size() && text[close] == ']')
      at = close;
    else
      out += text[at];
  }
  return out;
}

/// Does the same as preprocess() of lm-evaluation-harness, lm_eval/tasks/hellaswag/utils.py.
std::string hellaswag_text(std::string_view text) {
  const std::string titled = replaced(stripped(text), {" [title]", ". "});
  return replaced(without_brackets(titled), {"  ", " "});
}

int64_t characters_in(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) next_code_point(text, at, "question");
  return count;
}

int64_t answer_of(const JsonNode& label, size_t endings) {
  const auto refuse = [&] {
    label.fail(fmt::format("the index of the right ending, 0 to {}", endings - 1));
  };
  std::string digits;
  if (label.value.is_number_unsigned())
    digits = label.value.dump();
  else if (label.value.is_string())
    digits = label.text();
  const bool is_number = !digits.empty() && digits.size() < 10 &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::stoull(digits) >= endings) refuse();
  return std::stoll(digits);
}

class QuestionReader {
 public:
  QuestionReader(const Tokenizer& tokenizer, const QuestionFileOptions& options)
      : tokenizer_(tokenizer), options_(options), before_(tokenizer.parts().around.before) {}

  ChoiceQuestion read(const JsonNode& line, const std::string& place) const {
    const bool is_hellaswag = !options_.plain && line.value.contains("ctx_a");
    const std::string context = is_hellaswag ? hellaswag_context(line) : line.at("ctx").text();
    const Context begin = context_of(context, line);
    const JsonNode list = line.at("endings");
    const std::vector<JsonNode> endings = list.members();
    if (endings.size() < 2) list.fail("two endings or more");
    if (endings.size() > max_endings)
      list.fail(fmt::format("at most {} endings (max_endings)", max_endings));
    ChoiceQuestion question{.choices = {}, .place = place};
    for (const JsonNode& ending : endings) {
      const std::string text = is_hellaswag ? hellaswag_text(ending.text()) : ending.text();
      if (text.empty()) ending.fail("an ending with characters");
      question.choices.push_back(choice_of(begin, text, ending));
    }
    question.answer = answer_of(line.at("label"), endings.size());
    return question;
  }

 private:
  struct Context {
    std::string text, space;  // text without the white space at its end; that white space
    std::vector<int32_t> tokens;
  };

  static std::string hellaswag_context(const JsonNode& line) {
    const JsonNode rest = line.at("ctx_b");
    const std::string end = rest.value.is_null() ? "" : capitalized(rest.text());
    return hellaswag_text(line.at("activity_label").text() + ": " + line.at("ctx_a").text() + " " +
                          end);
  }

  // The tokens of a text at the beginning of a sequence: `before_`, unless the tokenizer has put it
  // there, then the text.
  std::vector<int32_t> tokens_of(const std::string& text) const {
    std::vector<int32_t> tokens = tokenizer_.encode(text);
    const bool begins = tokens.size() >= before_.size() &&
                        std::equal(before_.begin(), before_.end(), tokens.begin());
    if (!begins) tokens.insert(tokens.begin(), before_.begin(), before_.end());
    return tokens;
  }

  Context context_of(const std::string& text, const JsonNode& line) const {
    const size_t end = options_.plain ? text.size() : end_of_text(text);
    Context context{text.substr(0, end), text.substr(end), {}};
    if (end > 0) context.tokens = tokens_of(context.text);
    if (!context.tokens.empty()) return context;
    context.tokens = before_;
    if (before_.empty() && options_.first) context.tokens = {*options_.first};
    if (context.tokens.empty())
      throw FileError(line.name +
                      "the context is empty, and the tokenizer has no token that begins or ends a "
                      "text; expected a context");
    return context;
  }

  Choice choice_of(const Context& context, const std::string& ending, const JsonNode& node) const {
    const std::string end = context.space + " " + ending;
    Choice choice{.tokens = context.tokens, .characters = characters_in(ending)};
    std::vector<int32_t> whole;
    auto first = whole.begin();
    if (options_.plain) {
      whole = tokenizer_.encode(end);
      first = whole.begin();
    } else if (context.text.empty()) {
      whole = tokenizer_.encode(end);
      first = whole.begin();
      // If the context is one token, and the encoded ending begins with it, it is not repeated.
      if (choice.tokens.size() == 1 && whole.size() > 1 && whole[0] == choice.tokens[0]) ++first;
    } else {
      whole = tokens_of(context.text + end);
      first = whole.begin() + static_cast<int64_t>(std::min(whole.size(), context.tokens.size()));
    }
    choice.scored = whole.end() - first;
    if (choice.scored == 0) node.fail("an ending that adds tokens to its context");
    choice.tokens.insert(choice.tokens.end(), first, whole.end());
    return choice;
  }

  const Tokenizer& tokenizer_;
  const QuestionFileOptions& options_;
  const std::vector<int32_t>& before_;
};

}  // namespace

std::vector<ChoiceQuestion> read_questions(const std::string& path, const Tokenizer& tokenizer,
                                           const QuestionFileOptions& options) {
  const QuestionReader reader(tokenizer, options);
  std::vector<ChoiceQuestion> questions;
  for_each_json_line(path, [&](const JsonNode& line, const std::string& place) {
    questions.push_back(reader.read(line, place));
  });
  if (questions.empty())
    throw FileError(path +
                    ": no questions; expected a line such as {\"ctx\": \"She opens the\", "
                    "\"endings\": [\"door.\", \"moon.\"], \"label\": 0}");
  return questions;
}

}  // namespace zg::models
