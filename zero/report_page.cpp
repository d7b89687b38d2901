#include <algorithm>
#include <cmath>

#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/report.h"
#include "zerograd/zero/report_parts.h"

namespace zg::zero {

std::string html_text(const std::string& text) {
  std::string html;
  for (const char c : printable(text, text.size()))
    html += c == '<'   ? "&lt;"
            : c == '>' ? "&gt;"
            : c == '&' ? "&amp;"
            : c == '"' ? "&quot;"
                       : std::string(1, c);
  return html;
}

std::string short_number(double value) {
  const double size = std::fabs(value);
  for (const auto& [unit, name] : {std::pair{1e9, "G"}, {1e6, "M"}, {1e4, "k"}})
    if (size >= unit && size < 1e12)
      return fmt::format("{:.4g}{}", value / (unit == 1e4 ? 1e3 : unit), name);
  return fmt::format("{:.4g}", value);
}

namespace {

double log10_of(double value) {
  const double power = portable::log(value) / portable::log(10.0), whole = std::round(power);
  return std::fabs(power - whole) < 1e-12 ? whole : power;
}

}  // namespace

ChartAxis ChartAxis::of(double low, double high, bool may_be_log) {
  ChartAxis axis{low, high};
  if (may_be_log && low > 0.0 && high > 100.0 * low) {
    axis.is_log = true;
    const double first = std::ceil(log10_of(low)), last = std::floor(log10_of(high));
    for (double power = first; power <= last; power += std::ceil((last - first + 1.0) / 6.0))
      axis.ticks.push_back(portable::pow(10.0, power));
    return axis;
  }
  if (high - low <= 1e-9 * std::max(std::fabs(low), std::fabs(high))) {
    const double margin = low == 0.0 ? 1.0 : 0.1 * std::fabs(low);
    axis.low = low - (low == 0.0 ? 0.0 : margin);
    axis.high = high + margin;
  }
  const double rough = (axis.high - axis.low) / 5.0,
               power = portable::pow(10.0, std::floor(log10_of(rough)));
  double step = 10.0 * power;
  for (const double digit : {5.0, 2.0, 1.0})
    if (digit * power >= rough) step = digit * power;
  for (double i = std::ceil(axis.low / step); i * step <= axis.high; i += 1.0)
    axis.ticks.push_back(i * step);
  return axis;
}

double ChartAxis::share(double value) const {
  return is_log ? portable::log(value / low) / portable::log(high / low)
                : (value - low) / (high - low);
}

DrawnAxis::DrawnAxis(const ChartAxis& axis, double width, double height) {
  for (const double tick : axis.ticks) {
    const double share = 1.0 - axis.share(tick);
    lines += fmt::format(R"(<path class="grid" d="M0 {:.1f}H{}"/>)", height * share, width);
    labels +=
        fmt::format(R"(<span style="top:{:.1f}%">{}</span>)", 100.0 * share, short_number(tick));
  }
}

std::string labels_below(const ChartAxis& axis, bool integers, const char* unit) {
  std::string labels;
  for (const double tick : axis.ticks) {
    if (integers && tick != std::round(tick)) continue;
    const double left = 100.0 * axis.share(tick);  // a label at the right end ends there
    labels +=
        fmt::format(R"-(<span style="left:{:.1f}%;transform:translateX(-{:.1f}%)">{}{}</span>)-",
                    left, left, short_number(tick), unit);
  }
  return labels;
}

namespace {

constexpr double chart_width = 1000.0, chart_height = 200.0;

struct Chart {
  const char* title;
  const char* name;  // of its elements
  Envelope RunCurves::*curve;
  std::string unit;
  bool may_be_log;
};

// The steps of all runs.
std::pair<int64_t, int64_t> steps_of(const std::vector<RunCurves>& runs) {
  int64_t first = INT64_MAX, end = 0;
  for (const RunCurves& run : runs)
    if (!run.loss.buckets().empty()) {
      first = std::min(first, run.loss.buckets().front().first);
      end = std::max(end, run.end);
    }
  return {first == INT64_MAX ? 0 : first, end};
}

struct Plot {
  const ChartAxis x, y;
  std::string operator()(double step, double value) const {
    return fmt::format("{:.1f} {:.1f}", chart_width * x.share(step),
                       chart_height * (1.0 - y.share(value)));
  }
};

// The mean as a line, and an area from the smallest to the largest value.
std::string curve(const Envelope& envelope, const Plot& plot, size_t run) {
  std::string line, upper, lower;
  bool is_open = false, has_area = false;
  const auto middle = [&](const Envelope::Bucket& bucket) {
    return static_cast<double>(bucket.first) + 0.5 * static_cast<double>(envelope.width() - 1);
  };
  for (const Envelope::Bucket& bucket : envelope.buckets()) {
    if (bucket.count == 0) {
      is_open = false;
      continue;
    }
    const double step = std::min(middle(bucket), plot.x.high);
    line +=
        fmt::format("{}{}", std::exchange(is_open, true) ? "L" : "M", plot(step, bucket.mean()));
    upper += fmt::format("{}{}", upper.empty() ? "M" : "L", plot(step, bucket.max));
    lower.insert(0, "L" + plot(step, bucket.min));
    has_area = has_area || bucket.max > bucket.min;
  }
  if (line.empty()) return "";
  if (envelope.all().count == 1 || line.find('L') == line.npos) line += "h0";  // a point
  std::string svg;
  if (has_area) svg = fmt::format(R"(<path class="area run{}" d="{}{}Z"/>)", run, upper, lower);
  return svg + fmt::format(R"(<path class="line run{}" d="{}"/>)", run, line);
}

std::string marks(const Envelope& envelope, const Plot& plot, const char* name, bool bad) {
  std::string lines;
  for (const Envelope::Bucket& bucket : envelope.buckets())
    if (bad ? bucket.bad > 0 : bucket.sum > 0.0)
      lines +=
          fmt::format("M{:.1f} 0V{}", chart_width * plot.x.share(static_cast<double>(bucket.first)),
                      chart_height);
  return lines.empty() ? "" : fmt::format(R"(<path class="{}" d="{}"/>)", name, lines);
}

// "first,values,least,mean,largest;": what the script shows of a bucket.
std::string points(const Envelope& envelope) {
  std::string text;
  for (const Envelope::Bucket& bucket : envelope.buckets())
    if (bucket.count > 0)
      text += fmt::format("{},{},{:.5g},{:.5g},{:.5g};", bucket.first, bucket.count, bucket.min,
                          bucket.mean(), bucket.max);
  return text;
}

std::string drawn(const RunPage& page, const Chart& chart) {
  const auto [first, end] = steps_of(page.runs);
  double low = INFINITY, high = -INFINITY;
  for (const RunCurves& run : page.runs)
    if (const Envelope::Bucket all = (run.*chart.curve).all(); all.count > 0) {
      low = std::min(low, all.min);
      high = std::max(high, all.max);
    }
  const RunCurves& own = page.runs.front();
  const Envelope& curve_of_run = own.*chart.curve;
  const bool is_loss = chart.curve == &RunCurves::loss;
  const Envelope::Bucket all = curve_of_run.all();
  if (low > high) {
    if (all.bad == 0) return "";
    low = high = 0.0;
  }
  if (is_loss)
    for (const RunCurves& run : page.runs)
      if (const Envelope::Bucket held_out = run.validation.all(); held_out.count > 0) {
        low = std::min(low, held_out.min);
        high = std::max(high, held_out.max);
      }
  const double last = static_cast<double>(std::max(end - 1, first + 1));
  const Plot plot{{static_cast<double>(first), last}, ChartAxis::of(low, high, chart.may_be_log)};
  const DrawnAxis axis(plot.y, chart_width, chart_height);
  std::string svg = axis.lines;
  svg += marks(own.restarts, plot, "restart", false) + marks(own.skipped, plot, "skipped", false) +
         marks(curve_of_run, plot, "bad", true);
  for (size_t i = page.runs.size(); i-- > 0;) svg += curve(page.runs[i].*chart.curve, plot, i);
  if (is_loss)
    for (size_t i = page.runs.size(); i-- > 0;) {
      const std::string held_out = curve(page.runs[i].validation, plot, i);
      if (!held_out.empty()) svg += "<g class=\"validation\">" + held_out + "</g>";
    }
  const std::string steps =
      labels_below(ChartAxis::of(static_cast<double>(first), last, false), true, "");
  return fmt::format(
      "<figure class=\"chart\" id=\"{}\" data-points=\"{}\" data-width=\"{}\" data-first=\"{}\" "
      "data-last=\"{}\">\n<figcaption><b>{}</b>{}<output>{}</output></figcaption>\n"
      "<div class=\"y\">{}</div><svg class=\"plot\" viewBox=\"0 0 {} {}\" "
      "preserveAspectRatio=\"none\" "
      "role=\"img\" aria-label=\"{}\">{}</svg><div class=\"x\">{}</div>\n</figure>\n",
      chart.name, points(curve_of_run), curve_of_run.width(), first, last, chart.title,
      chart.unit.empty() ? "" : " " + chart.unit,
      all.count == 0
          ? "no finite value"
          : fmt::format("{} to {}, last {}", short_number(all.min), short_number(all.max),
                        short_number(curve_of_run.buckets().back().mean())),
      axis.labels, chart_width, chart_height, chart.title, svg, steps);
}

std::string key(const char* name, const std::string& text) {
  return fmt::format(R"(<span class="key"><i class="{}"></i>{}</span>)", name, text);
}

std::string legend(const RunPage& page) {
  const RunCurves& own = page.runs.front();
  std::string keys;
  for (size_t i = 0; i < page.runs.size(); ++i)
    keys += key(fmt::format("line run{}", i).c_str(), html_text(page.runs[i].name));
  if (own.validation.all().count > 0) keys += key("held", "validation loss");
  if (own.loss.width() > 1)
    keys += key("area run0", fmt::format("least to largest of {} steps", own.loss.width()));
  const auto count = [](const Envelope& envelope) {
    return static_cast<int64_t>(envelope.all().sum);
  };
  if (const int64_t n = count(own.skipped)) keys += key("skipped", fmt::format("{} skipped", n));
  if (const int64_t n = count(own.restarts)) keys += key("restart", fmt::format("{} restarted", n));
  if (own.loss.all().bad + own.norm.all().bad > 0) keys += key("bad", "not finite");
  return "<p class=\"legend\">" + keys + "</p>\n";
}

// The runs in numbers, where there are several.
std::string runs_table(const std::vector<RunCurves>& runs, const std::string& unit) {
  if (runs.size() < 2) return "";
  std::string rows;
  const auto cells = [](const Envelope& curve) {
    if (curve.all().count == 0) return std::string("<td></td><td></td>");
    const Envelope::Bucket& last = curve.buckets().back();
    return fmt::format("<td class=\"n\">{}</td><td class=\"n\">{}</td>",
                       last.count > 0 ? short_number(last.mean()) : "not finite",
                       short_number(curve.all().min));
  };
  for (const RunCurves& run : runs)
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td>{}{}<td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "</tr>\n",
        html_text(run.name), run.end, cells(run.loss), cells(run.validation),
        std::llround(run.skipped.all().sum),
        run.throughput.all().count == 0 ? "" : short_number(run.throughput.all().mean()));
  return fmt::format(
      "<div class=\"wide\"><table class=\"runs\">\n<tr><th>run</th><th class=\"n\">steps</th>"
      "<th class=\"n\">last loss</th><th class=\"n\">least</th><th class=\"n\">last validation</th>"
      "<th class=\"n\">least</th><th class=\"n\">skipped</th><th class=\"n\">mean {}</th></tr>\n"
      "{}</table></div>\n",
      unit, rows);
}

std::string curves(const RunPage& page) {
  if (page.runs.empty() || steps_of(page.runs).second == 0) return "";
  const Chart charts[] = {
      {"Loss", "loss", &RunCurves::loss, "", true},
      {"Gradient norm", "norm", &RunCurves::norm, "", true},
      {"Learning rate", "rate", &RunCurves::rate, "", false},
      {"Throughput", "throughput", &RunCurves::throughput, page.throughput_unit, false}};
  std::string html = "<section><h2>Steps</h2>\n" + legend(page) + "<div class=\"charts\">\n";
  for (const Chart& chart : charts) html += drawn(page, chart);
  html += "</div>\n" + runs_table(page.runs, page.throughput_unit);
  if (!page.note.empty()) html += "<p>" + html_text(page.note) + "</p>\n";
  return html + "</section>\n";
}

std::string facts_table(const RunPage& page) {
  if (page.facts.empty()) return "";
  std::string rows;
  for (const auto& [name, value] : page.facts)
    rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", html_text(name), html_text(value));
  return "<section><h2>Run and machine</h2>\n<table class=\"facts\">\n" + rows +
         "</table></section>\n";
}

std::string settings_table(const RunPage& page) {
  if (page.settings.empty()) return "";
  std::string html = "<section><h2>Settings</h2>\n<div class=\"settings\">\n", group;
  bool is_open = false;
  for (const ReportSetting& row : page.settings) {
    if (!is_open || row.group != group) {
      if (std::exchange(is_open, true)) html += "</table>\n";
      group = row.group;
      html += fmt::format("<table><caption>{}</caption>\n", html_text(group));
    }
    html += fmt::format("<tr{}><th>{}</th><td>{}</td><td>{}</td></tr>\n",
                        row.source == "default" ? " class=\"default\"" : "", html_text(row.name),
                        html_text(row.value), html_text(row.source));
  }
  return html + "</table></div></section>\n";
}

}  // namespace

std::string RunPage::html() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{}</title>\n<style>{}</style></head>\n<body>\n<h1>{}</h1>\n{}{}{}{}{}{}"
      "<script>{}</script>\n</body></html>\n",
      html_text(title), report_style, html_text(title), curves(*this), timeline_section(*this),
      memory_sections(*this), blocks_section(*this), facts_table(*this), settings_table(*this),
      report_script);
}

}  // namespace zg::zero
