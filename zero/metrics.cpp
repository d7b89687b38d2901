#include "zerograd/zero/metrics.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/zero/line_file.h"

namespace zg::zero {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return fmt::format("{:.17g}", value);
}

std::string score(const std::optional<double>& value) { return value ? number(*value) : "null"; }

// True for a complete line about a step before `step`.
bool is_before(const std::string& line, int64_t step) {
  try {
    const auto record = parse_json_object(line, "metrics");
    return record.contains("final") ? record.value("steps", step) <= step
                                    : record.value("step", step) < step;
  } catch (const FileError&) {
    return false;
  }
}

// The bytes of the lines about steps before `step`.
uintmax_t bytes_before(const std::string& path, int64_t step) {
  std::ifstream file(path);
  uintmax_t kept = 0;
  for (std::string line; std::getline(file, line) && !file.eof() && is_before(line, step);)
    kept += line.size() + 1;
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool resumed, int64_t first_step)
    : file_(std::make_unique<LineFile>(
          path, [&] { return resumed ? bytes_before(path, first_step) : 0; })) {}

MetricsFile::~MetricsFile() = default;

void MetricsFile::write(const StepRecord& r) {
  file_->write(
      fmt::format(R"({{"step":{},"micro_steps":{},"samples":{},"loss":{},"grad_norm":{},"lr":{},)"
                  R"("loss_scale":{},"skipped":{},"tokens_per_s":{},"step_s":{},)"
                  R"("peak_bytes":{},"host_peak_bytes":{},"reduction_groups":{},"bits":"{}"{}{}}})"
                  "\n",
                  r.step, r.micro_steps, r.samples, number(r.loss), number(r.grad_norm),
                  number(r.rate), number(r.loss_scale), r.skipped, number(r.tokens_per_second),
                  number(r.seconds), r.peak_bytes, r.host_peak_bytes, r.reduction_groups,
                  name_of(r.bits), r.redone ? fmt::format(R"(,"redone":{})", *r.redone) : "",
                  r.resumed ? R"(,"resumed":true)" : ""));
}

void MetricsFile::write(const FinalRecord& r) {
  const auto bytes = [&](Collective collective) {
    return r.wire[static_cast<size_t>(collective)].bytes;
  };
  file_->write(fmt::format(
      R"({{"final":true,"steps":{},"skipped":{},"param_hash":"{}","train_score":{},)"
      R"("test_score":{},"wire_bytes":{{"all_gather":{},"reduce_scatter":{},)"
      R"("all_reduce":{},"broadcast":{},"other":{}}},"reduction_groups":{},"bits":"{}"}})"
      "\n",
      r.steps, r.skipped, r.param_hash, score(r.train_score), score(r.test_score),
      bytes(Collective::all_gather), bytes(Collective::reduce_scatter),
      bytes(Collective::all_reduce), bytes(Collective::broadcast),
      bytes(Collective::all_to_all) + bytes(Collective::scatter), r.reduction_groups,
      name_of(r.bits)));
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
  using Moment = TrainerMoment;
  const auto note_at = [&](Moment at, bool is_its_batch, StepPoint point) {
    if (moment == at && is_its_batch) rows.note(point);
  };
  if (moment == Moment::step_begins) rows.begin_step(batch.step);
  note_at(Moment::batch_ready, batch.index == 0, StepPoint::before_forward);
  note_at(Moment::forward_done, batch.last, StepPoint::after_forward);
  note_at(Moment::backward_begins, batch.last, StepPoint::before_backward);
  note_at(Moment::backward_done, batch.last, StepPoint::after_backward);
  note_at(Moment::gradients_ready, true, StepPoint::before_step);
  note_at(Moment::step_done, true, StepPoint::after_step);
}

StepLaunchNotes::StepLaunchNotes(const Device& device, int64_t step)
    : device_(device), step_(step) {
  if (!device.launches())
    raise<ConfigError>(
        "launches: {} does not count them; expected a device made with "
        "DeviceOptions::count_launches",
        device.name());
}

void StepLaunchNotes::note(TrainerMoment moment, const MicroBatch& batch) {
  if (batch.step != step_ || counted_) return;
  const LaunchCounts now = device_.launches()->counts();
  const LaunchCounts since = now.since(before_);
  before_ = now;
  if (moment == TrainerMoment::step_begins)
    now_ = {.step = step_, .per_micro_batch = {}, .per_step = {}};
  else if (moment >= TrainerMoment::gradients_ready)
    now_.per_step += since;
  else if (batch.last)
    now_.per_micro_batch += since;
  if (moment == TrainerMoment::step_done) counted_ = now_;
}

}  // namespace zg::zero
