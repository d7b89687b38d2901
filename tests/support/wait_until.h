#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace zg::testing {

/// Returns once condition() holds. Throws after two minutes: long enough that a busy or paused
/// machine does not fail a test.
template <class Condition>
void wait_until(const Condition& condition, const std::string& what) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit)
      throw std::runtime_error("waited two minutes until " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace zg::testing
