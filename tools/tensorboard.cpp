#include "tools/tensorboard.h"

#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

/// Calls f; an error names the flag.
template <class F>
auto named(const F& f) {
  try {
    return f();
  } catch (const FileError& error) {
    throw FileError(std::string("--tensorboard-dir: ") + error.what());
  }
}

}  // namespace

TensorBoardFile::TensorBoardFile(const std::string& directory)
    : writer_(named([&] { return TensorBoardWriter(directory); })) {}

void TensorBoardFile::write(const Scalars& scalars, const Place& place) {
  TensorBoardEvent events[] = {{place.steps, scalars}, {place.samples, scalars}};
  for (auto& scalar : events[1].scalars) scalar.first += " vs samples";
  named([&] { writer_.write(events); });
}

void TensorBoardFile::write(const StepRecord& record, const Place& place) {
  write(Scalars{{"lm-loss-training/lm loss", record.loss},
                {"learning-rate/learning-rate", record.rate},
                {"batch-size/batch-size", static_cast<double>(record.samples)},
                {"grad-norm/grad-norm", record.grad_norm},
                {"loss-scale/loss-scale", record.loss_scale},
                {"iteration-time/iteration-time", record.seconds}},
        place);
}

void TensorBoardFile::write(const Validation& validation, const Place& place) {
  write(Scalars{{"lm-loss-validation/lm loss validation", validation.loss}}, place);
}

}  // namespace zg::tools
