#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "bench/case.h"

using namespace zg;

TEST_CASE("every case name of bench/peers/gpu.py is the name of a case of bench kernels") {
  std::set<std::string> cases;
  for (const bench::Case& c : bench::kernel_cases(Device::Type::cuda)) cases.insert(c.text());
  const std::filesystem::path folder = ZG_BENCH;
  const std::string command =
      std::string(ZG_PYTHON " ") + (folder / "peers/gpu.py").string() + " --names";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> names(popen(command.c_str(), "r"), pclose);
  REQUIRE(names);
  int count = 0;
  for (char line[200]; std::fgets(line, sizeof line, names.get()); ++count) {
    const std::string name(line, std::string(line).find('\n'));
    CAPTURE(name);
    CHECK(cases.count(name) == 1);
  }
  CHECK(count >= 20);
}
