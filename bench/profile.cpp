#include "bench/profile.h"

#include <algorithm>
#include <map>
#include <set>

namespace zg::bench {
namespace {

using Span = Trace::Span;

const char* between = "between kernels";

std::string part_of(const std::string& kernel, bool is_backward) {
  if (kernel == "matmul") return is_backward ? "matmul backward" : "matmul forward";
  if (kernel == "adam") return "AdamW";
  for (const auto& [kind, part] : {std::pair{"attention", "attention"},
                                   {"layer_norm", "layer_norm"},
                                   {"gelu", "gelu"},
                                   {"projection_cross_entropy", "projection + cross_entropy"}})
    if (kernel.starts_with(kind)) return part;
  return kernel;
}

/// Spans of one thread, each inside the one before it or after its end.
class Walk {
 public:
  explicit Walk(std::vector<const Span*> spans) : spans_(std::move(spans)) {
    std::stable_sort(spans_.begin(), spans_.end(), [](const Span* a, const Span* b) {
      return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
    });
  }

  std::map<std::string, double> parts() {
    while (next_ < spans_.size())
      if (const Span& span = *spans_[next_++]; span.name == "step") section(span, false);
    return std::move(parts_);
  }

 private:
  bool inside(const Span& outer) const {
    return next_ < spans_.size() && spans_[next_]->end_ns <= outer.end_ns;
  }
  void count(const std::string& part, int64_t ns) {
    parts_[part] += static_cast<double>(ns) * 1e-9;
  }

  /// A step or a part of it: what its kernels and waits leave is between them.
  void section(const Span& outer, bool is_backward) {
    int64_t rest = outer.end_ns - outer.begin_ns;
    while (inside(outer)) {
      const Span& span = *spans_[next_++];
      rest -= span.end_ns - span.begin_ns;
      if (span.kind == Trace::Kind::kernel || span.kind == Trace::Kind::wait)
        leaf(span, is_backward);
      else
        section(span, is_backward || span.name == "backward");
    }
    count(between, rest);
  }
  void leaf(const Span& span, bool is_backward) {
    count(span.kind == Trace::Kind::wait ? "waiting" : part_of(span.name, is_backward),
          span.end_ns - span.begin_ns);
    while (inside(span)) ++next_;
  }

  std::vector<const Span*> spans_;
  size_t next_ = 0;
  std::map<std::string, double> parts_;
};

}  // namespace

std::vector<ProfileRow> profile(const std::vector<Trace::Span>& spans, int rank) {
  std::vector<const Span*> own;
  for (const Span& span : spans)
    if (span.rank == rank && span.track == "compute") own.push_back(&span);
  std::vector<ProfileRow> rows;
  for (const auto& [part, seconds] : Walk(std::move(own)).parts()) rows.push_back({part, seconds});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

}  // namespace zg::bench
