#include <algorithm>
#include <map>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/report.h"
#include "zerograd/zero/report_parts.h"

namespace zg::zero {
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
