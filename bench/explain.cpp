#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "bench/measure.h"
#include "zerograd/bench.h"
#include "zerograd/runtime/error.h"

// Why a kernel misses its limit: its times under conditions that differ in one point, in turns.
namespace zg::bench {
namespace {

constexpr struct {
  Cause cause;
  bool Conditions::*absent;  ///< the condition of a kernel that does not have the cause
  const char* name;
} causes[] = {{Cause::misalignment, &Conditions::aligned, "operands or rows off 64 bytes"},
              {Cause::small_pages, &Conditions::huge_pages, "small pages"},
              {Cause::shared_lines, &Conditions::apart, "cache lines that threads share"},
              {Cause::tail, &Conditions::whole, "a tail beside whole vectors"},
              {Cause::cold_caches, &Conditions::warm, "cold caches"}};

/// The rows that a kernel had under the same conditions, one in each round.
struct Variant {
  std::optional<Cause> cause;  ///< none: the kernel as it is
  bool is_removed;
  Conditions conditions;
  std::vector<Row> rows = {};
};

std::vector<Variant> variants_of(const Conditions& as_is) {
  std::vector<Variant> variants{{{}, false, as_is}};
  for (const auto& [cause, absent, name] : causes) {
    Variant& variant = variants.emplace_back(Variant{cause, !(as_is.*absent), as_is});
    variant.conditions.*absent = variant.is_removed;
  }
  const bool several = as_is.threads > 1;
  if (as_is.warm && (several || available_cores() > 1)) {
    variants.push_back({Cause::threads, several, as_is});
    variants.back().conditions.threads = several ? 1 : 2;
  }
  return variants;
}

/// The work that a limit bounds.
double amount(const Row& row, std::string_view limit) {
  return limit == "matmul peak" ? row.work.flops
         : limit == "read"      ? row.work.read
                                : row.work.bytes();
}

}  // namespace

const char* name_of(Cause cause) {
  for (const auto& known : causes)
    if (known.cause == cause) return known.name;
  return "several threads: waits, uneven parts";
}

std::vector<Influence> ranked(std::vector<Influence> influences, double time_of_limit) {
  for (Influence& influence : influences) {
    influence.change = change_of(influence.rounds, 0.02);
    const bool is_cause = influence.is_removed && influence.change.verdict == Verdict::faster;
    influence.share = is_cause && time_of_limit < 1.0
                          ? (1.0 - influence.change.ratio) / (1.0 - time_of_limit)
                          : 0;
  }
  const auto lines = std::ranges::find(influences, Cause::shared_lines, &Influence::cause);
  const auto threads = std::ranges::find(influences, Cause::threads, &Influence::cause);
  if (lines != influences.end() && threads != influences.end())  // one thread shares no lines
    threads->share = std::max(0.0, threads->share - lines->share);
  std::ranges::stable_sort(influences, std::greater(), &Influence::share);
  return influences;
}

Explanation explain(const Conditions& as_is, const Trials& make, const ReportOptions& options) {
  constexpr int rounds = 15;
  std::vector<Variant> variants = variants_of(as_is);
  // Limits are measured beside one warm variant for each number of threads.
  const auto has_limit = [&](const Variant& variant) {
    const bool is_first = as_is.warm ? !variant.cause : variant.cause == Cause::cold_caches;
    return is_first || variant.cause == Cause::threads;
  };
  std::map<std::tuple<int, bool, bool>, Report> reports;
  const auto add_row = [&](Variant& variant) {
    const Conditions& now = variant.conditions;
    const std::optional<Trial> trial = make(now);
    if (!trial) return false;
    const std::tuple key(now.threads, now.warm, has_limit(variant));
    auto report = reports.find(key);
    if (report == reports.end()) {
      ReportOptions part = options;
      part.effort.seconds /= rounds;
      part.effort.cold = !now.warm;
      if (!has_limit(variant)) part.limits = Limits{};
      const Device device = Device::cpu(0, {.threads = now.threads, .separate = true});
      report = reports.emplace(key, Report(device, part)).first;
    }
    variant.rows.push_back(report->second.add(trial->work, trial->run));
    return true;
  };
  if (!add_row(variants.front()))
    throw ConfigError("bench: explain: expected a trial of the kernel as it is, got none");
  variants.front().rows.clear();
  std::erase_if(variants, [&](Variant& variant) { return !add_row(variant); });
  static_assert(rounds % 2 == 1, "the kernel as it is comes first again");
  for (int round = 1; round < rounds; ++round) {
    std::ranges::reverse(variants);
    for (Variant& variant : variants) add_row(variant);
  }

  const auto limit_of = [](const Variant& variant) {
    return std::ranges::min(variant.rows, {}, [](const Row& row) { return row.bound.seconds; })
        .bound;
  };
  Explanation result{.row = variants.front().rows.front()};
  Row& row = result.row;
  if (const auto limited = std::ranges::find_if(variants, has_limit); limited != variants.end())
    row.bound = limit_of(*limited);
  row.seconds.clear(), row.others = 0.0;
  for (const Row& one : variants.front().rows) {
    row.seconds.push_back(one.quantile(0.0));
    row.others += one.others / rounds;
  }
  // The fastest time of each round, for as much work, or relative to the limit of as many threads.
  const auto times = [&](const Variant& variant) {
    const double limit = limit_of(variant).seconds;
    const double scale =
        variant.cause == Cause::threads && limit > 0.0
            ? row.bound.seconds / limit
            : amount(row, row.bound.name) / amount(variant.rows.front(), row.bound.name);
    std::vector<double> values;
    for (const Row& one : variant.rows) values.push_back(scale * one.quantile(0.0));
    return values;
  };
  const std::vector<double> before = times(variants.front());
  for (const Variant& variant : variants) {
    if (!variant.cause) continue;
    Influence influence{.cause = *variant.cause, .is_removed = variant.is_removed};
    const std::vector<double> after = times(variant);
    for (size_t i = 0; i < after.size(); ++i) influence.rounds.push_back({{before[i]}, {after[i]}});
    result.influences.push_back(std::move(influence));
  }
  std::ranges::sort(row.seconds);
  result.influences = ranked(std::move(result.influences), row.bound.seconds / row.quantile(0.5));
  return result;
}

std::string table_of(const Explanation& explanation) {
  const Row& row = explanation.row;
  const std::optional<double> percent = row.percent_of_limit(0.5);
  std::string text = table_head() + line_of(row) +
                     "\n| changed | | time | 99.9 % interval | share of the gap |\n"
                     "|---|---|---:|---:|---:|\n";
  double left = 100.0;
  for (const Influence& influence : explanation.influences) {
    const Change& change = influence.change;
    const bool is_cause = influence.is_removed && change.verdict == Verdict::faster;
    left -= 100.0 * influence.share;
    text += std::string("| ") + name_of(influence.cause) + " | " +
            (influence.is_removed ? "without" : "with") + " | " + fixed(change.ratio, 3) + " | " +
            fixed(change.low, 3) + " - " + fixed(change.high, 3) + " | " +
            (is_cause && percent    ? fixed(100.0 * influence.share, 0) + " %"
             : is_cause             ? "a cause"
             : influence.is_removed ? name_of(change.verdict)
                                    : "") +
            " |\n";
  }
  if (percent && *percent < 100.0)
    text += "| not found | | | | " + fixed(std::max(0.0, left), 0) + " % |\n";
  return text + (percent || row.bound.seconds <= 0.0
                     ? ""
                     : "\nOther programs were busy, so there are no shares.\n");
}

}  // namespace zg::bench
