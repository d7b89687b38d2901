#include "zerograd/zero/metrics.h"

#include <sys/file.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

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

void drop_from(const std::string& path, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream file(path);
  uintmax_t kept = 0;
  for (std::string line; std::getline(file, line) && !file.eof() && is_before(line, step);)
    kept += line.size() + 1;
  std::filesystem::resize_file(path, kept, error);
  if (error) raise<FileError>("{} cannot be shortened: {}", path, error.message());
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool resumed, int64_t first_step)
    : path_(path), file_(std::fopen(path.c_str(), "ae"), std::fclose) {
  if (!file_) raise<FileError>("{} cannot be written: {}", path, std::strerror(errno));
  std::error_code special;
  if (!std::filesystem::is_regular_file(path, special)) return;
  // The lock ends with the process. A file system without locks has another error.
  const auto lock = [&] { return ::flock(fileno(file_.get()), LOCK_EX | LOCK_NB); };
  if (retried(lock) != 0 && errno == EWOULDBLOCK)
    raise<FileError>("{} cannot be written: another run writes it; expected a file for each run",
                     path);
  if (resumed)
    drop_from(path, first_step);
  else
    std::filesystem::resize_file(path, 0);
}

void MetricsFile::write_line(const std::string& line) {
  // Flushed at once, so that a reader of the file sees each step when it ends.
  if (std::fputs(line.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0)
    raise<FileError>("writing {} failed: {}", path_, std::strerror(errno));
}

void MetricsFile::write(const StepRecord& r) {
  write_line(
      fmt::format(R"({{"step":{},"micro_steps":{},"samples":{},"loss":{},"grad_norm":{},"lr":{},)"
                  R"("loss_scale":{},"skipped":{},"tokens_per_s":{},"step_s":{},)"
                  R"("peak_bytes":{},"host_peak_bytes":{},"reduction_groups":{}}})"
                  "\n",
                  r.step, r.micro_steps, r.samples, number(r.loss), number(r.grad_norm),
                  number(r.rate), number(r.loss_scale), r.skipped, number(r.tokens_per_second),
                  number(r.seconds), r.peak_bytes, r.host_peak_bytes, r.reduction_groups));
}

void MetricsFile::write(const FinalRecord& r) {
  const auto bytes = [&](Collective collective) {
    return r.wire[static_cast<size_t>(collective)].bytes;
  };
  write_line(
      fmt::format(R"({{"final":true,"steps":{},"skipped":{},"param_hash":"{}","train_score":{},)"
                  R"("test_score":{},"wire_bytes":{{"all_gather":{},"reduce_scatter":{},)"
                  R"("all_reduce":{},"broadcast":{},"other":{}}},"reduction_groups":{}}})"
                  "\n",
                  r.steps, r.skipped, r.param_hash, score(r.train_score), score(r.test_score),
                  bytes(Collective::all_gather), bytes(Collective::reduce_scatter),
                  bytes(Collective::all_reduce), bytes(Collective::broadcast),
                  bytes(Collective::all_to_all) + bytes(Collective::scatter), r.reduction_groups));
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
  const auto note_if = [&](bool condition, StepPoint at) {
    if (condition) rows.note(at);
  };
  switch (moment) {
    case TrainerMoment::step_begins:
      return rows.begin_step(batch.step);
    case TrainerMoment::batch_ready:
      return note_if(batch.index == 0, StepPoint::before_forward);
    case TrainerMoment::forward_done:
      return note_if(batch.last, StepPoint::after_forward);
    case TrainerMoment::backward_begins:
      return note_if(batch.last, StepPoint::before_backward);
    case TrainerMoment::backward_done:
      return note_if(batch.last, StepPoint::after_backward);
    case TrainerMoment::gradients_ready:
      return rows.note(StepPoint::before_step);
    case TrainerMoment::optimizer_begins:
      return;
    case TrainerMoment::step_done:
      return rows.note(StepPoint::after_step);
  }
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
