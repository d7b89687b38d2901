#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/measure.h"
#include "zerograd/bench.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/json.h"

// Compares the times of two versions of a kernel: the ratio of their medians, and by how much it
// would vary if the measurement were repeated (B. Efron, Bootstrap methods, 1979).
namespace zg::bench {
namespace {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// As many of the values, drawn with repetition.
std::vector<double> drawn(const std::vector<double>& values, std::mt19937_64& random) {
  std::vector<double> result;
  for (size_t i = 0; i < values.size(); ++i) result.push_back(values[random() % values.size()]);
  return result;
}

std::string row_name(const nlohmann::json& row) {
  return row.at("case").get<std::string>() + " | " + row.at("shape").get<std::string>() + " | " +
         row.at("dtype").get<std::string>() + " | " + std::to_string(row.at("threads").get<int>());
}

/// The samples of each row of a record, in its order.
std::vector<std::pair<std::string, std::vector<double>>> rows_of(const std::string& path) {
  const nlohmann::json record = parse_json_object(read_text(path), path);
  const JsonNode rows = JsonNode{record, path + ": "}.at("rows");
  std::vector<std::pair<std::string, std::vector<double>>> result;
  for (const JsonNode& row : rows.members()) try {
      auto samples = row.value.at("samples_s").get<std::vector<double>>();
      const bool are_times = std::ranges::all_of(
          samples, [](double value) { return value > 0.0 && std::isfinite(value); });
      if (samples.empty() || !are_times) row.at("samples_s").fail("seconds above 0");
      result.emplace_back(row_name(row.value), std::move(samples));
    } catch (const nlohmann::json::exception&) {
      row.fail(
          "a row of `zerograd bench kernels --json`, with case, shape, dtype, threads and "
          "samples_s");
    }
  return result;
}

}  // namespace

const char* name_of(Verdict verdict) {
  return verdict == Verdict::slower   ? "slower"
         : verdict == Verdict::faster ? "faster"
                                      : "within noise";
}

Change change_of(const std::vector<Round>& rounds, double least) {
  if (rounds.empty()) throw ConfigError("bench: change_of: expected a round or more, got none");
  if (!(least >= 0.0 && least < 1.0))
    throw ConfigError("bench: change_of: least: expected 0 or more and less than 1, got " +
                      std::to_string(least));
  for (const Round& round : rounds)
    if (round.before.empty() || round.after.empty())
      throw ConfigError("bench: change_of: a round without samples; expected some of both");
  const auto ratio_of = [](const std::vector<double>& before, const std::vector<double>& after) {
    return median_of(after) / median_of(before);
  };
  std::vector<double> ratios;
  for (const Round& round : rounds) ratios.push_back(ratio_of(round.before, round.after));
  std::mt19937_64 random(1);
  std::vector<double> repeated;
  for (int i = 0; i < 4000; ++i)
    repeated.push_back(rounds.size() > 1 ? median_of(drawn(ratios, random))
                                         : ratio_of(drawn(rounds[0].before, random),
                                                    drawn(rounds[0].after, random)));
  constexpr double outside = 0.001;
  Change change{.ratio = median_of(ratios)};
  std::ranges::sort(repeated);
  change.low = quantile(repeated, outside / 2), change.high = quantile(repeated, 1 - outside / 2);
  change.verdict = change.low > 1.0 + least    ? Verdict::slower
                   : change.high < 1.0 - least ? Verdict::faster
                                               : Verdict::noise;
  return change;
}

std::vector<ComparedRow> compare(const std::vector<RecordPair>& records, double least) {
  std::vector<ComparedRow> compared;
  for (const RecordPair& pair : records) {
    const auto before = rows_of(pair.before);
    for (auto& [name, samples] : rows_of(pair.after)) {
      const auto same = std::ranges::find(before, name, [](const auto& row) { return row.first; });
      if (same == before.end()) continue;
      auto row = std::ranges::find(compared, name, &ComparedRow::name);
      if (row == compared.end())
        row = compared.insert(row, {.name = name, .rounds = {}, .change = {}});
      row->rounds.push_back({same->second, std::move(samples)});
    }
  }
  if (compared.empty())
    throw ConfigError("bench: compare: " +
                      (records.empty() ? "no records"
                                       : records[0].before + " and " + records[0].after +
                                             " have no row in common") +
                      "; expected rows with equal case, shape, dtype and threads");
  for (ComparedRow& row : compared) row.change = change_of(row.rounds, least);
  return compared;
}

std::string not_compared(const RecordPair& records) {
  std::string lines;
  const auto only_in = [&](const std::string& path, const std::string& other) {
    const auto others = rows_of(other);
    for (const auto& [name, samples] : rows_of(path))
      if (std::ranges::find(others, name, [](const auto& row) { return row.first; }) ==
          others.end())
        lines += "only in " + path + ": " + name + "\n";
  };
  only_in(records.before, records.after);
  only_in(records.after, records.before);
  const auto machine_of = [](const std::string& path) {
    nlohmann::json record = parse_json_object(read_text(path), path);
    return record["machine"].dump() + " " + record["measured"]["processor"].dump();
  };
  const std::string before = machine_of(records.before), after = machine_of(records.after);
  if (before != after) lines += "the machines differ: " + before + " and " + after + "\n";
  return lines;
}

std::string table_of_changes(const std::vector<ComparedRow>& rows) {
  std::string text =
      "| case | shape | dtype | threads | before ms | after ms | after / before | 99.9 % interval "
      "| |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---|\n";
  for (const ComparedRow& row : rows) {
    const auto milliseconds = [&](const std::vector<double> Round::*samples) {
      std::vector<double> medians;
      for (const Round& round : row.rounds) medians.push_back(median_of(round.*samples));
      return fixed(1e3 * median_of(medians), 3);
    };
    text += "| " + row.name + " | " + milliseconds(&Round::before) + " | " +
            milliseconds(&Round::after) + " | " + fixed(row.change.ratio, 3) + " | " +
            fixed(row.change.low, 3) + " - " + fixed(row.change.high, 3) + " | " +
            name_of(row.change.verdict) + " |\n";
  }
  return text;
}

}  // namespace zg::bench
