#include <algorithm>
#include <numeric>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/report.h"
#include "zerograd/zero/report_parts.h"

namespace zg::zero {
namespace {

constexpr double width = 1000.0, height = 200.0;
constexpr size_t most_ranks = 64;  // rows of a table

double in_mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int64_t total(const BytesByPurpose& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

const MemoryRow& peak_of(const std::vector<MemoryRow>& rows) {
  return *std::ranges::max_element(rows, {}, &MemoryRow::reserved);
}

// A bar for each row: the bytes by purpose at the largest since the row before, and a line at what
// was reserved.
std::string bars(const ReportedMemory& memory, double most) {
  const ChartAxis axis = ChartAxis::of(0.0, 1.05 * most, false);
  const auto y = [&](double mib) { return height * (1.0 - axis.share(mib)); };
  const DrawnAxis scale(axis, width, height);
  std::string svg = scale.lines, steps;
  const double pitch = width / static_cast<double>(memory.rows.size());
  for (size_t i = 0; i < memory.rows.size(); ++i) {
    const MemoryRow& row = memory.rows[i];
    const double x = pitch * static_cast<double>(i);
    double below = 0.0;
    for (size_t purpose = 0; purpose < row.at_max.size(); ++purpose) {
      const double mib = in_mib(row.at_max[purpose]);
      if (mib == 0.0) continue;
      svg += fmt::format(
          R"(<rect class="purpose{}" x="{:.1f}" y="{:.2f}" width="{:.1f}" height="{:.2f}">)"
          "<title>step {}, {}: {} {} bytes</title></rect>",
          purpose, x + 0.1 * pitch, y(below + mib), 0.8 * pitch, y(below) - y(below + mib),
          row.step, name_of(row.at), name_of(static_cast<Purpose>(purpose)), row.at_max[purpose]);
      below += mib;
    }
    svg += fmt::format(R"(<path class="reserved" d="M{:.1f} {:.2f}h{:.1f}"/>)", x + 0.03 * pitch,
                       y(in_mib(row.reserved)), 0.94 * pitch);
    if (row.at == StepPoint::before_forward) steps += fmt::format("<span>step {}</span>", row.step);
  }
  const MemoryRow& peak = peak_of(memory.rows);
  return fmt::format(
      "<figure class=\"chart memory\">\n<figcaption><b>{}</b> MiB on the device<output>peak {} "
      "bytes, step {}, {}</output></figcaption>\n<div class=\"y\">{}</div><svg viewBox=\"0 0 {} "
      "{}\" "
      "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"memory\">{}</svg><div "
      "class=\"x\">{}</div>\n</figure>\n",
      html_text(memory.name), peak.reserved, peak.step, html_text(peak.phase), scale.labels, width,
      height, svg, steps);
}

std::string cell(const std::string& text) { return "<td class=\"n\">" + text + "</td>"; }
std::string mib_cell(int64_t bytes) {
  return cell(bytes == 0 ? "" : fmt::format("{:.1f}", in_mib(bytes)));
}

std::string storage(const std::vector<ReportedRank>& ranks) {
  if (ranks.empty()) return "";
  std::string head = "<tr><th>rank</th><th>where</th>";
  for (int purpose = 0; purpose < purpose_count; ++purpose)
    head += fmt::format("<th class=\"n\">{}</th>", name_of(static_cast<Purpose>(purpose)));
  std::string html =
      "<section><h2>Where states are stored</h2>\n<p>MiB that each rank keeps from "
      "step to step, and the most that it reserved on its device.</p>\n"
      "<div class=\"wide\"><table>\n" +
      head + "<th class=\"n\">all</th><th class=\"n\">peak</th></tr>\n";
  for (size_t i = 0; i < std::min(ranks.size(), most_ranks); ++i)
    for (size_t space = 0; space < ranks[i].stored.size(); ++space) {
      const BytesByPurpose& bytes = ranks[i].stored[space];
      const bool is_device = static_cast<Space>(space) == Space::device;
      if (total(bytes) == 0 && !is_device) continue;
      html += fmt::format("<tr><td>{}</td><td>{}</td>", ranks[i].rank,
                          name_of(static_cast<Space>(space)));
      for (const int64_t each : bytes) html += mib_cell(each);
      html += mib_cell(total(bytes)) + (is_device ? mib_cell(ranks[i].peak) : cell("")) + "</tr>\n";
    }
  html += "</table></div>\n";
  if (ranks.size() > most_ranks)
    html += fmt::format("<p>and {} more ranks</p>\n", ranks.size() - most_ranks);
  return html + "</section>\n";
}

}  // namespace

std::string memory_sections(const RunPage& page) {
  double most = 0.0;
  std::string charts, keys;
  for (const ReportedMemory& memory : page.memory)
    for (const MemoryRow& row : memory.rows)
      most = std::max({most, in_mib(row.reserved), in_mib(row.max)});
  for (const ReportedMemory& memory : page.memory)
    if (!memory.rows.empty()) charts += bars(memory, most);
  if (charts.empty()) return storage(page.ranks);
  for (int purpose = 0; purpose < purpose_count; ++purpose)
    keys += fmt::format("<span class=\"key\"><i class=\"purpose{}\"></i>{}</span>", purpose,
                        name_of(static_cast<Purpose>(purpose)));
  return "<section><h2>Memory of rank 0</h2>\n<p>Six bars for each step: before and after forward, "
         "backward and the optimizer&apos;s step. A bar is the most that was live since the bar "
         "before.</p>\n<p class=\"legend\">" +
         keys +
         "<span class=\"key\"><i class=\"reserved\"></i>reserved</span></p>\n"
         "<div class=\"charts pair\">\n" +
         charts + "</div></section>\n" + storage(page.ranks);
}

}  // namespace zg::zero
