#include "tests/support/placed_message.h"
#include "tests/zero/deepspeed/deepspeed_case.h"
#include "tools/deepspeed/load.h"
#include "tools/launch/launcher.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

// Bugs that fuzzing found in the readers of configuration texts.
namespace zg::testing {
namespace {

using tools::read_yaml;
using zero::deepspeed::read_hjson;

std::string text_error(const std::string& text) {
  return message_of<ConfigError>([&] { load(text); });
}

std::string error_of_yaml(const std::string& text) {
  return message_of<ConfigError>([&] { read_yaml(text, "a.yaml"); });
}

std::string error_of_hosts(const std::string& text) {
  return message_of<ConfigError>([&] { tools::parse_hosts(text, "hosts"); });
}

// Invalid UTF-8: a stray byte, overlong forms, a surrogate, beyond U+10FFFF, a truncated character.
const std::string no_text[] = {
    "\xA4",         "\xC0\xAF",         "\xE0\x80\x80",     "\xF0\x80\x80\x80",
    "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82"};

}  // namespace

TEST_CASE("printable escapes control characters and invalid UTF-8 and shortens long texts") {
  CHECK(printable("worker-0 é") == "worker-0 é");
  CHECK(printable(std::string("a\0b\n\x1b[2J\x7f", 9)) == "a\\x00b\\x0a\\x1b[2J\\x7f");
  CHECK(printable("\u202Eabc\u2066") == "\\xe2\\x80\\xaeabc\\xe2\\x81\\xa6");
  CHECK(printable("\xC2\x9B"
                  "31m") == "\\xc2\\x9b31m");  // another way to begin an escape sequence
  CHECK(printable("\xA4m\xE2\x82") == "\\xa4m\\xe2\\x82");
  CHECK(printable(std::string(41, 'x')) == std::string(40, 'x') + "...");
  CHECK(printable("ééé", 2) == "éé...");
}

TEST_CASE(
    "config: an error about a long key or control characters is one line with place and advice") {
  const std::string text = "{train_batch_size: 8, zero_optimization: {\n ";
  for (const std::string& key :
       {std::string("\"a\\u0000b\": 1"), std::string("\"\\u001b[2J\\r\\n\": 1"),
        std::string("\"\\u009b\": 1"), std::string("steps_per_print: \"\\u0000\""),
        std::string("\"a\\u0000\": [1, }"), "\"" + std::string(5000, 'k') + "\": 1",
        std::string("optimizer: {type: \"\\u0000\\n\"}"),
        "optimizer: {type: \"" + std::string(5000, 'k') + "\"}",
        "a: {b: {\"" + std::string(5000, 'c') + "\": {\"d\": @}}}}\t", std::string("\"a\\n\" 1"),
        std::string("steps_per_print: \"a\\u001b"), std::string("x \t\t: [1 2}")}) {
    const std::string whole = text + key + "\n}}", error = text_error(whole);
    INFO("whole ", whole, ", error ", error);
    CHECK(flaw_of(error, "c.json", whole) == "");
  }
  const Loaded lenient =
      load("{train_batch_size: 8, zero_optimization: {\"a\\u0000\\u001b\": 1}}", {.lenient = true});
  REQUIRE(lenient.config.warnings.size() == 1);
  CHECK(is_one_line(lenient.config.warnings[0]));
  CHECK(contains(lenient.config.warnings[0], "try leaving it out"));
}

TEST_CASE("config: invalid UTF-8 is refused with its line and column, in YAML too") {
  for (const std::string& bytes : no_text) {
    CAPTURE(printable(bytes));
    CHECK(text_error("{\n\"é" + bytes + "\": 1}").starts_with("c.json:2:3: the byte "));
    CHECK(error_of_yaml("debug: no\n'é" + bytes + "': 1").starts_with("a.yaml:2:3: the byte "));
  }
  CHECK(error_of_yaml("debug: \x01").starts_with("a.yaml:1:8: the byte 1 "));
}

TEST_CASE("accelerate: columns in YAML errors count characters, not bytes") {
  CHECK(error_of_yaml("é: 1\né: 2, \"é\": [é, *x]").starts_with("a.yaml:2:"));
  CHECK(error_of_yaml("{é: 1, éé: 2, é: 3}").starts_with("a.yaml:1:15: é: the key comes twice"));
  CHECK(error_of_yaml("\xEF\xBB\xBF{é: 1, é: 3}").starts_with("a.yaml:1:8: é: the key"));
  CHECK(read_yaml("a:\n  - ééé: 1\n    b: {ü: 1, c: 2}\n", "f")
            .members[0]
            .value.items[0]
            .members[1]
            .value.members[1]
            .at.column == 15);
  CHECK(flaw_of(error_of_yaml("a: \"é\\q\""), "a.yaml", "a: \"é\\q\"") == "");
}

TEST_CASE("hjson: a string without quotes keeps its blanks and commas") {
  const auto value = [](const std::string& text) {
    return read_hjson("{ v: " + text + "\n}", "f").members.at(0).value.text;
  };
  CHECK(value("one  , two  # three  ") == "one  , two  # three");
  CHECK(value("1 2  } // x") == "1 2  } // x");
}

TEST_CASE(
    "config: very long numbers and keys and more than 1000 keys are refused without slow parsing") {
  const size_t half = 1 << 19;
  // Regression: an invalid number was parsed again at each comma.
  const std::string digits(half, '1'), commas(half - 64, ',');
  CHECK(text_error("{train_batch_size: " + digits + "x" + commas + "\n}")
            .starts_with("c.json:1:20: train_batch_size: expected"));
  // The distance between a word and every key takes the product of their lengths.
  CHECK(text_error("{zero_optimization: {" + std::string(2 * half - 64, 'k') + ": 1}}")
            .starts_with("c.json:1:22: zero_optimization.kkk"));
  CHECK(nearest(std::string(half, 's'), {"stage", "steps"}).empty());
  std::string keys = "{";
  for (int i = 0; i < 1001; ++i) keys += "k" + std::to_string(i) + ": 1,\n";
  CHECK(text_error(keys + "}").starts_with("c.json:1001:1: more than 1000 keys; expected fewer"));
}

TEST_CASE("hostfile: more than 4096 hosts or 65536 slots are refused") {
  std::string hosts;
  for (int i = 0; i < 4097; ++i) hosts += "h" + std::to_string(i) + " slots=1\n";
  CHECK(error_of_hosts(hosts).starts_with("hosts:4097: expected at most 4096 hosts"));
  std::string slots;
  for (int i = 0; i < 17; ++i) slots += "h" + std::to_string(i) + " slots=4096\n";
  CHECK(error_of_hosts(slots).starts_with("hosts:17: expected at most 4096 hosts of 65536 slots"));
  const std::string shown = error_of_hosts("a\x1b[2J slots=1\n");
  CHECK(flaw_of(shown, "hosts", "a\n", false) == "");
  const auto twice = [] {
    tools::selected(tools::parse_hosts("a slots=4\n", "hosts"), "a:1,1", "");
  };
  CHECK(message_of<ConfigError>(twice) == "--include: slot 1 of a comes twice; expected it once");
}

}  // namespace zg::testing
