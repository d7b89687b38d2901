#include <map>
#include <optional>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/runtime/tensor.h"

using namespace zg;
using namespace zg::testing;

// Tests tests/support/shown.h, which every source of a test includes.
TEST_CASE("failed checks show values as text: numbers, names, ranges, pairs and absent values") {
  using testing::text_of_value;
  enum class Plain : uint8_t { a, b };
  const char* text = "left";
  const char* none = nullptr;
  CHECK(text_of_value(text) == "left");
  CHECK(text_of_value(none) == "null");
  CHECK(text_of_value(0.1f) == "0.1");
  CHECK(text_of_value(0.10000001f) == "0.10000001");
  CHECK(text_of_value(16777217.0) == "16777217");
  CHECK(text_of_value(0.1 + 0.2) == "0.30000000000000004");
  CHECK(text_of_value(bf16(1.5f)) == "1.5");
  CHECK(text_of_value(DType::bf16) == "bf16");
  CHECK(text_of_value(Space::host) == "host");
  CHECK(text_of_value(Plain::b) == "1");
  CHECK(text_of_value(Shape{2, 3}) == "[2, 3]");
  CHECK(text_of_value(std::vector<bool>{true, false}) == "[true, false]");
  CHECK(text_of_value(std::map<std::string, int>{{"a", 1}}) == "[(a, 1)]");
  CHECK(text_of_value(std::optional<float>()) == "nothing");
  CHECK(text_of_value(std::optional<float>(2.5f)) == "2.5");
  CHECK(text_of_value(std::vector<int>(100, 7)).ends_with("7, ... 100 in all]"));
  struct Pair {
    std::string name;
    std::vector<double> losses;
    DType dtype = DType::f16;
  };
  CHECK(text_of_value(Pair{"a", {0.5, 2}}) == "(a, [0.5, 2], f16)");
  const Device device = Device::meta();
  CHECK(text_of_value(device) == "meta:0");
  CHECK(text_of_value(Tensor()) == "absent");
  CHECK(text_of_value(Tensor::empty({2}, DType::i32, device)) == "i32 [2] on meta, without values");
  int values[] = {1, 2};
  CHECK(text_of_value(values) == "[1, 2]");
  CHECK(text_of_value(contains("a text", "part")) == "\"part\" in \"a text\"");
  CHECK(text_of_value(!contains("a text", "text")) == "\"text\" not in \"a text\"");
  const std::vector<float> floats{1, 2, 3};
  CHECK(same_bits(floats, floats));
  CHECK(text_of_value(same_bits(floats, {1, 2.5f, 4})) == "element 1 of 3 is 2 and 2.5; 2 differ");
  CHECK(text_of_value(same_bits<double>({0.0}, {-0.0})) == "element 0 of 1 is 0 and -0; 1 differ");
}
