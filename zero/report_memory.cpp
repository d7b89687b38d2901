#include <algorithm>
#include <map>
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

namespace {

constexpr size_t most_drawn = 600, most_listed = 40;

const char* phase_at(const MemoryBlocks& all, int64_t event) {
  const auto after = std::ranges::upper_bound(all.phases, event, {}, &MemoryBlocks::Phase::begin);
  return after == all.phases.begin() ? "" : std::prev(after)->name.c_str();
}

std::string begin_text(const MemoryBlock& block) {
  return block.begin < 0 ? "before the step" : html_text(block.phase);
}
std::string end_text(const MemoryBlocks& all, const MemoryBlock& block) {
  return block.end == INT64_MAX ? "after the step" : html_text(phase_at(all, block.end));
}

// The largest blocks that live in [begin, end).
std::vector<const MemoryBlock*> largest(const MemoryBlocks& all, int64_t begin, int64_t end,
                                        size_t most) {
  std::vector<const MemoryBlock*> found;
  for (const MemoryBlock& block : all.blocks)
    if (block.begin < end && block.end > begin) found.push_back(&block);
  std::ranges::stable_sort(found, std::greater(), &MemoryBlock::bytes);
  found.resize(std::min(found.size(), most));
  return found;
}

struct Live {
  int64_t event = 0, bytes = 0;
};

Live peak_of(const MemoryBlocks& all) {
  std::map<int64_t, int64_t> change;
  for (const MemoryBlock& block : all.blocks) {
    change[block.begin] += block.bytes;
    if (block.end != INT64_MAX) change[block.end] -= block.bytes;
  }
  Live peak{-1, -1};
  int64_t live = 0;
  for (const auto& [event, bytes] : change)
    if ((live += bytes) > peak.bytes) peak = {event, live};
  return peak;
}

// The blocks of [begin, end) by event and address.
std::string figure(const MemoryBlocks& all, int64_t begin, int64_t end, const Live& peak) {
  constexpr double width = 1000.0, height = 300.0;
  int64_t top = 0;
  for (const MemoryBlock& block : all.blocks) top = std::max(top, block.offset + block.bytes);
  const ChartAxis y = ChartAxis::of(0.0, 1.02 * static_cast<double>(top) / (1 << 20), false);
  const ChartAxis x{static_cast<double>(begin), static_cast<double>(end)};
  const auto across = [&](int64_t event) {
    return width * x.share(static_cast<double>(std::clamp(event, begin, end)));
  };
  const auto down = [&](int64_t bytes) {
    return height * (1.0 - y.share(static_cast<double>(bytes) / (1 << 20)));
  };
  const DrawnAxis axis(y, width, height);
  std::string svg = axis.lines, phases;
  for (const MemoryBlock* block : largest(all, begin, end, most_drawn))
    svg += fmt::format(
        R"(<rect class="purpose{}" x="{:.1f}" y="{:.2f}" width="{:.1f}" height="{:.2f}">)"
        "<title>{}: {} bytes, {}, {} to {}</title></rect>",
        static_cast<int>(block->purpose), across(block->begin), down(block->offset + block->bytes),
        across(block->end) - across(block->begin),
        down(block->offset) - down(block->offset + block->bytes), html_text(block->name),
        block->bytes, name_of(block->purpose), begin_text(*block), end_text(all, *block));
  if (peak.event >= begin && peak.event < end)
    svg += fmt::format(R"(<path class="reserved" d="M{:.1f} 0V{}"/>)", across(peak.event), height);
  for (size_t i = 0; i < all.phases.size(); ++i) {
    const int64_t next = i + 1 < all.phases.size() ? all.phases[i + 1].begin : all.events;
    const double share = (across(next) - across(all.phases[i].begin)) / width;
    if (share > 0.0)
      phases += fmt::format(R"(<span style="width:{:.2f}%">{}</span>)", 100.0 * share,
                            share < 0.04 ? "" : html_text(all.phases[i].name));
  }
  return fmt::format(
      "<figure class=\"chart blocks\">\n<div class=\"y\">{}</div><svg viewBox=\"0 0 {} {}\" "
      "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"blocks\">{}</svg><div "
      "class=\"phases\">{}</div>\n</figure>\n",
      axis.labels, width, height, svg, phases);
}

}  // namespace

std::string blocks_section(const RunPage& page) {
  const MemoryBlocks& all = page.blocks;
  if (all.blocks.empty() || all.events == 0) return "";
  const Live peak = peak_of(all);
  std::string html = fmt::format(
      "<section><h2>Memory by tensor</h2>\n<p>A rectangle is a tensor on rank 0&apos;s device: MiB "
      "of "
      "its address, and the {} allocations and frees of the last step above in their order. The "
      "line is at the peak, {} bytes.</p>\n",
      all.events, peak.bytes);
  html += figure(all, 0, all.events, peak);
  // The longest phase of each name.
  std::map<std::string, std::pair<int64_t, int64_t>> longest;
  for (size_t i = 0; i < all.phases.size(); ++i) {
    const int64_t begin = all.phases[i].begin,
                  end = i + 1 < all.phases.size() ? all.phases[i + 1].begin : all.events;
    auto& [first, last] = longest[all.phases[i].name];
    if (end - begin > last - first) first = begin, last = end;
  }
  for (const auto& [name, events] : longest)
    if (25 * (events.second - events.first) > all.events)
      html += fmt::format("<details><summary>{}</summary>\n{}</details>\n", html_text(name),
                          figure(all, events.first, events.second, peak));
  html +=
      "<details open=\"open\"><summary>the largest tensors at the peak</summary>\n<div "
      "class=\"wide\"><table>\n<tr><th>tensors</th><th class=\"n\">bytes "
      "of each</th><th>name</th><th>purpose</th><th>allocated</th><th>freed</th></tr>\n";
  std::vector<std::pair<std::string, int>> rows;  // a row and its number of tensors
  for (const MemoryBlock* block : largest(all, peak.event, peak.event + 1, SIZE_MAX)) {
    std::string row =
        fmt::format("<td class=\"n\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    block->bytes, block->name.empty() ? "without a name" : html_text(block->name),
                    name_of(block->purpose), begin_text(*block), end_text(all, *block));
    const auto same = std::ranges::find(rows, row, &std::pair<std::string, int>::first);
    if (same != rows.end())
      ++same->second;
    else if (rows.size() < most_listed)
      rows.emplace_back(std::move(row), 1);
  }
  for (const auto& [row, count] : rows)
    html += fmt::format("<tr><td class=\"n\">{}</td>{}", count, row);
  return html + "</table></div></details></section>\n";
}

}  // namespace zg::zero
