#include "tests/fakes/level_zero/report.h"

#include <cstdarg>
#include <cstdio>

namespace zg::test_driver {
namespace {

void print(const char* format, va_list arguments) {
  char words[1024];
  std::vsnprintf(words, sizeof words, format, arguments);
  std::fprintf(stderr, "zerograd test driver: %s\n", words);
}

}  // namespace

void report(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print(format, arguments);
  va_end(arguments);
}

ze_result_t refuse(ze_result_t answer, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print(format, arguments);
  va_end(arguments);
  return answer;
}

}  // namespace zg::test_driver
