#pragma once

#include <string>
#include <vector>

// Parts of a run's page (zero/report.h): text and axes.
namespace zg::zero {

/// A text of unknown origin for HTML and XML.
std::string html_text(const std::string& text);
/// "1.5k", "2.3e-05": short, for labels.
std::string short_number(double value);

/// A linear axis, or a logarithmic one, that has [low, high].
struct ChartAxis {
  double low = 0.0, high = 1.0;
  bool is_log = false;
  std::vector<double> ticks = {};  ///< round numbers

  static ChartAxis of(double low, double high, bool may_be_log);
  double share(double value) const;  ///< 0 at `low`, 1 at `high`
};

/// The lines of a vertical axis in an SVG, and its labels.
struct DrawnAxis {
  DrawnAxis(const ChartAxis& axis, double width, double height);
  std::string lines, labels;
};
/// The labels of a horizontal axis: at the ticks, or only at those that are integers.
std::string labels_below(const ChartAxis& axis, bool integers, const char* unit);

struct RunPage;
/// The sections on memory: by purpose over the points of steps, and by rank and space.
std::string memory_sections(const RunPage& page);
/// The blocks of a step by address and event, and the largest tensors.
std::string blocks_section(const RunPage& page);
/// A step by rank and lane.
std::string timeline_section(const RunPage& page);

extern const char* const report_style;   ///< CSS
extern const char* const report_script;  ///< JavaScript without '<' and '&'

}  // namespace zg::zero
