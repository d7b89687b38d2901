#include "zerograd/runtime/text/json.h"

#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "zerograd/runtime/text/format.h"

using namespace zg;
using namespace std::string_literals;

namespace {

std::string refusal(const std::string& text, const JsonRules& rules = {}) {
  return testing::message_of<FileError>([&] { parse_json_object(text, "f", rules); });
}

}  // namespace

TEST_CASE("parse_json_object reads each kind of value, and the last of two equal keys counts") {
  const std::string text = R"({"a":[1,{"b":[]},-2,2.5,"x\n\u00e9",null,true],"c":{"a":{}}})";
  CHECK(parse_json_object(text, "f") == nlohmann::json::parse(text));
  CHECK(parse_json_object<nlohmann::ordered_json>(R"({"b":[{}],"a":2})", "f").dump() ==
        R"({"b":[{}],"a":2})");
  CHECK(parse_json_object(R"({"a":{"b":1},"a":{"c":2}})", "f").dump() == R"({"a":{"c":2}})");
}

TEST_CASE("parse_json_object names line and column of what it refuses") {
  const struct {
    std::string text, message;
  } cases[] = {
      {"", "1:1: is not JSON: "},
      {"{\n \"a\": }", "2:7: is not JSON: "},
      {"{\"\u00e9\u00e9\":x}", "1:7: is not JSON: "},  // columns are characters
      {"{\"a\":1}\n{}", "2:1: is not JSON: "},
      {"{\"a\":1e999}", "1:10: is not JSON: number overflow"},
      {"{\"a\":\"\\ud800\"}", "1:13: is not JSON: "},
      {"{\"a\":\"\xff\"}", "1:7: invalid UTF-8"},
      {"{\"a\":1}\0"s, "1:8: has a zero byte"},
      {"{\"a\":\0 1}"s, "1:6: has a zero byte"},
      {"\0"s, "1:1: has a zero byte"},
      {"[1]", "1:1: expected a JSON object, got [1]"},
      {"{\"a\":" + std::string(100000, '['), "1:69: is nested deeper than 64 levels"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.text.substr(0, 40));
    const std::string found = refusal(c.text);
    CHECK_MESSAGE(found.starts_with("f:" + c.message), found);
  }
  CHECK(refusal("\n[]", {.line = 7, .advice = "; try x"}) ==
        "f:7:1: expected a JSON object, got []; try x");
  CHECK(parse_json_object("{\"a\":" + std::string(63, '[') + std::string(63, ']') + "}", "f")
            .contains("a"));
  // Brackets in strings do not nest.
  CHECK(refusal(R"({"a":"[[\"[[","b":[]})", {.max_depth = 2}) == "nothing was thrown");
  CHECK(refusal(R"({"a":"[[\"[[","b":[[]]})", {.max_depth = 2}) ==
        "f:1:20: is nested deeper than 2 levels");
}

TEST_CASE("where keys must be unique, the second of two equal ones is refused with its place") {
  const JsonRules unique{.unique_keys = true};
  CHECK(refusal(R"({"a":{"a":"\"a"},"b":[{"a":1},{"a":1}]})", unique) == "nothing was thrown");
  CHECK(refusal("{\"a\":\"a\",\n \"a\":2}", unique) == "f:2:2: has 'a' twice");
  CHECK(refusal(R"({"a":[{"b":1,"\u0062":2}]})", unique) == "f:1:14: has 'b' twice");
  CHECK(refusal("{\"\u009b\":1,\"\u009b\":2}", unique) == "f:1:8: has '\\xc2\\x9b' twice");
}

TEST_CASE("parse_json_object takes linear time for many objects in a list and many keys") {
  std::string list = "{\"a\":[", keys = "{";
  for (int i = 0; i < 300000; ++i) {  // minutes, if each one were compared with those before
    list += "{},";
    keys += fmt::format("\"{}\":{{}},", i);
  }
  CHECK(parse_json_object(list + "{}]}", "f")["a"].size() == 300001);
  CHECK(parse_json_object(keys + "\"a\":1}", "f", {.unique_keys = true}).size() == 300001);
  CHECK(parse_json_object<nlohmann::ordered_json>(keys + "\"a\":1}", "f").size() == 300001);
}
