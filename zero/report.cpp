#include "zerograd/zero/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {
namespace {

void join(Envelope::Bucket& bucket, const Envelope::Bucket& other) {
  if (other.count > 0) {
    bucket.min = bucket.count > 0 ? std::min(bucket.min, other.min) : other.min;
    bucket.max = bucket.count > 0 ? std::max(bucket.max, other.max) : other.max;
  }
  bucket.count += other.count;
  bucket.bad += other.bad;
  bucket.sum += other.sum;
}

/// A value of a line that MetricsFile has written; NaN: it has none, or it is "nan". A parser of
/// JSON would take minutes for ten million lines.
double value_in(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == line.npos) return NAN;
  line.remove_prefix(at + key.size());
  if (line.starts_with("\"inf")) return INFINITY;
  double value = NAN;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value;
}

std::vector<std::pair<std::string, std::string>> facts_of(const Engine& engine) {
  const Device& device = engine.device();
  const Device::Traits& traits = device.traits();
  const Config& config = engine.config();
  std::string where = device.description();
  if (where.empty())
    where = fmt::format("{}, {}, {} threads", device, name_of(traits.isa), traits.threads);
  int64_t parameters = 0;
  for (const auto& parameter : engine.store().parameters()) parameters += parameter->shape.numel();
  return {
      {"parameters of a rank", std::to_string(parameters)},
      {"ranks", fmt::format("{}, ZeRO stage {}", engine.world().size(), config.stage)},
      {"device of rank 0", where},
      {"cores", std::to_string(available_cores())},
      {"memory", fmt::format("{:.1f} GiB", static_cast<double>(physical_memory_bytes()) / 0x1p30)},
      {"library", fmt::format("zerograd {}", version())}};
}

}  // namespace

void Envelope::add(int64_t step, double value) {
  const bool is_finite = std::isfinite(value);
  Bucket bucket{.first = step, .count = is_finite ? 1 : 0, .bad = is_finite ? 0 : 1};
  if (is_finite) bucket.min = bucket.max = bucket.sum = value;
  const int64_t origin = buckets_.empty() ? step : buckets_.front().first;
  while ((step - origin) / width_ >= most_) {
    width_ *= 2;
    std::vector<Bucket> wider;
    for (const Bucket& old : buckets_) {
      const int64_t first = origin + (old.first - origin) / width_ * width_;
      if (wider.empty() || wider.back().first != first) wider.push_back({.first = first});
      join(wider.back(), old);
    }
    buckets_ = std::move(wider);
  }
  bucket.first = origin + (step - origin) / width_ * width_;
  if (buckets_.empty() || buckets_.back().first != bucket.first)
    buckets_.push_back(bucket);
  else
    join(buckets_.back(), bucket);
}

Envelope::Bucket Envelope::all() const {
  Bucket all{.first = buckets_.empty() ? 0 : buckets_.front().first};
  for (const Bucket& bucket : buckets_) join(all, bucket);
  return all;
}

void RunCurves::add(const StepRecord& r) {
  loss.add(r.step, r.loss);
  rate.add(r.step, r.rate);
  norm.add(r.step, r.grad_norm);
  throughput.add(r.step, r.tokens_per_second);
  skipped.add(r.step, r.skipped ? 1.0 : 0.0);
  restarts.add(r.step, r.resumed ? 1.0 : 0.0);
  end = r.step + 1;
}

void RunCurves::read(const std::string& metrics, int64_t end) {
  std::ifstream file(metrics);
  if (!file) raise<FileError>("{} cannot be read; expected a file of --metrics", metrics);
  std::string line;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    if (line.find("\"final\":true") != line.npos) continue;
    const double step = value_in(line, "\"step\":"), next = static_cast<double>(this->end);
    if (!(step >= 0.0 && step < 9e15) || !line.ends_with('}'))
      raise<FileError>("{}:{}: expected a line of --metrics, got '{}'", metrics, number,
                       printable(line));
    if (step >= static_cast<double>(end)) return;
    if (step < next)
      raise<FileError>("{}:{}: expected step {} or a later one, got {}", metrics, number, next,
                       step);
    StepRecord r{};
    r.step = static_cast<int64_t>(step);
    r.loss = value_in(line, "\"loss\":");
    r.grad_norm = value_in(line, "\"grad_norm\":");
    r.rate = value_in(line, "\"lr\":");
    r.tokens_per_second = value_in(line, "\"tokens_per_s\":");
    r.skipped = line.find("\"skipped\":true") != line.npos;
    r.resumed = line.find("\"resumed\":true") != line.npos;
    add(r);
  }
}

Report::Report(Engine& engine, ReportOptions options)
    : engine_(engine), options_(std::move(options)), first_step_(engine.steps()) {
  page_.title = options_.title;
  page_.facts = options_.facts;
  page_.settings = options_.settings;
  for (const auto& [name, value] : facts_of(engine)) set_fact(name, value);
  if (options_.tokens) page_.throughput_unit = "tokens/s";
  page_.runs = options_.compared;
  RunCurves& run = *page_.runs.emplace(page_.runs.begin());
  run.name = "this run";
  if (first_step_ == 0 || engine.world().rank() != 0) return;
  if (is_regular_file(options_.metrics)) run.read(options_.metrics, first_step_);
  if (run.end < first_step_)
    page_.note = fmt::format(
        "Steps {} to {} were before this resume and are not shown: no file of metrics has them.",
        run.end, first_step_ - 1);
}

std::optional<std::string> Report::add(const TrainedStep& step, int64_t first_sample) {
  const int64_t work = options_.tokens ? options_.tokens(first_sample, step.samples) : step.samples;
  page_.runs.front().add({.step = step.step,
                          .loss = step.loss,
                          .grad_norm = step.result.gradient_norm,
                          .rate = step.rate,
                          .skipped = step.result.skipped,
                          .tokens_per_second = static_cast<double>(work) / step.seconds,
                          .resumed = step.step == first_step_ && first_step_ > 0});
  if (Clock::now() - written_at_ < std::chrono::minutes(1)) return std::nullopt;
  return write();
}

void Report::add_timeline(const Trace& trace) {
  page_.timeline = ReportedTimeline::of(engine_.world(), trace);
}

void Report::add_validation(int64_t steps, double loss) {
  page_.runs.front().validation.add(steps, loss);
}

void Report::set_fact(const std::string& name, const std::string& value) {
  const auto found =
      std::ranges::find_if(page_.facts, [&](const auto& fact) { return fact.first == name; });
  if (found != page_.facts.end())
    found->second = value;
  else
    page_.facts.emplace_back(name, value);
}

std::optional<std::string> Report::write() {
  if (is_lost_ || engine_.world().rank() != 0 || engine_.device().type() == Device::Type::meta)
    return std::nullopt;
  written_at_ = Clock::now();
  try {
    replace_text(options_.path, page_.html());
  } catch (const FileError& error) {
    is_lost_ = true;
    return fmt::format("report: {}; the page is lost, and training goes on", error.what());
  }
  return std::nullopt;
}

}  // namespace zg::zero
