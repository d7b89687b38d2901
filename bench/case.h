#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/dtype.h"

namespace zg::bench {

/// One row of the table. `make` allocates the operands, once, and returns what is timed.
struct Case {
  std::string name;  ///< "matmul 1024x768x768 NT"
  DType dtype = DType::f32;
  double flops = 0.0;  ///< of one run; 0 when bytes bound it
  double bytes = 0.0;  ///< read and written by one run
  std::function<std::function<void()>(const Device&)> make;
};

std::vector<Case> matmul_cases();

/// Seconds of one run, sorted: 50 of them after 10 for warming up, fewer when they take long.
std::vector<double> measure(const std::function<void()>& run);

/// Prints Markdown: median and p10-p90 time, the rate of the median and of the best run, and where
/// flops are given, both as percentages of the measured peak of the device.
void print_table(std::ostream& out, const std::vector<Case>& cases,
                 const std::vector<int>& threads);

}  // namespace zg::bench
