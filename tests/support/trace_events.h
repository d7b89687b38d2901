#pragma once

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"

// Reads a file of Chrome trace JSON.
namespace zg::testing {

struct TraceEvent {
  int rank;
  std::string track, category, name;
  double begin, end;  ///< microseconds
  nlohmann::json arguments;
};

/// The spans of a trace file. Throws unless it is whole JSON and each span's track has a name.
inline std::vector<TraceEvent> trace_events(const std::string& path) {
  const nlohmann::json file = nlohmann::json::parse(read_file(path));
  std::map<std::pair<int, int>, std::string> tracks;
  for (const nlohmann::json& event : file.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      tracks[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  std::vector<TraceEvent> events;
  for (const nlohmann::json& event : file.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), length = event.at("dur");
    events.push_back({.rank = event.at("pid"),
                      .track = tracks.at({event.at("pid"), event.at("tid")}),
                      .category = event.at("cat"),
                      .name = event.at("name"),
                      .begin = begin,
                      .end = begin + length,
                      .arguments = event.value("args", nlohmann::json::object())});
  }
  return events;
}

/// Two spans of one track that overlap while neither holds the other; empty: all nest.
inline std::string misnested(std::vector<TraceEvent> events) {
  constexpr double rounding = 0.002;  // ends are sums of two numbers of whole nanoseconds
  std::ranges::stable_sort(events, [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.rank, a.track, a.begin, -a.end) <
           std::tuple(b.rank, b.track, b.begin, -b.end);
  });
  std::vector<const TraceEvent*> open;
  for (const TraceEvent& event : events) {
    while (!open.empty() && (open.back()->rank != event.rank || open.back()->track != event.track ||
                             open.back()->end <= event.begin + rounding))
      open.pop_back();
    if (!open.empty() && event.end > open.back()->end + rounding)
      return "rank " + std::to_string(event.rank) + ", " + event.track + ": '" + event.name +
             "' begins in '" + open.back()->name + "' and ends " +
             std::to_string(event.end - open.back()->end) + " us behind it";
    open.push_back(&event);
  }
  return "";
}

}  // namespace zg::testing
