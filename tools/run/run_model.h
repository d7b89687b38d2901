#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tools/run/run.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/trainer.h"

namespace zg::tools {

/// Samples [first, first + count) of a split.
struct SampleRange {
  int64_t first = 0, count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Layers [first, end) of the model, those of an encoder before those of its decoder.
struct LayerRange {
  int64_t first = 0, end = 0;
};

/// The model of a run on one rank: a decoder, or an encoder-decoder. validation_loss() and sample()
/// are collective at stage 3; `make_tape` makes tapes that record nothing.
class RunModel {
 public:
  virtual ~RunModel() = default;
  /// The tensors of a micro-batch; `step` has the samples of its whole step.
  virtual std::vector<Tensor> batch(const zero::MicroBatch& batch, const SampleRange& step) = 0;
  virtual Var forward(Tape& tape, const zero::MicroBatch& batch) const = 0;
  virtual StageOutput stage_output(int64_t samples) const = 0;
  virtual int64_t tokens(const SampleRange& step) const = 0;  ///< of a step, with padding
  /// The targets of training samples that are not ignored.
  virtual int64_t targets(const SampleRange& samples) const = 0;
  /// The mean over `batches` micro-batches of the validation split; 0: the whole split.
  virtual double validation_loss(const std::function<Tape()>& make_tape, int64_t batches) const = 0;
  virtual int64_t shown_parameters() const = 0;  ///< the number that train prints
  /// Floating-point operations of matrix products for a token; 0: unknown.
  virtual double flops_per_token() const = 0;
  virtual LayerRange layers() const = 0;  ///< of this rank's pipeline stage
  /// Throws Unsupported for an encoder-decoder, which has no scores and samples of text.
  virtual const models::GPT& decoder() const = 0;
};

/// `run`, `store` and `mesh` must outlive the model.
std::unique_ptr<RunModel> make_run_model(const Run& run, ParameterStore& store, const Mesh& mesh,
                                         const Device& device);

}  // namespace zg::tools
