#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sstream>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/report.h"
#include "zerograd/zero/report_parts.h"

namespace zg::zero {
namespace {

using Timeline = ReportedTimeline;
constexpr size_t no_lane = Timeline::lane_count, most_shown = 64;
constexpr const char* timeline_lanes[] = {"forward",       "backward", "optimizer", "compute",
                                          "communication", "copies",   "waits"};

size_t lane_of(const Trace::Span& span) {
  using Kind = Trace::Kind;
  if (span.kind == Kind::phase)
    for (size_t lane = 0; lane < Timeline::compute; ++lane)
      if (span.name == timeline_lanes[lane]) return lane;
  if (span.kind == Kind::kernel) return Timeline::compute;
  if (span.kind == Kind::collective) return Timeline::communication;
  if (span.kind == Kind::copy) return Timeline::copies;
  return span.kind == Kind::wait ? size_t{Timeline::waits} : no_lane;
}

// A step of one rank. Its lanes count from its begin.
struct RankStep {
  int64_t step = -1, begin_ns = 0, end_ns = 0;  // by the host's steady clock
  Timeline::Rank rank;
};

// Sorts and joins spans that are closer than `gap`; adds up their time before.
void join(Timeline::Spans& spans, int64_t& busy_ns, int64_t gap) {
  std::ranges::sort(spans);
  Timeline::Spans joined;
  int64_t covered = INT64_MIN;
  for (const auto& [begin, end] : spans) {
    busy_ns += std::max<int64_t>(0, end - std::max(begin, covered));
    covered = std::max(covered, end);
    if (!joined.empty() && begin - joined.back().second <= gap)
      joined.back().second = covered;
    else
      joined.emplace_back(begin, end);
  }
  spans = std::move(joined);
}

RankStep last_step(const std::vector<Trace::Span>& spans, int rank, int64_t start_ns, int ranks) {
  RankStep found;
  for (const Trace::Span& span : spans)
    if (const Trace::Value* step = span.find("step"); step && span.rank == rank)
      found = {std::get<int64_t>(*step), span.begin_ns, span.end_ns, {}};
  for (const Trace::Span& span : spans) {
    const size_t lane = lane_of(span);
    const int64_t begin = std::max(span.begin_ns, found.begin_ns),
                  end = std::min(span.end_ns, found.end_ns);
    if (span.rank == rank && lane != no_lane && begin < end)
      found.rank.lanes[lane].emplace_back(begin - found.begin_ns, end - found.begin_ns);
  }
  // A pixel, or more where the page has many ranks.
  const int64_t gap = (found.end_ns - found.begin_ns) * std::max(8, ranks) / 8000;
  for (size_t lane = 0; lane < no_lane; ++lane)
    join(found.rank.lanes[lane], found.rank.busy_ns[lane], gap);
  found.begin_ns += start_ns;
  found.end_ns += start_ns;
  return found;
}

std::string text_of(const RankStep& step) {
  std::string text = fmt::format("{} {} {}", step.step, step.begin_ns, step.end_ns);
  for (size_t lane = 0; lane < no_lane; ++lane) {
    text += fmt::format(" {} {}", step.rank.busy_ns[lane], step.rank.lanes[lane].size());
    for (const auto& [begin, end] : step.rank.lanes[lane])
      text += fmt::format(" {} {}", begin, end);
  }
  return text;
}

RankStep step_in(const std::string& text) {
  RankStep step;
  std::istringstream numbers(text);
  numbers >> step.step >> step.begin_ns >> step.end_ns;
  for (size_t lane = 0; lane < no_lane; ++lane) {
    size_t count = 0;
    numbers >> step.rank.busy_ns[lane] >> count;
    step.rank.lanes[lane].resize(count);
    for (auto& [begin, end] : step.rank.lanes[lane]) numbers >> begin >> end;
  }
  return step;
}

std::string milliseconds(int64_t ns) { return short_number(static_cast<double>(ns) / 1e6); }

std::string drawn(const Timeline& timeline, size_t rank) {
  constexpr int middle[] = {5, 5, 5, 16, 27, 36, 45};  // of a lane
  const ChartAxis axis{0.0, static_cast<double>(timeline.end_ns)};
  std::string svg = fmt::format("<title>rank {}", rank);
  for (size_t lane = 0; lane < no_lane; ++lane)
    svg += fmt::format("{}{} {} ms", lane == 0 ? ": " : ", ", timeline_lanes[lane],
                       milliseconds(timeline.ranks[rank].busy_ns[lane]));
  svg += "</title>";
  for (size_t lane = 0; lane < no_lane; ++lane) {
    std::string path;
    for (const auto& [begin, end] : timeline.ranks[rank].lanes[lane])
      path += fmt::format("M{:.1f} {}h{:.1f}", 1000.0 * axis.share(static_cast<double>(begin)),
                          middle[lane],
                          std::max(0.5, 1000.0 * axis.share(static_cast<double>(end - begin))));
    if (!path.empty()) svg += fmt::format(R"(<path class="lane{}" d="{}"/>)", lane, path);
  }
  return fmt::format(
      "<span>rank {}</span><svg viewBox=\"0 0 1000 50\" preserveAspectRatio=\"none\">{}</svg>\n",
      rank, svg);
}

}  // namespace

ReportedTimeline ReportedTimeline::of(Communicator& ranks, const Trace& trace) {
  std::vector<int> all(static_cast<size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::unique_ptr<Communicator> group = ranks.group(all, "timeline");
  const auto own = static_cast<size_t>(ranks.rank());
  // Ranks that are threads share a trace, from which rank 0 reads all of them.
  const std::vector<std::string> traces =
      gather_texts(*group, fmt::format("{} {}", getpid(), static_cast<const void*>(&trace)));
  const bool reads = own == 0 || traces[own] != traces[0];
  const std::vector<Trace::Span> spans = reads ? trace.spans() : std::vector<Trace::Span>();
  const int64_t start_ns =
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count() -
      trace.now_ns();
  const auto step_of = [&](size_t rank) {
    return last_step(spans, static_cast<int>(rank), start_ns, ranks.size());
  };
  const std::vector<std::string> texts =
      gather_texts(*group, reads && own > 0 ? text_of(step_of(own)) : "");
  Timeline timeline;
  if (own > 0) return timeline;
  std::vector<RankStep> steps;
  for (size_t rank = 0; rank < all.size(); ++rank)
    steps.push_back(traces[rank] == traces[0] ? step_of(rank) : step_in(texts[rank]));
  timeline.step = steps[0].step;
  const auto has_clock = [first = steps[0]](const RankStep& step) {
    return step.begin_ns < first.end_ns && step.end_ns > first.begin_ns;
  };
  int64_t begin_ns = steps[0].begin_ns;
  for (const RankStep& step : steps)
    if (has_clock(step)) begin_ns = std::min(begin_ns, step.begin_ns);
  for (RankStep& step : steps) {
    const int64_t late = has_clock(step) ? step.begin_ns - begin_ns : 0;
    timeline.end_ns = std::max(timeline.end_ns, late + step.end_ns - step.begin_ns);
    for (Spans& lane : step.rank.lanes)
      for (auto& [begin, end] : lane) begin += late, end += late;
    timeline.ranks.push_back(std::move(step.rank));
  }
  return timeline;
}

std::string timeline_section(const RunPage& page) {
  const Timeline& timeline = page.timeline;
  if (timeline.ranks.empty() || timeline.end_ns <= 0) return "";
  std::string keys, lanes, head, rows;
  for (size_t lane = 0; lane < no_lane; ++lane) {
    keys += fmt::format(R"(<span class="key"><i class="lane{}"></i>{}</span>)", lane,
                        timeline_lanes[lane]);
    head += fmt::format("<th class=\"n\">{}</th>", timeline_lanes[lane]);
  }
  const ChartAxis time = ChartAxis::of(0.0, 1e-6 * static_cast<double>(timeline.end_ns), false);
  for (size_t rank = 0; rank < std::min(timeline.ranks.size(), most_shown); ++rank) {
    lanes += drawn(timeline, rank);
    rows += fmt::format("<tr><td>{}</td>", rank);
    for (const int64_t busy : timeline.ranks[rank].busy_ns)
      rows += fmt::format("<td class=\"n\">{}</td>", busy == 0 ? "" : milliseconds(busy));
    rows += "</tr>\n";
  }
  return fmt::format(
      "<section><h2>Step {} by rank</h2>\n<p class=\"legend\">{}</p>\n<div "
      "class=\"lanes\">\n{}<div class=\"x\">{}</div></div>\n<p>Milliseconds in which a rank did "
      "each. While this step was recorded, an accelerator&apos;s host waited for every "
      "kernel.</p>\n"
      "<div class=\"wide\"><table>\n<tr><th>rank</th>{}</tr>\n{}</table></div>{}</section>\n",
      timeline.step, keys, lanes, labels_below(time, false, " ms"), head, rows,
      timeline.ranks.size() > most_shown
          ? fmt::format("\n<p>and {} more ranks</p>", timeline.ranks.size() - most_shown)
          : "");
}

}  // namespace zg::zero
