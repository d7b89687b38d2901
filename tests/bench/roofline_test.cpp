#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/bench.h"

using namespace zg;
using namespace zg::bench;
using namespace zg::testing;

namespace {

constexpr Limits limits{
    .matmul_f32 = 100e9, .matmul_bf16 = 400e9, .memory = 10e9, .update = 20e9, .read = 15e9};

struct Label {
  std::string text;
  double left, right, y;
};
/// The labels of the plot, which begins below its head.
std::vector<Label> labels_of(const std::string& svg) {
  const std::regex pattern(R"re(<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="start">([^<]*))re");
  std::vector<Label> labels;
  for (std::sregex_iterator match(svg.begin(), svg.end(), pattern), end; match != end; ++match) {
    const double x = std::stod((*match)[1]), y = std::stod((*match)[2]);
    const std::string text = (*match)[3];
    if (y > 50) labels.push_back({text, x, x + 6.0 * static_cast<double>(text.size()), y});
  }
  return labels;
}

}  // namespace

TEST_CASE("a record is drawn for each dtype and thread count, rows without bytes are left out") {
  const TemporaryFolder folder;
  const std::string path = folder / "mine.json";
  Report one(Device::cpu(0, {.threads = 1}), {.limits = limits});
  Report two(Device::cpu(0, {.threads = 2}), {.limits = limits});
  one.add({.name = "my <scale>", .shape = "9", .flops = 1e9, .read = 4e9, .written = 4e9}, {1.0});
  one.add({.name = "only bytes", .read = 4e9}, {1.0});
  one.add({.name = "only operations", .flops = 4e9}, {1.0});
  two.add({.name = "narrow", .shape = "7", .dtype = DType::bf16, .flops = 1e9, .read = 4e9}, {1.0});
  write_json(path, {one, two});
  const std::vector<Drawing> drawings = rooflines(path);
  REQUIRE(drawings.size() == 2);
  CHECK(drawings[0].dtype + std::to_string(drawings[0].threads) == "f321");
  CHECK(drawings[1].dtype + std::to_string(drawings[1].threads) == "bf162");
  CHECK(contains(drawings[0].svg, ">memory, 20.0 GB/s</text>"));
  CHECK(contains(drawings[0].svg, ">multiply-adds, 100.0 GFLOP/s</text>"));
  CHECK(contains(drawings[1].svg, ">multiply-adds, 400.0 GFLOP/s</text>"));
  CHECK(contains(drawings[0].svg, ">my &lt;scale&gt;</text>"));
  CHECK(contains(drawings[0].svg,
                 "<title>my &lt;scale&gt; 9: 1.0 GFLOP/s, 8.0 GB/s, 40 % of memory"));
  CHECK(!contains(drawings[0].svg, "only"));
  CHECK(drawings[0].svg.ends_with("</svg>\n"));

  Report nothing(Device::cpu(), {.limits = limits});
  nothing.add({.name = "only bytes", .read = 4e9}, {1.0});
  write_json(path, {nothing});
  CHECK_ERROR(ConfigError, "a row with operations and bytes, got none", rooflines(path));
  std::ofstream(folder / "text") << "{}";
  CHECK_ERROR(FileError, "expected what `zerograd bench kernels --json` writes",
              rooflines(folder / "text"));
}

TEST_CASE("labels of points that are close together do not lie on each other") {
  const TemporaryFolder folder;
  Report report(Device::cpu(0, {.threads = 1}), {.limits = limits});
  for (int i = 0; i < 60; ++i) {
    const double seconds = 1.0 + 0.02 * i;
    report.add({.name = "kernel number " + std::to_string(i),
                .shape = "4096x768",
                .flops = 1e9 * (1 + i % 7),
                .read = 4e9,
                .written = 1e7 * i},
               {seconds});
  }
  write_json(folder / "rows.json", {report});
  const std::vector<Label> labels = labels_of(rooflines(folder / "rows.json").front().svg);
  CHECK(labels.size() >= 30);
  for (const Label& a : labels)
    for (const Label& b : labels) {
      if (&a == &b) continue;
      INFO(a.text, " at ", a.left, ", ", a.y, " and ", b.text, " at ", b.left, ", ", b.y);
      CHECK((a.right <= b.left || b.right <= a.left || std::abs(a.y - b.y) >= 11));
    }
}
