#include "tests/zero/deepspeed/deepspeed_case.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {
namespace {

using zero::deepspeed::read_hjson;
using zero::deepspeed::Value;

Value value_of(const std::string& text) {
  return read_hjson("{ v: " + text + "\n}", "f").members.at(0).value;
}

std::string hjson_error(const std::string& text) {
  return message_of<ConfigError>([&] { read_hjson(text, "f"); });
}

}  // namespace

TEST_CASE("hjson: comments, missing and trailing commas and strings without quotes are accepted") {
  const Value root = read_hjson(
      "# one\n{ // two\n  \"a\": 5e8   #this MAY be necessary\n  b: [1\n 2,3,], /* three\n */ 'c': "
      "quoteless, and so on \n  d: {e: true,}, \"f\": '''x\ny'''}  # end",
      "f");
  REQUIRE(root.members.size() == 5);
  CHECK(root.members[0].value.number == 5e8);
  CHECK(root.members[1].value.items.size() == 3);
  CHECK(root.members[2].key == "c");
  CHECK(root.members[2].value.text == "quoteless, and so on");
  CHECK(root.members[3].value.members[0].value.boolean);
  CHECK(root.members[4].value.text == "x\ny");
  CHECK(root.members[4].at.line == 7);
  CHECK(read_hjson("a: 1\nb: 2", "f").members.size() == 2);  // a root without braces
}

TEST_CASE(
    "hjson: a literal ends at punctuation, a comment or the line end, and other text is a string") {
  CHECK(value_of("1.5e3 # x").number == 1500.0);
  CHECK(value_of("-0.25, w: 1").number == -0.25);
  CHECK(value_of("null").kind == Value::Kind::null);
  CHECK(value_of("false // no").kind == Value::Kind::boolean);
  for (const char* text : {"007", "+1", ".5", "1.", "0x10", "1e", "nan", "truely", "2 MiB"})
    CHECK(value_of(text).kind == Value::Kind::text);
  CHECK(value_of("\"\\u00e9\\ud83d\\ude00\\n\"").text == "\xC3\xA9\xF0\x9F\x98\x80\n");
  CHECK(value_of("1e-999").number == 0.0);
}

TEST_CASE("hjson: every error has its place, key path and advice") {
  const struct {
    const char *text, *begins, *has;
  } cases[] = {
      {"", "f:1:1: ", "holds no settings"},
      {"{\"a\": 1", "f:1:8: ", "a } for the { of line 1"},
      {"{\n \"a\": {\"device\": \"", "f:2:18: a.device: the string is not closed", "cut off"},
      {"{\"a\": \"b\n\"}", "f:1:7: a: the string is not closed", "end of the line"},
      {"{\"a\": 1, \"a\": 2}", "f:1:10: a: the key comes twice", "in line 1"},
      {"{a: 1,, b: 2}", "f:1:7: ", "one comma"},
      {"{a 1}", "f:1:4: a: ", "expected a :"},
      {"{a: }", "f:1:5: a: ", "expected a value"},
      {"{a: [1, }", "f:1:9: a[1]: ", "expected a value"},
      {"{a: 1} b", "f:1:8: ", "after the end"},
      {"{a: 1}}", "f:1:7: ", "after the end"},
      {"{\"\xC3\xA9\": 1, \"x\": \"\\q\"}", "f:1:16: x: ", "an escape"},
      {"{\"x\": \"\\ud83d\"}", "f:1:8: x: ", "both halves"},
      {"{a: 1e999}", "f:1:5: a: ", "a double holds"},
      {"{a: 1 /* }", "f:1:7: ", "the comment is not closed"},
      {"{a: '''b}", "f:1:5: a: ", "'''"},
      {"{a: \"\x01\"}", "f:1:6: ", "UTF-8"},
      {"{a: \"\xFF\"}", "f:1:6: ", "UTF-8"},
      {"{a:", "f:1:4: a: ", "cut off"},
  };
  for (const auto& [text, begins, has] : cases) {
    CAPTURE(text);
    const std::string error = hjson_error(text);
    CAPTURE(error);
    CHECK(error.starts_with(begins));
    CHECK(error.find(has) != std::string::npos);
    CHECK(error.find("; try ") != std::string::npos);
  }
}

TEST_CASE(
    "hjson: 64 nesting levels are read, more are refused, and a list of 100000 items is read") {
  const auto nested = [](int levels) {
    return std::string("{a:") + std::string(static_cast<size_t>(levels - 1), '[') +
           std::string(static_cast<size_t>(levels - 1), ']') + "}";
  };
  CHECK_NOTHROW(read_hjson(nested(64), "f"));
  CHECK(hjson_error(nested(65)).find("64 levels") != std::string::npos);
  CHECK(hjson_error(nested(200'000)).find("64 levels") != std::string::npos);
  std::string wide = "{a: [";
  for (int i = 0; i < 100'000; ++i) wide += "1,";
  CHECK(read_hjson(wide + "]}", "f").members[0].value.items.size() == 100'000);
}

}  // namespace zg::testing
