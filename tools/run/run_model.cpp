#include "tools/run/rank.h"

#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/models/gpt/score.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using models::Split;

models::ForwardPosition place_of(const Run& run, const zero::MicroBatch& batch) {
  return {.seed = run.options.seed, .step = batch.step, .first_sample = batch.first_sample};
}

class DecoderRun final : public RunModel {
 public:
  DecoderRun(const Run& run, ParameterStore& store, const Mesh& mesh, const Device& device)
      : run_(run),
        device_(device),
        model_(store, run.options.model,
               models::part_of(mesh, run.options.model, run.options.engine.compute,
                               run.options.axes.sequence_parallel,
                               static_cast<int>(run.options.axes.reduction_groups)),
               lora_of(run.options.lora)) {}

  std::vector<Tensor> batch(const zero::MicroBatch& batch, const SampleRange&) override {
    const models::Batch data =
        run_.dataset->batch(Split::train, batch.first_sample, batch.samples, device_);
    if (!data.starts) return {data.ids, data.targets};
    return {data.ids, data.targets, data.starts, data.positions};
  }
  Var forward(Tape& tape, const zero::MicroBatch& batch) const override {
    models::Documents documents;
    if (batch.tensors.size() > 2)
      documents = {.starts = batch.tensors[2], .positions = batch.tensors[3]};
    return model_.stage(tape, batch.input, batch.tensors[0], batch.tensors[1],
                        place_of(run_, batch), run_.options.activation_checkpoint, documents);
  }
  StageOutput stage_output(int64_t samples) const override { return model_.stage_output(samples); }
  int64_t tokens(const SampleRange& step) const override {
    return step.count * run_.dataset->block_size();
  }
  int64_t targets(const SampleRange& samples) const override {
    return run_.dataset->count_targets(Split::train, samples.first, samples.count);
  }
  double validation_loss(const std::function<Tape()>& make_tape, int64_t batches) const override {
    return models::mean_loss(model_, make_tape, *run_.dataset, Split::validation, device_,
                             run_.options.micro_batch, batches);
  }
  int64_t shown_parameters() const override { return model_.transformer_parameters(); }
  double flops_per_token() const override {
    return models::matmul_flops_per_token(run_.options.model, run_.options.lora.rank > 0);
  }
  LayerRange layers() const override {
    return {model_.part().first_layer, model_.part().end_layer};
  }
  const models::GPT& decoder() const override { return model_; }

 private:
  const Run& run_;
  const Device device_;
  const models::GPT model_;
};

class EncoderDecoderRun final : public RunModel {
 public:
  EncoderDecoderRun(const Run& run, ParameterStore& store, const Mesh& mesh, const Device& device)
      : run_(run),
        data_(*run.pairs),
        store_(store),
        device_(device),
        model_(store, seq2seq_model(run.options.seq2seq).config,
               {mesh.tensor, run.options.axes.sequence_parallel}) {
    if (run.options.axes.reduction_groups > 1)
      raise<Unsupported>(
          "--reduction-groups: expected a decoder with it, got an encoder-decoder and {} groups",
          run.options.axes.reduction_groups);
  }

  // All ranks pad to the longest pair of the step, so their batches have one shape and the bits do
  // not depend on the number of ranks.
  std::vector<Tensor> batch(const zero::MicroBatch& batch, const SampleRange& step) override {
    if (step != step_) {
      step_ = step;
      lengths_ = lengths_of(step);
    }
    const models::Seq2SeqBatch pairs =
        data_.padded(Split::train, batch.first_sample, batch.samples, lengths_, device_);
    return {pairs.source, pairs.source_lengths, pairs.labels};
  }
  Var forward(Tape& tape, const zero::MicroBatch& batch) const override {
    return model_.loss(tape,
                       {.source = batch.tensors[0],
                        .source_lengths = batch.tensors[1],
                        .labels = batch.tensors[2]},
                       place_of(run_, batch),
                       {.checkpointing = run_.options.activation_checkpoint,
                        .label_smoothing = run_.options.seq2seq.label_smoothing});
  }
  StageOutput stage_output(int64_t) const override { return {}; }  // there is one stage
  int64_t tokens(const SampleRange& step) const override {
    const PairData::Lengths lengths = lengths_of(step);
    return step.count * (lengths.source + lengths.target);
  }
  int64_t targets(const SampleRange& samples) const override {
    return data_.labels(Split::train, samples.first, samples.count);
  }
  double validation_loss(const std::function<Tape()>& make_tape, int64_t batches) const override {
    return pair_loss(model_, make_tape, data_, device_, run_.options.micro_batch, batches);
  }
  int64_t shown_parameters() const override {
    int64_t parameters = 0;
    for (const auto& parameter : store_.parameters()) parameters += parameter->whole.numel();
    return parameters;
  }
  double flops_per_token() const override { return 0.0; }
  LayerRange layers() const override {
    return {0, model_.config().encoder_layers + model_.config().decoder_layers};
  }
  const models::GPT& decoder() const override {
    throw Unsupported("an encoder-decoder model has no scores and samples of text");
  }

 private:
  // With sequence parallelism the tensor ranks divide the tokens of a row.
  PairData::Lengths lengths_of(const SampleRange& step) const {
    PairData::Lengths lengths = data_.lengths(Split::train, step.first, step.count);
    if (!run_.options.axes.sequence_parallel) return lengths;
    const int64_t ranks = run_.options.axes.tensor;
    for (int64_t* length : {&lengths.source, &lengths.target})
      *length = (*length + ranks - 1) / ranks * ranks;
    return lengths;
  }

  const Run& run_;
  const PairData& data_;
  const ParameterStore& store_;
  const Device device_;
  const models::Seq2Seq model_;
  SampleRange step_;
  PairData::Lengths lengths_;
};

}  // namespace

std::unique_ptr<RunModel> make_run_model(const Run& run, ParameterStore& store, const Mesh& mesh,
                                         const Device& device) {
  if (run.pairs) return std::make_unique<EncoderDecoderRun>(run, store, mesh, device);
  return std::make_unique<DecoderRun>(run, store, mesh, device);
}

}  // namespace zg::tools
