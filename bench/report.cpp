#include <algorithm>
#include <cmath>
#include <string_view>

#include "bench/limits.h"
#include "bench/measure.h"
#include "zerograd/bench.h"
#include "zerograd/runtime/device_names.h"
#include "zerograd/runtime/error.h"

namespace zg::bench {
namespace {

constexpr const char* matmul_peak = "matmul peak";

Bound bound_of(const Work& work, const Limits& limits) {
  constexpr double cached = 1 << 20;  // bytes that stay in a second-level cache from run to run
  const double peak = work.dtype == DType::bf16 ? limits.matmul_bf16 : limits.matmul_f32;
  const Bound compute{matmul_peak, peak > 0.0 ? work.flops / peak : 0.0};
  const double read_s = work.read / limits.read;
  const double moved_s = work.bytes() / std::max(limits.memory, limits.update);
  const Bound memory = read_s > moved_s ? Bound{"read", read_s} : Bound{"memory", moved_s};
  const bool computes = compute.seconds > memory.seconds || (work.bytes() <= cached && peak > 0.0);
  return computes ? compute : memory;
}

void require(bool is_right, const std::string& what, const std::string& expected, double got) {
  if (!is_right)
    throw ConfigError("bench: " + what + ": expected " + expected + ", got " + std::to_string(got));
}

bool is_amount(double value) { return value >= 0.0 && std::isfinite(value); }

void validate(const Limits& limits) {
  const auto is_rate = [](double rate) { return rate > 0.0 && std::isfinite(rate); };
  const char* bytes = "bytes in a second, above 0";
  require(is_rate(limits.memory), "limits.memory", bytes, limits.memory);
  require(is_rate(limits.read), "limits.read", bytes, limits.read);
  require(is_amount(limits.update), "limits.update", "0 or more", limits.update);
  require(is_amount(limits.matmul_f32), "limits.matmul_f32", "0 or more", limits.matmul_f32);
  require(is_amount(limits.matmul_bf16), "limits.matmul_bf16", "0 or more", limits.matmul_bf16);
}

/// Checks text that becomes a cell of the table.
void validate_cell(const char* what, const std::string& text) {
  if (text.find_first_of("|\n\r") != std::string::npos)
    throw ConfigError(std::string("bench: ") + what + ": expected one line without '|', got '" +
                      text + "'");
}

void validate(const Work& work) {
  if (work.name.empty()) throw ConfigError("bench: work.name: expected a name, got none");
  validate_cell("work.name", work.name);
  validate_cell("work.shape", work.shape);
  require(is_amount(work.flops), work.name + ": flops", "0 or more", work.flops);
  require(is_amount(work.read), work.name + ": bytes read", "0 or more", work.read);
  require(is_amount(work.written), work.name + ": bytes written", "0 or more", work.written);
  if (work.flops + work.bytes() <= 0.0)
    throw ConfigError("bench: " + work.name +
                      ": flops, read and written are all 0; expected the work of one run");
}

/// Throws Unsupported for devices whose times do not represent an accelerator or CPU.
void require_figures(const Device& device) {
  if (device.type() == Device::Type::meta)
    throw Unsupported("bench: " + device.name() +
                      " computes nothing; expected a cpu, cuda or hpu device to measure");
  if (const std::string what = stand_in(device.type(), device.index()); !what.empty())
    throw Unsupported("bench: " + device.name() + " is the " + what +
                      ": its times say nothing of one; expected an accelerator to measure; try "
                      "Device::cpu()");
}

/// Measures on a separate logical device, so that the caller's memory accounting does not change.
Limits measured_limits(const Device& device, int rounds) {
  const Device::Traits& traits = device.traits();
  return measure_limits(
      Device::parse(device.name(), {.threads = traits.threads, .isa = traits.isa}), rounds);
}

}  // namespace

double Row::quantile(double q) const { return bench::quantile(seconds, q); }

std::optional<double> Row::percent_of_limit(double q) const {
  if (bound.seconds <= 0.0 || seconds.empty()) return std::nullopt;
  return 100.0 * bound.seconds / quantile(q);
}

std::string Row::cache() const {
  constexpr double noise_percent = 5.0;
  const bool above = percent_of_limit(0.5).value_or(0.0) > 100.0 + noise_percent;
  return type == Device::Type::cpu && above && std::string_view(bound.name) != matmul_peak
             ? cache_of(work.bytes(), threads)
             : "";
}

Report::Report(const Device& device, const ReportOptions& options)
    : device_(device), effort_(options.effort) {
  validate(effort_);
  require_figures(device);
  limits_ = options.limits ? *options.limits : measured_limits(device, effort_.limit_rounds);
  validate(limits_);
}

Row Report::row_of(const Work& work) const {
  validate(work);
  const bool computes_on_threads = device_.type() == Device::Type::cpu;
  return {.work = work,
          .type = device_.type(),
          .threads = computes_on_threads ? device_.traits().threads : 1,
          .bound = bound_of(work, limits_)};
}

Row Report::add(const Work& work, const std::function<void()>& run) {
  Row row = row_of(work);
  if (!run) throw ConfigError("bench: " + work.name + ": expected a function to run, got none");
  row.seconds = measure(device_, run, effort_);
  return rows_.emplace_back(std::move(row));
}

Row Report::add(const Work& work, std::vector<double> seconds) {
  Row row = row_of(work);
  if (seconds.empty()) throw ConfigError("bench: " + work.name + ": expected seconds, got none");
  for (const double value : seconds)
    require(value > 0.0 && std::isfinite(value), work.name + ": seconds", "more than 0", value);
  std::sort(seconds.begin(), seconds.end());
  row.seconds = std::move(seconds);
  return rows_.emplace_back(std::move(row));
}

Row Report::add_unmeasured(const Work& work, const std::string& why) {
  Row row = row_of(work);
  validate_cell("why", why);
  if (why.empty()) throw ConfigError("bench: " + work.name + ": expected a reason, got none");
  row.unmeasured = why;
  return rows_.emplace_back(std::move(row));
}

}  // namespace zg::bench
