#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "tests/support/error_message.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"

namespace zg {
namespace {

/// ZG_CPU_ISA for the time of a test.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* set = std::getenv("ZG_CPU_ISA")) before_ = set;
    setenv("ZG_CPU_ISA", value, 1);
  }
  ~Environment() {
    if (before_.empty())
      unsetenv("ZG_CPU_ISA");
    else
      setenv("ZG_CPU_ISA", before_.c_str(), 1);
  }

 private:
  std::string before_;
};

TEST_CASE("ZG_CPU_ISA lowers the instruction set") {
  const Environment environment("portable");
  CHECK(best_isa() == Isa::portable);
}

TEST_CASE("an instruction set that is none is told with where it was asked for") {
  const std::string expected =
      ": expected portable, avx2, avx512, avx512_bf16 or amx_bf16, got 'sse'";
  const Environment environment("sse");
  CHECK(testing::message_of<ConfigError>([] { best_isa(); }) == "ZG_CPU_ISA" + expected);
  CHECK(testing::message_of<ConfigError>([] { parse_isa("sse"); }) == "instruction set" + expected);
}

}  // namespace
}  // namespace zg
