#include "zerograd/zero/metrics.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"

namespace zg::zero {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return text("%.17g", value);
}

std::string score(const std::optional<double>& value) { return value ? number(*value) : "null"; }

// True if the line is complete and about a step before `step`.
bool stays(const std::string& line, int64_t step) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return false;
  return record.contains("final") ? record.value("steps", step) <= step
                                  : record.value("step", step) < step;
}

void drop_from(const std::string& path, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream file(path);
  uintmax_t kept = 0;
  for (std::string line; std::getline(file, line) && !file.eof() && stays(line, step);)
    kept += line.size() + 1;
  std::filesystem::resize_file(path, kept, error);
  if (error) throw FileError(path + " cannot be cut: " + error.message());
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool resumed, int64_t first_step)
    : path_(path), file_(nullptr, std::fclose) {
  if (resumed) drop_from(path, first_step);
  file_.reset(std::fopen(path.c_str(), resumed ? "a" : "w"));
  if (!file_) throw FileError(path + " cannot be written: " + std::strerror(errno));
}

void MetricsFile::write_line(const std::string& line) {
  // Flushed at once, so that a reader of the file sees each step when it ends.
  if (std::fputs(line.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0)
    throw FileError("writing " + path_ + " failed: " + std::strerror(errno));
}

void MetricsFile::write(const StepRecord& r) {
  write_line(text(
      "{\"step\":%lld,\"micro_steps\":%lld,\"samples\":%lld,\"loss\":%s,\"grad_norm\":%s,"
      "\"lr\":%s,\"loss_scale\":%s,\"skipped\":%s,\"tokens_per_s\":%s,\"step_s\":%s,"
      "\"peak_bytes\":%lld,\"host_peak_bytes\":%lld}\n",
      (long long)r.step, (long long)r.micro_steps, (long long)r.samples, number(r.loss).c_str(),
      number(r.grad_norm).c_str(), number(r.rate).c_str(), number(r.loss_scale).c_str(),
      r.skipped ? "true" : "false", number(r.tokens_per_second).c_str(), number(r.seconds).c_str(),
      (long long)r.peak_bytes, (long long)r.host_peak_bytes));
}

void MetricsFile::write(const FinalRecord& r) {
  const auto bytes = [&](Collective collective) {
    return static_cast<long long>(r.wire[static_cast<size_t>(collective)].bytes);
  };
  write_line(text(
      "{\"final\":true,\"steps\":%lld,\"skipped\":%lld,\"param_hash\":\"%s\","
      "\"train_score\":%s,\"test_score\":%s,\"wire_bytes\":{\"all_gather\":%lld,"
      "\"reduce_scatter\":%lld,\"all_reduce\":%lld,\"broadcast\":%lld,\"other\":%lld}}\n",
      (long long)r.steps, (long long)r.skipped, r.param_hash.c_str(), score(r.train_score).c_str(),
      score(r.test_score).c_str(), bytes(Collective::all_gather), bytes(Collective::reduce_scatter),
      bytes(Collective::all_reduce), bytes(Collective::broadcast), bytes(Collective::barrier)));
}

void MetricsBoard::write(const Scalars& scalars, const Progress& after) {
  TensorBoardEvent events[] = {{after.steps, scalars}, {after.samples, scalars}};
  for (auto& scalar : events[1].scalars) scalar.first += " vs samples";
  writer_.write(events);
}

void MetricsBoard::write(const StepRecord& record, const Progress& after) {
  write(Scalars{{"lm-loss-training/lm loss", record.loss},
                {"learning-rate/learning-rate", record.rate},
                {"batch-size/batch-size", static_cast<double>(record.samples)},
                {"grad-norm/grad-norm", record.grad_norm},
                {"loss-scale/loss-scale", record.loss_scale},
                {"iteration-time/iteration-time", record.seconds}},
        after);
}

void MetricsBoard::write(const Validation& validation, const Progress& after) {
  write(Scalars{{"lm-loss-validation/lm loss validation", validation.loss}}, after);
}

void note_memory(MemoryRows& rows, TrainerMoment moment, const MicroBatch& batch) {
  switch (moment) {
    case TrainerMoment::step_begins:
      return rows.begin_step(batch.step);
    case TrainerMoment::batch_ready:
      if (batch.index == 0) rows.note(StepPoint::before_forward);
      return;
    case TrainerMoment::forward_done:
      if (batch.last) rows.note(StepPoint::after_forward);
      return;
    case TrainerMoment::backward_begins:
      if (batch.last) rows.note(StepPoint::before_backward);
      return;
    case TrainerMoment::backward_done:
      if (batch.last) rows.note(StepPoint::after_backward);
      return;
    case TrainerMoment::gradients_ready:
      return rows.note(StepPoint::before_step);
    case TrainerMoment::optimizer_begins:
      return;
    case TrainerMoment::step_done:
      return rows.note(StepPoint::after_step);
  }
}

}  // namespace zg::zero
