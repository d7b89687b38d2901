#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "tools/run/run.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;

// CPU time of this thread, the only one that works here. Other processes disturb it less than wall
// time.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Timing {
  const char* name;
  std::vector<double> seconds;  // sorted

  double rate(int64_t bytes) const {
    return static_cast<double>(bytes) / bench::quantile(seconds, 0.5);
  }
};

Timing measure(const char* name, int64_t repeats, const std::function<void()>& run) {
  Timing row{.name = name};
  for (int64_t i = 0; i <= repeats; ++i) {
    const double begin = processor_seconds();
    run();
    if (i > 0)  // the first run allocates the memory that the others reuse
      row.seconds.push_back(processor_seconds() - begin);
  }
  std::ranges::sort(row.seconds);
  return row;
}

/// The tokenizer for --tokenizer: read from a PATH, or for "train:SIZE" a GPT-2-like one with SIZE
/// tokens, trained on `text`.
models::Tokenizer tokenizer_named(const std::string& name, std::string_view text) {
  constexpr std::string_view train = "train:";
  if (!name.starts_with(train)) return models::load_tokenizer(name);
  return models::train_tokenizer(
      text, {.vocabulary = parse_integer("--tokenizer", name.substr(train.size()), 257, 1 << 24)});
}

void print(const std::vector<Timing>& rows, int64_t bytes, int64_t tokens) {
  std::printf(
      "| case | bytes | tokens | median ms | p10 - p90 | MB/s | best |\n"
      "|---|---:|---:|---:|---:|---:|---:|\n");
  for (const Timing& row : rows) {
    const auto ms = [&](double q) { return 1e3 * bench::quantile(row.seconds, q); };
    std::printf("| %s | %lld | %lld | %.1f | %.1f - %.1f | %.1f | %.1f |\n", row.name,
                (long long)bytes, (long long)tokens, ms(0.5), ms(0.1), ms(0.9),
                1e-6 * row.rate(bytes), 1e-3 * static_cast<double>(bytes) / ms(0.0));
  }
}

Json json_of(const std::vector<Timing>& rows, const models::Tokenizer& tokenizer, int64_t bytes,
             int64_t tokens) {
  Json cases = Json::array();
  for (const Timing& row : rows)
    cases.push_back({{"case", row.name},
                     {"samples", row.seconds.size()},
                     {"median_s", bench::quantile(row.seconds, 0.5)},
                     {"p10_s", bench::quantile(row.seconds, 0.1)},
                     {"p90_s", bench::quantile(row.seconds, 0.9)},
                     {"best_s", row.seconds.front()},
                     {"bytes_per_s", row.rate(bytes)}});
  return {{"schema", 1},
          {"bench", "tokenizer"},
          {"machine", bench::machine_json()},
          {"vocabulary", tokenizer.vocabulary()},
          {"tokenizer_checksum", checksum_of(tokenizer)},
          {"bytes", bytes},
          {"tokens", tokens},
          {"rows", cases}};
}

}  // namespace

int bench_tokenizer(const std::vector<std::string>& arguments) {
  std::string path, name, json;
  int64_t repeats = 10;
  const CommandLine line = {
      .usage = "zerograd bench tokenizer TEXT --tokenizer PATH|train:SIZE [flags]",
      .summary =
          "Encodes a text and decodes its tokens. Measures the processor time of one thread.",
      .positionals = {positional("TEXT", "a file", path, PathUse::reads)},
      .groups = {{"flags",
                  {tokenizer_flag(
                       {"--tokenizer"}, "PATH", name,
                       "a tokenizer.json, a folder with one or with vocab.json and merges.txt,\n"
                       "or train:SIZE for one of SIZE tokens, trained on TEXT"),
                   integer_flag({"--repeats"}, repeats, "measurements, after one for warm-up",
                                {1, nullptr}),
                   path_flag({"--json"}, "F", json, PathUse::writes, "write results as JSON")}}},
      .notes = "  zerograd bench tokenizer input.txt --tokenizer train:4096"};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  if (name.empty())
    throw ConfigError("--tokenizer: expected PATH or train:SIZE, got nothing; try train:4096");
  check_writable("--json", json);
  const std::string text = read_text(path);
  if (text.empty()) raise<ConfigError>("{}: the file is empty; expected text", path);
  const models::Tokenizer tokenizer = tokenizer_named(name, text);
  std::vector<int32_t> ids;
  std::string back;
  std::vector<Timing> rows;
  rows.push_back(measure("encode", repeats, [&] { ids = tokenizer.encode(text); }));
  rows.push_back(measure("decode", repeats, [&] { back = tokenizer.decode(ids); }));
  if (back != text) raise<Error>("bench tokenizer: decoding does not give the text of {}", path);
  const auto bytes = std::ssize(text), tokens = std::ssize(ids);
  print(rows, bytes, tokens);
  if (!json.empty()) replace_text(json, json_of(rows, tokenizer, bytes, tokens).dump(1));
  return 0;
}

}  // namespace zg::tools
