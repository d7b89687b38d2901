#pragma once

#include <level_zero/ze_api.h>

namespace zg::test_driver {

/// Prints a line on stderr, with the driver's name before it.
[[gnu::format(printf, 1, 2)]] void report(const char* format, ...);

/// Prints the same for an invalid call, and returns `answer`, the result that the caller gets.
[[gnu::format(printf, 2, 3)]] ze_result_t refuse(ze_result_t answer, const char* format, ...);

}  // namespace zg::test_driver
