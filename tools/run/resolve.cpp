#include "tools/run/run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using models::Split;

void check_positions(int64_t positions, const TrainOptions& options, int64_t block_size) {
  if (block_size > positions)
    raise<ConfigError>("--block-size: expected at most the {} positions of {}, got {}", positions,
                       options.from_hf, block_size);
}

std::string note_on_positions(int64_t positions, const TrainOptions& options) {
  return fmt::format("{} has {} positions; the first {} are used", options.from_hf, positions,
                     options.model.block_size);
}

// Two flags may differ from the folder of --from-hf: --dropout and --block-size. A smaller
// --block-size uses the first positions. With ALiBi and rotary positions it may also be larger.
// Returns notes for the user.
std::vector<std::string> adopt_hf(const models::HFModel& folder, TrainOptions& options) {
  const models::GPTConfig& config = folder.config;
  refuse_flags(options.given,
               {"--model-type", "--n-layer", "--n-head", "--n-embd", "--vocab-size", "--tied",
                "--untied", "--position-embedding", "--num-query-groups", "--kv-channels",
                "--ffn-hidden-size", "--sliding-window", "--rotary-base", "--norm-epsilon"},
               options.from_hf + " defines the model; leave the flag out");
  models::GPTConfig& model = options.model;
  if (!options.has("--dropout") && !folder.dropouts.empty())
    raise<Unsupported>(
        "{}/config.json: {} differ, but this version has one dropout rate; try --dropout",
        options.from_hf, folder.dropouts);
  RunSpec from_folder;
  from_folder.model = config;
  if (is_conversations(options.data.source))
    from_folder.model.block_size = std::min(config.block_size, conversation_block_size);
  adopt_model(from_folder, options);
  if (config.position == models::Position::rope && model.block_size > config.block_size)
    return {
        fmt::format("--block-size {}: {} was trained with {} positions, not with the rotary "
                    "positions after them",
                    model.block_size, options.from_hf, config.block_size)};
  if (config.position != models::Position::learned) return {};  // ALiBi takes any length
  check_positions(config.block_size, options, model.block_size);
  if (model.block_size == config.block_size) return {};
  return {note_on_positions(config.block_size, options)};
}

// adopt_hf() for an encoder-decoder. --dropout replaces the folder's dropout and attention_dropout;
// 0 replaces activation_dropout, too.
std::vector<std::string> adopt_hf(const models::HFSeq2Seq& folder, TrainOptions& options) {
  models::Seq2SeqConfig config = folder.config;
  const int64_t positions = config.positions;
  if (options.has("--dropout")) set_dropout(config, options.model.dropout);
  if (options.has("--block-size")) config.positions = options.model.block_size;
  check_positions(positions, options, config.positions);
  options.seq2seq.config = models::hf_json(config);
  options.seq2seq.generation =
      models::hf_generation_json(config, folder.generation, folder.generation_json);
  if (config.positions == positions) return {};
  return {note_on_positions(positions, options)};
}

zero::BatchSize batch_size_of(const BatchOptions& batch, int64_t ranks, int64_t default_micro) {
  zero::BatchRequest request = {
      .micro = batch.micro, .accumulation = batch.accumulation, .train = batch.train};
  if (!batch.place.empty()) {
    request.place = batch.place;
  } else {
    request.names = {
        .micro = "--batch-size", .accumulation = "--grad-accum", .train = "--train-batch-size"};
    request.place = request.names.train + ": ";
    if (!request.train && !request.micro) request.micro = default_micro;
  }
  return zero::solve_batch_size(request, ranks);
}

bool trains_on_conversations(const TrainOptions& options) {
  return !is_seq2seq(options) && is_conversations(options.data.source);
}

RunSpec spec_of(const TrainOptions& options, const models::Dataset& dataset) {
  const bool on_conversations = trains_on_conversations(options);
  // Sequences of conversations are long.
  const int64_t default_micro = on_conversations ? 8 : zero::default_micro_batch;
  const zero::BatchSize size = batch_size_of(options.batch, options.data_axis(), default_micro);
  check_rampup(options.rampup, size);
  RunSpec settings = options;
  settings.model = options.seq2seq.config.empty() ? model_config(options, dataset)
                                                  : sizes_of(seq2seq_model(options.seq2seq).config);
  settings.characters = options.data.tokenizer.empty() ? characters_of(dataset) : "";
  settings.micro_batch = size.micro;
  settings.accumulation = size.accumulation;
  settings.data_ranks = options.data_axis();
  if (!options.is_set("--loss-mean") && on_conversations) settings.loss_mean = LossMean::token;
  if (settings.lora.rank > 0 && settings.lora.targets.empty())
    settings.lora.targets = join(models::peft_targets(settings.model.family), ",");
  settings.engine.seed = options.seed;
  zero::fill_buckets(options.buckets, settings.model.width, settings.engine);
  zero::validate(settings.engine);
  return settings;
}

// Applies --limit-train-batches: sets the epochs to the fraction that has as many samples as the
// batches, of the current size. Returns the samples of an epoch; 0: the run's length is not given
// in epochs.
double limit_epochs(TrainOptions& options, const models::Dataset& dataset, RunSpec& settings) {
  const auto all = static_cast<double>(dataset.epoch_samples(Split::train));
  if (!options.has("--limit-train-batches")) return options.epochs > 0.0 ? all : 0.0;
  const EpochLimit& limit = options.epoch_limit;
  const auto batch = static_cast<double>(settings.micro_batch * settings.data_ranks);
  const double batches = limit.batches > 0
                             ? std::min(static_cast<double>(limit.batches), std::floor(all / batch))
                             : std::floor(limit.share * std::floor(all / batch));
  if (batches < 1.0 && !options.only_planned)  // a plan has no epochs to end
    raise<ConfigError>(
        "--limit-train-batches: expected a limit that leaves a batch or more, got none of the {:g} "
        "batches of {:g} that the {:g} samples of an epoch make; try a larger limit or a smaller "
        "--batch-size",
        std::floor(all / batch), batch, all);
  const double epochs = options.has("--epochs") ? options.epochs : 1.0;
  options.epochs = settings.epochs = epochs * batches * batch / all;
  return batches * batch;
}

// A run of epochs ends after the last whole step. Returns a note if that leaves out a tenth of the
// conversations or more, or if a step repeats some; otherwise "".
std::string dropped_sequences(const TrainOptions& options, const RunSpec& settings,
                              const models::Dataset& dataset) {
  if (options.epochs <= 0.0 || !trains_on_conversations(options)) return "";
  const int64_t samples = dataset.epoch_samples(Split::train), batch = settings.samples_per_step();
  const double all = options.epochs * static_cast<double>(samples);
  const double used = std::floor(all / static_cast<double>(batch)) * static_cast<double>(batch);
  if (used >= 0.9 * all) return "";
  if (used == 0.0)
    return fmt::format(
        "{:g} epochs have {:g} sequences, fewer than the {} of a step, so it repeats some; try a "
        "smaller --batch-size",
        options.epochs, all, batch);
  return fmt::format(
      "steps of {} sequences use only {:g} of the {:g} sequences of {:g} epochs; a smaller "
      "--batch-size uses more",
      batch, used, all, options.epochs);
}

int64_t total_steps(const TrainOptions& options, const models::Dataset& dataset,
                    const RunSpec& settings, const Progress& done) {
  const int64_t whole = settings.samples_per_step();
  double samples = static_cast<double>(options.train_samples);
  // Tolerance for a fraction of an epoch that is a whole number of steps.
  constexpr double rounding = 1e-9;
  if (options.epochs > 0.0)
    samples = options.epochs * static_cast<double>(dataset.epoch_samples(Split::train)) +
              rounding * static_cast<double>(whole);
  if (samples <= 0.0) return options.steps;
  const Progress end = advanced(
      settings.rampup, whole, done,
      {.steps = std::numeric_limits<int64_t>::max(), .samples = static_cast<int64_t>(samples)});
  if (options.train_samples > 0 && end.steps == 0)
    raise<ConfigError>(
        "--train-samples: expected at least the {} samples of the first step, got {}",
        settings.rampup.batch_at(0, whole), options.train_samples);
  return std::max<int64_t>(1, end.steps);
}

// The end of the schedule and of its warmup, which follow from the run's steps.
void resolve_schedule_end(const TrainOptions& options, RunSpec& spec) {
  zero::ScheduleOptions& schedule = spec.schedule;
  if (zero::decays(schedule.kind) && schedule.total_num_steps == 0)
    schedule.total_num_steps = std::max<int64_t>(1, spec.steps);
  if (options.warmup_ratio > 0.0)  // as get_warmup_steps() of transformers
    schedule.warmup_num_steps =
        std::max<int64_t>(1, std::ceil(static_cast<double>(spec.steps) * options.warmup_ratio));
  zero::validate(schedule);
}

}  // namespace

std::vector<std::string> resolve_options(TrainOptions& options, const Facts& facts) {
  if (!options.kernels.empty() && !options.trace.empty())
    throw ConfigError(
        "--kernels: a trace waits for each kernel, which changes the count; expected one of "
        "--kernels and --trace, got both");
  options.device_flags.device.count_launches = !options.kernels.empty();
  if (!facts.saved) resolve_offload(options);  // the stage of a checkpoint is known below
  resolve_precision(options);
  if (facts.saved) {
    adopt(*facts.saved, options);
    if (options.has("--dropout") && !options.seq2seq.config.empty())
      set_dropout(options.seq2seq, options.model.dropout);
  }
  std::vector<std::string> notes;
  if (facts.decoder) notes = adopt_hf(*facts.decoder, options);
  if (facts.seq2seq) notes = adopt_hf(*facts.seq2seq, options);
  check_seq2seq_flags(options, !options.from_hf.empty() ? options.from_hf : facts.resumed);
  resolve_lora(options, facts.adapter);
  if (options.finetunes && is_seq2seq(options))
    throw ConfigError(
        "finetune: expected a decoder, got an encoder-decoder model; try zerograd train with "
        "pairs");
  resolve_schedule(options);
  resolve_offload(options);
  return notes;
}

ResolvedRun resolve_run(TrainOptions& options, const Facts& facts, const models::Dataset& dataset) {
  ResolvedRun run{.spec = spec_of(options, dataset)};
  RunSpec& spec = run.spec;
  const Progress done{.steps = facts.steps_done, .samples = facts.saved ? facts.saved->samples : 0};
  run.epoch_samples = limit_epochs(options, dataset, spec);
  spec.steps = total_steps(options, dataset, spec, done);
  run.note = dropped_sequences(options, spec, dataset);
  // Without data an epoch has no number of steps.
  const bool counts_epochs = !options.data.source.empty() &&
                             (options.has("--epochs") || options.has("--limit-train-batches"));
  if (options.only_planned && !options.has("--steps") && !counts_epochs)
    spec.steps = done.steps + facts.planned_steps;
  resolve_schedule_end(options, spec);
  check_step_flags(options, facts.resumed, done.steps, spec.steps);
  if (!options.kernels.empty() && spec.steps <= done.steps)
    throw ConfigError("--kernels: the run has no steps left; expected a larger --steps");
  check_optimizer_flags(options.given, spec.engine.update);
  if (facts.saved) {
    spec.samples = facts.saved->samples;
    spec.skipped_samples = facts.saved->skipped_samples;
    spec.loss = facts.saved->loss;
    spec.base = facts.saved->base;
  }
  return run;
}

}  // namespace zg::tools
