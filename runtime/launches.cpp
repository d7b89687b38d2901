#include "zerograd/runtime/launches.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace zg {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::map<std::tuple<std::string, std::string, DType>, LaunchRow>;

int64_t sum(const std::vector<LaunchRow>& rows, int64_t LaunchRow::*member) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [&](int64_t all, const LaunchRow& row) { return all + row.*member; });
}

/// Adds `factor` times the numbers of `row` to its row in `rows`.
void add(Rows& rows, const LaunchRow& row, int64_t factor) {
  LaunchRow& to = rows[{row.op, row.kernel, row.dtype}];
  to.op = row.op;
  to.kernel = row.kernel;
  to.dtype = row.dtype;
  to.kind = row.kind;
  for (auto member :
       {&LaunchRow::launches, &LaunchRow::blocks, &LaunchRow::bytes, &LaunchRow::operations})
    to.*member += factor * row.*member;
}

std::vector<LaunchRow> values(const Rows& rows) {
  std::vector<LaunchRow> all;
  for (const auto& [name, row] : rows)
    if (row.launches > 0) all.push_back(row);
  return all;
}

Json json_of(const LaunchCounts& counts) {
  Json rows = Json::array();
  for (const LaunchRow& row : counts.rows)
    rows.push_back({{"op", row.op},
                    {"kernel", row.kernel},
                    {"launches", row.launches},
                    {"blocks", row.blocks},
                    {"bytes", row.bytes},
                    {"operations", row.operations},
                    {"dtype", name_of(row.dtype)},
                    {"class", name_of(row.kind)}});
  return {{"launches", counts.launches()},
          {"bytes", counts.bytes()},
          {"operations", counts.operations()},
          {"host_waits", counts.host_waits},
          {"kernels", rows}};
}

}  // namespace

const char* name_of(KernelClass kind) {
  constexpr const char* names[] = {
      "memory", "product", "attention_forward", "attention_backward", "optimizer", "copy"};
  return names[static_cast<size_t>(kind)];
}

int64_t LaunchCounts::launches() const { return sum(rows, &LaunchRow::launches); }
int64_t LaunchCounts::bytes() const { return sum(rows, &LaunchRow::bytes); }
int64_t LaunchCounts::operations() const { return sum(rows, &LaunchRow::operations); }

LaunchCounts& LaunchCounts::operator+=(const LaunchCounts& other) {
  Rows all;
  for (const LaunchRow& row : rows) add(all, row, 1);
  for (const LaunchRow& row : other.rows) add(all, row, 1);
  rows = values(all);
  host_waits += other.host_waits;
  return *this;
}

LaunchCounts LaunchCounts::since(const LaunchCounts& before) const {
  Rows all;
  for (const LaunchRow& row : rows) add(all, row, 1);
  for (const LaunchRow& row : before.rows) add(all, row, -1);
  return {.host_waits = host_waits - before.host_waits, .rows = values(all)};
}

void LaunchCounter::add(const LaunchRow& work) {
  const std::lock_guard lock(mutex_);
  zg::add(rows_, work, 1);
  has_work_ = true;
}

void LaunchCounter::add_wait() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_work_, false)) ++host_waits_;
}

LaunchCounts LaunchCounter::counts() const {
  const std::lock_guard lock(mutex_);
  return {.host_waits = host_waits_, .rows = values(rows_)};
}

std::string StepLaunches::json() const {
  return Json{{"schema", "zerograd.launches/1"},
              {"step", step},
              {"per_micro_batch", json_of(per_micro_batch)},
              {"per_step", json_of(per_step)}}
      .dump();
}

}  // namespace zg
