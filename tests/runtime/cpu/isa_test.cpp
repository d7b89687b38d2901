#include <string>

#include "tests/support/error_message.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/runtime/device.h"

namespace zg {
namespace {

TEST_CASE("ZG_CPU_ISA lowers the instruction set") {
  const testing::ScopedVariable isa("ZG_CPU_ISA", "portable");
  CHECK(best_isa() == Isa::portable);
}

TEST_CASE("the error for an unknown instruction set names ZG_CPU_ISA if it came from there") {
  const std::string expected =
      ": expected portable, avx2, avx512, avx512_bf16 or amx_bf16, got 'sse'";
  const testing::ScopedVariable isa("ZG_CPU_ISA", "sse");
  CHECK(testing::message_of<ConfigError>([] { best_isa(); }) == "ZG_CPU_ISA" + expected);
  CHECK(testing::message_of<ConfigError>([] { parse_isa("sse"); }) == "instruction set" + expected);
}

}  // namespace
}  // namespace zg
