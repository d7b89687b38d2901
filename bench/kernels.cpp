// Measures kernels on this machine and prints a Markdown table:
//   bench_kernels [--filter TEXT] [--threads 1,2]
// TEXT is looked for in "name dtype".

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "bench/case.h"
#include "runtime/device.h"

namespace {

std::vector<int> parse_threads(const std::string& list) {
  std::vector<int> threads;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) threads.push_back(std::stoi(item));
  return threads;
}

int run(int argc, char** argv) {
  std::string filter;
  std::vector<int> threads{1};
  if (zg::available_cores() > 1) threads.push_back(zg::available_cores());
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc || (flag != "--filter" && flag != "--threads")) {
      std::cerr << "usage: bench_kernels [--filter TEXT] [--threads 1,2]\n";
      return 2;
    }
    if (flag == "--filter")
      filter = argv[i + 1];
    else
      threads = parse_threads(argv[i + 1]);
  }
  std::vector<zg::bench::Case> chosen;
  for (const auto& cases : {zg::bench::matmul_cases()})
    for (const zg::bench::Case& c : cases)
      if ((c.name + " " + zg::name_of(c.dtype)).find(filter) != std::string::npos)
        chosen.push_back(c);
  std::cout << "Instruction set: " << zg::name_of(zg::best_isa()) << "\n\n";
  zg::bench::print_table(std::cout, chosen, threads);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "bench_kernels: " << error.what() << "\n";
    return 1;
  }
}
