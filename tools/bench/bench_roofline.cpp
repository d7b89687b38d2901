#include <filesystem>

#include "tools/bench/command.h"
#include "tools/options/flags.h"
#include "zerograd/bench.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

int bench_roofline(const std::vector<std::string>& words) {
  std::string record, out = "roofline.svg";
  const CommandLine line = {
      .usage = "zerograd bench roofline RECORD [flags]",
      .summary =
          "Draws the rows of a record of `bench kernels --json` below the limits that were "
          "measured\n"
          "with them, as one SVG for each dtype and number of threads.",
      .positionals = {positional("RECORD", "the record", record, PathUse::reads)},
      .groups = {{"flags",
                  {path_flag({"--out"}, "F", out, PathUse::writes,
                             "roofline.svg writes roofline-f32-1.svg and so on [roofline.svg]")}}},
      .notes = "  zerograd bench roofline kernels.json --out pictures/roofline.svg"};
  Given given;
  if (!parse(line, words, given)) return 0;
  for (const bench::Drawing& drawing : bench::rooflines(record)) {
    std::filesystem::path path = out;
    path.replace_filename(fmt::format("{}-{}-{}{}", path.stem().string(), drawing.dtype,
                                      drawing.threads, path.extension().string()));
    replace_text(path.string(), drawing.svg);
    print_line(stdout, "{}", printable(path.string()));
  }
  return 0;
}

}  // namespace zg::tools
