#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tests/support/tested_type.h"

namespace {

/// Detects a run without a test case. Otherwise a wrong name in ctest would always pass.
struct EmptyRun final : doctest::IReporter {
  static inline bool seen = false;
  explicit EmptyRun(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& run) override {
    seen = run.numTestCasesPassingFilters == 0;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("empty run", 1, EmptyRun);

}  // namespace

const zg::Device::Type zg::testing::tested_type = zg::Device::Type::cpu;

int main(int count, char** arguments) {
  const int status = doctest::Context(count, arguments).run();
  if (!EmptyRun::seen) return status;
  std::fprintf(stderr, "error: no test case has the name that was asked for\n");
  return 1;
}
