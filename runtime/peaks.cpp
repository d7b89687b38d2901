#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/step_time.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

// Files of the schema zerograd.peaks/1.
namespace zg {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* peaks_schema = "zerograd.peaks/1";

/// A value of the file and its place for messages: "h100.json: efficiencies[2].dtype".
struct Node {
  const Json& value;
  std::string place;

  [[noreturn]] void fail(const std::string& expected) const {
    constexpr size_t most = 60;
    std::string got = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    if (got.size() > most) got = got.substr(0, most) + "...";
    throw FileError(
        fmt::format("{}: expected {}, got {}; see bench/peaks/README.md", place, expected, got));
  }
  Node at(const std::string& key) const {
    static const Json absent;
    const auto found = value.find(key);
    return {found == value.end() ? absent : *found,
            place + (place.ends_with(": ") ? "" : ".") + key};
  }
  void allow(std::initializer_list<const char*> keys) const {
    if (!value.is_object()) fail("an object");
    for (const auto& [key, unused] : value.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        std::string known;
        for (const char* name : keys) known += (known.empty() ? "" : ", ") + std::string(name);
        at(key).fail("no such key, but " + known);
      }
  }
  std::vector<Node> items() const {
    std::vector<Node> all;
    if (value.is_null()) return all;
    if (!value.is_array()) fail("a list");
    for (size_t i = 0; i < value.size(); ++i)
      all.push_back({value[i], fmt::format("{}[{}]", place, i)});
    return all;
  }
  std::string text(bool required = false) const {
    if (value.is_null() && !required) return {};
    if (!value.is_string()) fail("a text");
    return value.get<std::string>();
  }
  /// A number from 1e-12 on, or from 0 on; 0 if it is absent and may be 0. Quotients of a smaller
  /// one could overflow.
  double number(bool may_be_zero = false, double most = 1e30) const {
    if (value.is_null() && may_be_zero) return 0.0;
    const double least = may_be_zero ? 0.0 : 1e-12;
    const double number = value.is_number() ? value.get<double>() : -1.0;
    if (!(number >= least && number <= most))
      fail(fmt::format("a number from {:g} to {:g}", least, most));
    return number;
  }
  /// A number, or a list of [size, value] with rising sizes.
  Curve curve(double most = 1e30) const {
    if (value.is_null()) return {};
    if (value.is_number()) return {{{1.0, number(false, most)}}};
    if (!value.is_array()) fail("a number, or a list of [size, value]");
    Curve curve;
    for (const Node& point : items()) {
      if (!point.value.is_array() || point.value.size() != 2) point.fail("[size, value]");
      const std::vector<Node> pair = point.items();
      const double size = pair[0].number();
      if (curve && size <= curve.points.back().first) pair[0].fail("a size above the one before");
      curve.points.emplace_back(size, pair[1].number(false, most));
    }
    if (!curve) fail("a number, or a list of [size, value]");
    return curve;
  }
};

/// More than 1: a cache is faster than the memory, or a clock than that of the peak.
constexpr double largest_share = 100.0;

void check_name(const Node& node, const std::string& name, const std::vector<std::string>& known) {
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) return;
  std::string names;
  for (const std::string& one : known) names += (names.empty() ? "" : ", ") + one;
  node.fail(names);
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const KernelClass kind : every_kernel_class) names.push_back(name_of(kind));
  return names;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    names.push_back(name_of(dtype));
  return names;
}

Efficiency efficiency_of(const Node& node) {
  node.allow({"class", "op", "kernel", "dtype", "bandwidth", "operations", "source"});
  Efficiency entry{.kind = node.at("class").text(),
                   .op = node.at("op").text(),
                   .kernel = node.at("kernel").text(),
                   .dtype = node.at("dtype").text(),
                   .bandwidth = node.at("bandwidth").curve(largest_share),
                   .operations = node.at("operations").curve(largest_share),
                   .source = node.at("source").text(/*required=*/true)};
  check_name(node.at("class"), entry.kind, kind_names());
  check_name(node.at("dtype"), entry.dtype, dtype_names());
  if (!entry.bandwidth && !entry.operations) node.fail("bandwidth, operations or both");
  return entry;
}

Json json_of(const Curve& curve) {
  if (curve.points.size() == 1) return curve.points[0].second;
  Json points = Json::array();
  for (const auto& [size, value] : curve.points) points.push_back({size, value});
  return points;
}

}  // namespace

Peaks Peaks::parse(const std::string& text, const std::string& path) {
  const Json file = parse_json_object<Json>(text, path, {.advice = "; see bench/peaks/README.md"});
  const Node root{file, path + ": "};
  root.allow({"schema", "name", "sources", "multiprocessors", "bandwidth", "operations",
              "launch_seconds", "call_seconds", "wait_seconds", "collective_seconds",
              "collective_bandwidth", "efficiencies"});
  if (root.at("schema").value != peaks_schema) root.at("schema").fail(peaks_schema);
  Peaks peaks{.name = root.at("name").text(/*required=*/true),
              .multiprocessors = static_cast<int64_t>(
                  root.at("multiprocessors").number(/*may_be_zero=*/true, 1e6)),
              .bandwidth = root.at("bandwidth").curve(),
              .launch_seconds = root.at("launch_seconds").number(true),
              .call_seconds = root.at("call_seconds").number(true),
              .wait_seconds = root.at("wait_seconds").number(true),
              .collective_seconds = root.at("collective_seconds").number(true),
              .collective_bandwidth = root.at("collective_bandwidth").number(true)};
  if (!peaks.bandwidth) root.at("bandwidth").fail("bytes/s");
  for (const Node& source : root.at("sources").items()) {
    source.allow({"title", "url"});
    peaks.sources.push_back({source.at("title").text(/*required=*/true), source.at("url").text()});
  }
  const Node operations = root.at("operations");
  if (!operations.value.is_object()) operations.fail("an object with operations/s by dtype");
  for (const auto& [dtype, unused] : operations.value.items()) {
    check_name(operations, dtype, dtype_names());
    peaks.operations[dtype] = operations.at(dtype).number();
  }
  for (const Node& entry : root.at("efficiencies").items())
    peaks.efficiencies.push_back(efficiency_of(entry));
  return peaks;
}

Peaks Peaks::read(const std::string& path) {
  constexpr int64_t most = 16 << 20;
  return parse(read_text(path, most), path);
}

std::string Peaks::json() const {
  Json file = {{"schema", peaks_schema}, {"name", name}};
  file["sources"] = Json::array();
  for (const Source& source : sources)
    file["sources"].push_back({{"title", source.title}, {"url", source.url}});
  file["multiprocessors"] = multiprocessors;
  file["bandwidth"] = json_of(bandwidth);
  file["operations"] = operations;
  file["launch_seconds"] = launch_seconds;
  file["call_seconds"] = call_seconds;
  file["wait_seconds"] = wait_seconds;
  file["collective_seconds"] = collective_seconds;
  file["collective_bandwidth"] = collective_bandwidth;
  file["efficiencies"] = Json::array();
  for (const Efficiency& entry : efficiencies) {
    Json one = Json::object();
    const auto add = [&](const char* key, const std::string& text) {
      if (!text.empty()) one[key] = text;
    };
    add("class", entry.kind);
    add("op", entry.op);
    add("kernel", entry.kernel);
    add("dtype", entry.dtype);
    if (entry.bandwidth) one["bandwidth"] = json_of(entry.bandwidth);
    if (entry.operations) one["operations"] = json_of(entry.operations);
    one["source"] = entry.source;
    file["efficiencies"].push_back(one);
  }
  return file.dump(1) + "\n";
}

}  // namespace zg
