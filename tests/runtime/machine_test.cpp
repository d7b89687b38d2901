#include "zerograd/runtime/machine.h"

#include <algorithm>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "zerograd/runtime/device.h"

namespace zg::testing {
namespace {

TEST_CASE("a process uses at most as many cores as the CPU quota of its control group is worth") {
  struct Case {
    const char *v2, *quota, *period;  // the texts of the files; null: there is no such file
    int most;
  };
  constexpr int all = 1 << 20;
  const Case cases[] = {
      {nullptr, nullptr, nullptr, all},         {"max 100000\n", nullptr, nullptr, all},
      {"50000 100000\n", nullptr, nullptr, 1},  {"100000 100000\n", nullptr, nullptr, 1},
      {"100001 100000\n", nullptr, nullptr, 2}, {"damaged", nullptr, nullptr, all},
      {nullptr, "-1\n", "100000\n", all},       {nullptr, "20000\n", "50000\n", 1},
      {nullptr, "120000\n", "50000\n", 3},      {nullptr, "20000\n", nullptr, all},
      {nullptr, "20000\n", "0\n", all}};
  const TemporaryFolder none;
  const int cores = cores_of(0, none.path());  // of the affinity mask
  CHECK(cores >= 1);
  CHECK(available_cores() == std::max(1, cores_of(0)));
  for (const Case& each : cases) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "cpu");
    if (each.v2) write_file(folder / "cpu.max", each.v2);
    if (each.quota) write_file(folder / "cpu/cpu.cfs_quota_us", each.quota);
    if (each.period) write_file(folder / "cpu/cpu.cfs_period_us", each.period);
    CAPTURE(each.most);
    CHECK(cores_of(0, folder.path()) == std::min(cores, each.most));
  }
}

}  // namespace
}  // namespace zg::testing
