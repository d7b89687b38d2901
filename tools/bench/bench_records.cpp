#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/flags.h"
#include "tools/run/child.h"
#include "zerograd/bench.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string before, after, filter;
  bool runs = false;
  std::optional<double> least;
  int64_t rounds = 15;
  double seconds = 0.1;
  std::vector<int> threads{1};
};

/// Runs `COMMAND bench kernels WORDS`. Returns its output.
std::string run_kernels(const std::string& command, std::vector<std::string> words) {
  words.insert(words.begin(), {command, "bench", "kernels"});
  const CapturedEnd end = capture_child(words, "expected a command with bench kernels", 3600.0);
  if (end.end.signal != 0) throw Unsupported("bench compare: interrupted");
  if (end.end.status != 0)
    raise<ConfigError>("bench compare: {} bench kernels ended with status {}: {}", command,
                       end.end.status, end.output);
  return end.output;
}

std::vector<std::string> cases_of(const std::string& command, const std::string& filter) {
  std::vector<std::string> words{"--list"};
  if (!filter.empty()) words.insert(words.end(), {"--filter", filter});
  std::vector<std::string> cases;
  std::istringstream lines(run_kernels(command, words));
  for (std::string line; std::getline(lines, line);) cases.push_back(line);
  return cases;
}

/// A regular expression that finds exactly this text.
std::string exactly(const std::string& text) {
  std::string pattern = "^";
  for (const char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != ' ') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

/// A folder for records, removed at the end.
struct Folder {
  fs::path path;
  Folder() {
    // mkdtemp replaces the six X at the end.
    std::string name = (fs::temp_directory_path() / "zerograd-").native() + std::string(6, 'X');
    if (!mkdtemp(name.data())) throw FileError(name + ": cannot be created");
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

/// Measures both commands case by case in turns; each round begins with the other one.
std::vector<bench::RecordPair> measured(const Arguments& arguments, const Folder& folder) {
  const std::vector<std::string> old_cases = cases_of(arguments.before, arguments.filter);
  std::vector<std::string> cases = cases_of(arguments.after, arguments.filter);
  std::erase_if(cases, [&](const std::string& c) { return !std::ranges::count(old_cases, c); });
  if (cases.empty())
    raise<ConfigError>("bench compare: {} and {} have no case in common", arguments.before,
                       arguments.after);
  std::vector<bench::RecordPair> pairs;
  for (int64_t round = 0; round < arguments.rounds; ++round)
    for (const std::string& name : cases)
      for (const int threads : arguments.threads) {
        const std::string stem = (folder.path / std::to_string(pairs.size())).string();
        const bench::RecordPair& pair = pairs.emplace_back(
            bench::RecordPair{.before = stem + ".before.json", .after = stem + ".after.json"});
        const auto run = [&](const std::string& command, const std::string& record) {
          run_kernels(command,
                      {"--filter", exactly(name), "--threads", std::to_string(threads), "--seconds",
                       fmt::format("{}", arguments.seconds), "--limits", "off", "--json", record});
        };
        if (round % 2 == 0) run(arguments.before, pair.before);
        run(arguments.after, pair.after);
        if (round % 2 != 0) run(arguments.before, pair.before);
      }
  return pairs;
}

}  // namespace

int bench_compare(const std::vector<std::string>& words) {
  Arguments arguments;
  constexpr Range share{0.0, 1.0, false, true, "a number of 0 or more and less than 1"};
  const CommandLine line = {
      .usage = "zerograd bench compare BEFORE AFTER [flags]",
      .summary =
          "Compares two records of `bench kernels --json` row by row, or with --run two versions\n"
          "of this command, which it runs in turns: the ratio of the medians, its interval, and\n"
          "whether a row is slower. Exit status 1 if a row is slower.",
      .positionals = {positional("BEFORE", "a record, or a command", arguments.before,
                                 PathUse::reads),
                      positional("AFTER", "a record, or a command", arguments.after,
                                 PathUse::reads)},
      .groups =
          {{"flags",
            {switch_flag({"--run"}, arguments.runs, "BEFORE and AFTER are commands; runs both"),
             {{"--least"},
              "X",
              "the smallest change that is more than noise [0.01 with --run, 0.05 without]",
              [&](const std::string& name, const std::string& value) {
                arguments.least = parse_number(name, value, share);
              }}}},
           {"with --run",
            {text_flag({"--filter"}, "RE", arguments.filter, "cases, as of bench kernels"),
             integer_flag({"--rounds"}, arguments.rounds,
                          "rounds; each runs both commands; the interval is too narrow below ten",
                          {.minimum = 1}),
             number_flag({"--seconds"}, arguments.seconds, measured_seconds,
                         "time for the samples of a row in a round"),
             {{"--threads"},
              "LIST",
              "threads to compute with, as in 1,2; 0: every core [1]",
              [&](const std::string& name, const std::string& value) {
                arguments.threads = parse_threads(name, value);
              }}}}},
      .notes = "  zerograd bench compare --run old/zerograd new/zerograd --filter 'matmul.*f32'"};
  Given given;
  if (!parse(line, words, given)) return 0;
  if (!arguments.runs)
    refuse_flags(given, {"--filter", "--rounds", "--seconds", "--threads"},
                 "expected --run beside it");
  const bench::OtherPrograms others;
  const Folder folder;
  const std::vector<bench::RecordPair> pairs =
      arguments.runs ? measured(arguments, folder)
                     : std::vector{bench::RecordPair{arguments.before, arguments.after}};
  const std::vector<bench::ComparedRow> rows =
      bench::compare(pairs, arguments.least.value_or(arguments.runs ? 0.01 : 0.05));
  std::fputs(bench::table_of_changes(rows).c_str(), stdout);
  if (!arguments.runs) {
    const std::string lines = bench::not_compared({arguments.before, arguments.after});
    if (!lines.empty()) std::fputs(("\n" + lines).c_str(), stdout);
  }
  if (arguments.runs && others.share() > bench::share_of_busy_machine)
    print_line(
        stdout,
        "\nOther programs used {:.0f} % of the cores' time: on an idle machine the intervals "
        "are narrower.",
        100.0 * others.share());
  return std::ranges::any_of(rows, [](const bench::ComparedRow& row) {
    return row.change.verdict == bench::Verdict::slower;
  });
}

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
