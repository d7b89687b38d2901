#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "zerograd/bench.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/json.h"

// Draws the rows of a record below the limits that were measured with them (S. Williams, A.
// Waterman, D. Patterson, Roofline, 2009).
namespace zg::bench {
namespace {

using Value = nlohmann::json;

constexpr double left = 64, right = 976, top = 66, bottom = 584;
constexpr double font = 11, radius = 4;

struct Box {
  double left, top, right, bottom;
  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};
struct Point {
  double x, y;
};

Box box_around(const Point& at, double reach) {
  return {at.x - reach, at.y - reach, at.x + reach, at.y + reach};
}

/// Boxes that a line goes through.
std::vector<Box> boxes_along(const Point& begin, const Point& end, double reach) {
  std::vector<Box> boxes;
  constexpr int count = 120;
  for (int i = 0; i <= count; ++i) {
    const double share = static_cast<double>(i) / count;
    boxes.push_back(box_around(
        {begin.x + share * (end.x - begin.x), begin.y + share * (end.y - begin.y)}, reach));
  }
  return boxes;
}

bool overlaps_any(const Box& box, const std::vector<Box>& others) {
  return std::ranges::any_of(others, [&](const Box& other) { return box.overlaps(other); });
}

/// A logarithmic axis.
struct Axis {
  double least, most, begin, end;
  double at(double value) const {
    return begin + std::log(value / least) / std::log(most / least) * (end - begin);
  }
};

std::string escaped(const std::string& words) {
  std::string text;
  for (const char c : words)
    text += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return text;
}

std::string text_at(const Point& at, const std::string& words, const char* anchor,
                    const std::string& more = "") {
  return "<text x=\"" + fixed(at.x, 1) + "\" y=\"" + fixed(at.y, 1) + "\" text-anchor=\"" + anchor +
         "\"" + more + ">" + escaped(words) + "</text>\n";
}

std::string line_between(const Point& a, const Point& b, const char* style) {
  return "<line x1=\"" + fixed(a.x, 1) + "\" y1=\"" + fixed(a.y, 1) + "\" x2=\"" + fixed(b.x, 1) +
         "\" y2=\"" + fixed(b.y, 1) + "\" " + style + "/>\n";
}

const char* colour_of(const std::string& limit) {
  return limit == "matmul peak" ? "#4269d0" : limit == "read" ? "#3ca951" : "#ff725c";
}

/// A power of ten as text: "0.1", "1000".
std::string decade_text(int power) { return fixed(std::pow(10.0, power), std::max(0, -power)); }

struct Kernel {
  std::string label, title, limit;
  double intensity, rate;  ///< FLOP for a byte; FLOP a second
  Point at = {};
};

std::vector<Kernel> kernels_of(const Value& rows, const std::string& dtype, int threads) {
  std::vector<Kernel> kernels;
  std::map<std::string, int> names;
  for (const Value& row : rows)
    if (row.at("dtype") == dtype && row.at("threads") == threads && row.at("flops") > 0.0 &&
        row.at("bytes") > 0.0) {
      const auto name = row.at("case").get<std::string>(),
                 shape = row.at("shape").get<std::string>();
      const auto flops = row.at("flops").get<double>(), bytes = row.at("bytes").get<double>();
      const auto seconds = row.at("median_s").get<double>();
      const Value& percent = row.at("percent_of_limit");
      const std::string limit = row.at("limit");
      kernels.push_back(
          {name,
           name + " " + shape + ": " + fixed(1e-9 * flops / seconds, 1) + " GFLOP/s, " +
               fixed(1e-9 * bytes / seconds, 1) + " GB/s" +
               (percent.is_number() ? ", " + fixed(percent, 0) + " % of " + limit : ""),
           limit, flops / bytes, flops / seconds});
      if (++names[name] > 1) kernels.back().label += " " + shape;
    }
  return kernels;
}

/// Labels beside their points, or farther away with a line to the point. A label that would lie on
/// another one, on a point or on a limit is left out: the point has a title.
std::string labels_of(const std::vector<Kernel>& kernels, std::vector<Box> taken) {
  constexpr double pi = 3.14159265358979;
  std::string text;
  std::vector<Box> labels;
  for (const Kernel& kernel : kernels) taken.push_back(box_around(kernel.at, radius));
  const auto place = [&](const Kernel& kernel) {
    const auto [x, y] = kernel.at;
    const double reach = 0.62 * font * static_cast<double>(kernel.label.size());
    for (double away = 8; away <= 170; away *= 1.25)
      for (int direction = 0; direction < 16; ++direction) {
        const double angle = direction * pi / 8;
        const Point to{x + away * std::cos(angle), y + away * std::sin(angle)};
        const double begin = std::cos(angle) > 0.1    ? to.x
                             : std::cos(angle) < -0.1 ? to.x - reach
                                                      : to.x - reach / 2;
        const Box box{begin - 2, to.y - 8, begin + reach + 2, to.y + 7};
        const bool is_inside =
            box.left >= left && box.right <= right && box.top >= top && box.bottom <= bottom;
        if (!is_inside || overlaps_any(box, taken)) continue;
        const Point near{std::clamp(x, box.left, box.right), std::clamp(y, box.top, box.bottom)};
        const bool has_line = std::hypot(near.x - x, near.y - y) > 9;
        const std::vector<Box> way = boxes_along(kernel.at, near, 0.5);
        if (has_line &&
            std::ranges::any_of(way, [&](const Box& step) { return overlaps_any(step, labels); }))
          continue;
        if (has_line) {
          text += line_between(kernel.at, near, "stroke=\"#999999\" stroke-width=\"0.6\"");
          taken.insert(taken.end(), way.begin(), way.end());
        }
        text += text_at({begin, to.y + 4}, kernel.label, "start");
        labels.push_back(box), taken.push_back(box);
        return;
      }
  };
  std::ranges::for_each(kernels, place);
  return text;
}

std::string drawing(std::vector<Kernel> kernels, const Value& limits, const std::string& title,
                    const std::string& dtype) {
  const auto number = [&](const char* name) { return limits.at(name).get<double>(); };
  const double peak = number(dtype == "bf16" ? "matmul_bf16" : "matmul_f32");
  const double memory = std::max(number("memory"), number("update"));
  const auto by_intensity = std::ranges::minmax(kernels, {}, &Kernel::intensity);
  const auto by_rate = std::ranges::minmax(kernels, {}, &Kernel::rate);
  const Axis x{by_intensity.min.intensity / 2, by_intensity.max.intensity * 2.5, left, right};
  const Axis y{by_rate.min.rate / 1.6, std::max(by_rate.max.rate, peak) * 2, bottom, top};
  for (Kernel& kernel : kernels) kernel.at = {x.at(kernel.intensity), y.at(kernel.rate)};
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 640\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"1000\" height=\"640\" fill=\"white\"/>\n";
  const char* const grid = "stroke=\"#e4e4e4\"";
  const auto each_decade = [](const Axis& axis, double unit, const auto& draw) {
    for (int power = -12; power < 18; ++power)
      if (const double value = unit * std::pow(10.0, power);
          value > axis.least && value < axis.most)
        draw(axis.at(value), decade_text(power));
  };
  each_decade(x, 1.0, [&](double at, const std::string& words) {
    text +=
        line_between({at, top}, {at, bottom}, grid) + text_at({at, bottom + 18}, words, "middle");
  });
  each_decade(y, 1e9, [&](double at, const std::string& words) {
    text += line_between({left, at}, {right, at}, grid) + text_at({left - 8, at + 4}, words, "end");
  });
  text += text_at({left, 20}, title, "start", " font-weight=\"bold\" font-size=\"14\"") +
          text_at({(left + right) / 2, bottom + 40},
                  "operations for a byte, each operand moved once", "middle") +
          text_at({16, (top + bottom) / 2}, "GFLOP/s", "middle",
                  " transform=\"rotate(-90 16 " + fixed((top + bottom) / 2, 0) + ")\"");
  double at = left;
  const auto legend = [&](const std::string& mark, const std::string& words) {
    text += mark + text_at({at + 26, 44}, words, "start");
    at += 50 + 6.5 * static_cast<double>(words.size());
  };
  std::vector<Box> taken;
  const auto limit_line = [&](const Point& begin, const Point& end, const char* style,
                              const std::string& words) {
    text += line_between(begin, end, style);
    const std::vector<Box> boxes = boxes_along(begin, end, 3);
    taken.insert(taken.end(), boxes.begin(), boxes.end());
    legend(line_between({at, 40}, {at + 20, 40}, style), words);
  };
  const double ridge = std::min(peak > 0.0 ? peak / memory : x.most, x.most);
  if (const double start = std::max(x.least, y.least / memory); start < ridge)
    limit_line({x.at(start), y.at(start * memory)}, {x.at(ridge), y.at(ridge * memory)},
               "stroke=\"#555555\" stroke-width=\"1.5\"",
               "memory, " + fixed(1e-9 * memory, 1) + " GB/s");
  if (peak > 0.0)
    limit_line({x.at(std::max(x.least, ridge)), y.at(peak)}, {right, y.at(peak)},
               "stroke=\"#555555\" stroke-width=\"1.5\" stroke-dasharray=\"6 3\"",
               "multiply-adds, " + fixed(1e-9 * peak, 1) + " GFLOP/s");
  const auto mark = [](const Point& place, const std::string& limit, const std::string& inside) {
    return "<circle cx=\"" + fixed(place.x, 1) + "\" cy=\"" + fixed(place.y, 1) +
           "\" r=\"4\" fill=\"" + colour_of(limit) + "\">" + inside + "</circle>\n";
  };
  for (const char* limit : {"matmul peak", "memory", "read"})
    legend(mark({at + 16, 40}, limit, ""), std::string("bound by ") + limit);
  std::ranges::sort(kernels, {}, [](const Kernel& kernel) { return kernel.at.y; });
  text += labels_of(kernels, taken);
  for (const Kernel& kernel : kernels)
    text += mark(kernel.at, kernel.limit, "<title>" + escaped(kernel.title) + "</title>");
  return text + "</svg>\n";
}

}  // namespace

std::vector<Drawing> rooflines(const std::string& path) {
  std::vector<Drawing> drawings;
  try {
    const Value record = parse_json_object(read_text(path), path);
    const Value& machine = record.at("machine");
    for (const Value& limits : record.at("limits"))
      for (const char* dtype : {"f32", "bf16"}) {
        const int threads = limits.at("threads");
        std::vector<Kernel> kernels = kernels_of(record.at("rows"), dtype, threads);
        if (kernels.empty() || limits.at("memory") <= 0.0) continue;
        const std::string title =
            std::string("Kernels in ") + dtype + " below the limits of " +
            (machine.contains("device")
                 ? machine.at("device").get<std::string>()
                 : std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") +
                       machine.at("isa").get<std::string>());
        drawings.push_back({dtype, threads, drawing(std::move(kernels), limits, title, dtype)});
      }
  } catch (const Value::exception& error) {
    throw FileError(path + ": expected what `zerograd bench kernels --json` writes, got " +
                    error.what());
  }
  if (drawings.empty())
    throw ConfigError(path +
                      ": expected measured limits and a row with operations and bytes, got none");
  return drawings;
}

}  // namespace zg::bench
