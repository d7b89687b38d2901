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

struct Effort {
  int warm_up = 10, fewest = 7, samples = 50;
  double seconds = 1.5;  ///< beyond it no more than the fewest samples
};
/// Seconds of one run, sorted: fewer of them when they take long.
std::vector<double> measure(const std::function<void()>& run, const Effort& effort = {});

/// Prints Markdown: median and p10-p90 time, the rate of the median and of the best run, and where
/// flops are given, both as percentages of the measured peak of the device.
void print_table(std::ostream& out, const std::vector<Case>& cases,
                 const std::vector<int>& threads);

}  // namespace zg::bench
