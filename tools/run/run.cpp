#include "tools/run/run.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "tools/options/lora_flags.h"
#include "tools/options/model_flags.h"
#include "tools/options/run_checks.h"
#include "tools/options/seq2seq_flags.h"
#include "tools/options/train_flags.h"
#include "tools/run/conversations.h"
#include "tools/run/pairs.h"
#include "tools/run/setup.h"
#include "tools/run/tokenizers.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

namespace zg::tools {
namespace {

using models::Split;

enum class Validates : uint8_t { no, yes };

class MetaDataset final : public models::Dataset {
 public:
  MetaDataset(int64_t vocabulary, int64_t block_size, Validates validates)
      : vocabulary_(vocabulary), block_size_(block_size), validates_(validates) {}

  int64_t vocabulary() const override { return vocabulary_; }
  int64_t block_size() const override { return block_size_; }
  int64_t epoch_samples(models::Split split) const override {
    const bool has = split == models::Split::train || validates_ == Validates::yes;
    return has ? int64_t{1} << 40 : 0;
  }
  void sample(models::Split, int64_t, int32_t* ids, int32_t* targets) const override {
    std::fill(ids, ids + block_size_, 0);
    std::fill(targets, targets + block_size_, 0);
  }

 private:
  const int64_t vocabulary_, block_size_;
  const Validates validates_;
};

/// Data for a plan without --data and for an import, which takes no step: an unlimited number of
/// samples that contain only token 0. Vocabulary and block size come from the flags or from the
/// published configuration of the named model. Throws ConfigError when neither gives them.
std::shared_ptr<const models::Dataset> meta_dataset(const TrainOptions& options,
                                                    Validates validates) {
  int64_t vocabulary = options.model.vocabulary, block_size = options.model.block_size;
  check_sizes(options);
  if (!options.is_set("--n-layer")) {
    const models::GPTConfig named = models::GPTConfig::published(options.model_type);
    if (vocabulary == 0) vocabulary = named.vocabulary;
    if (block_size == 0) block_size = named.block_size;
  }
  if (vocabulary == 0 || block_size == 0)
    throw ConfigError(
        "--data: expected sort, adder, PATH.txt or PATH.bin, got nothing; try --data sort, or "
        "--vocab-size and --block-size for a plan without data");
  return std::make_shared<MetaDataset>(vocabulary, block_size, validates);
}

}  // namespace

// Checks before training, not after hours of it, that a file can be written. Removes the empty file
// if it did not exist, so that a run that fails later leaves none.
void check_writable(const char* flag, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (!file)
    throw FileError(fmt::format("{}: {} cannot be written: {}", flag, path, std::strerror(errno)));
  std::fclose(file);
  // A dangling link belongs to the user, for example /dev/stdout when stdout is closed.
  if (!existed && !std::filesystem::is_symlink(path, ignored))
    std::filesystem::remove(path, ignored);
}

namespace {

bool writes_checkpoints(const TrainOptions& options) {
  return !options.only_planned && !options.explain_settings && !options.save.empty() &&
         options.is_first_process();
}

void check_outputs(Run& run) {
  TrainOptions& options = run.options;
  check_paths(paths_of(train_groups(options)));  // of the config and of the checkpoint, too
  if (!options.is_first_process() || options.explain_settings) return;
  check_writable("--trace", options.trace);
  check_writable("--dump-gradients", options.dump_gradients);
  check_writable("--memory-json", options.memory_json);
  check_writable("--kernels", options.kernels);
  if (options.only_planned) return;
  refuse_kill_switch(options.kill_switch);
  if (!writes_checkpoints(options)) return;
  make_directories(options.save);
  if (!run.lock) run.lock = lock_directory(options.save);
  check_own_directory(options.save, run.checkpoint);
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

bool learns_conversations(const TrainOptions& options) {
  return !is_seq2seq(options) && is_conversations(options.data.source);
}

RunSpec settings_of(const TrainOptions& options, const models::Dataset& dataset) {
  constexpr int64_t few_conversations = 8;  // a sequence of them is long
  const bool talks = learns_conversations(options);
  const zero::BatchSize size = batch_size_of(options.batch, options.data_axis(),
                                             talks ? few_conversations : zero::default_micro_batch);
  check_rampup(options.rampup, size);
  RunSpec settings = options;
  settings.model = options.seq2seq.config.empty() ? model_config(options, dataset)
                                                  : sizes_of(seq2seq_model(options.seq2seq).config);
  settings.characters = options.data.tokenizer.empty() ? characters_of(dataset) : "";
  settings.contents = contents_of(options.data.source);
  settings.validation_contents = contents_of(options.data.validation_source);
  settings.micro_batch = size.micro;
  settings.accumulation = size.accumulation;
  settings.data_ranks = options.data_axis();
  if (!options.is_set("--loss-mean") && talks) settings.loss_mean = LossMean::token;
  if (settings.lora.rank > 0 && settings.lora.targets.empty())
    settings.lora.targets = join(models::peft_targets(settings.model.family), ",");
  settings.optimisation.engine.seed = options.seed;
  zero::fill_buckets(options.buckets, settings.model.width, settings.optimisation.engine);
  zero::validate(settings.optimisation.engine);
  return settings;
}

std::shared_ptr<const models::Dataset> dataset_of(const Run& run,
                                                  const models::Tokenizer* tokenizer,
                                                  const SavedModel* saved_model) {
  const TrainOptions& options = run.options;
  if (!options.data.source.empty())
    return make_dataset(options.data,
                        {.block_size = block_size_of(options),
                         .seed = options.seed,
                         .vocabulary = options.model.vocabulary > 0 ? options.model.vocabulary
                                                                    : own_vocabulary(options),
                         .tokenizer = tokenizer,
                         .end = end_token(saved_model, tokenizer),
                         .folder = options.from_hf});
  if (options.only_planned) return meta_dataset(options, Validates::yes);
  if (is_import(options)) return meta_dataset(options, Validates::no);
  throw ConfigError(
      "--data: expected sort, adder, PATH.txt, PATH.bin or PATH.jsonl, got nothing, "
      "and " +
      (run.resumed.empty() ? options.save + " has no checkpoint to resume"
                           : run.resumed + " was made without data; try --data PATH"));
}

// Fills in the run's dataset, the name and checksum of its tokenizer, and the log line about both.
// Returns the tokenizer.
std::optional<models::Tokenizer> open_data(Run& run, std::shared_ptr<const models::Dataset> dataset,
                                           const SavedModel* saved_model,
                                           std::vector<std::string>& notes) {
  TrainOptions& options = run.options;
  DataOptions& data = options.data;
  if (!run.resumed.empty() && !options.given.count("--data"))
    check_data_exists(data.source, run.resumed);
  const bool named = options.given.count("--tokenizer") > 0;
  const bool is_folders = !options.from_hf.empty() && !named;
  std::optional<models::Tokenizer> tokenizer = is_folders
                                                   ? folder_tokenizer(data, *saved_model, notes)
                                                   : resolve_tokenizer(data, saved_model, named);
  if (options.model.vocabulary == 0 && own_vocabulary(options) == 0 && tokenizer)
    options.model.vocabulary = tokenizer->vocabulary();
  run.dataset = dataset ? std::move(dataset)
                        : dataset_of(run, tokenizer ? &*tokenizer : nullptr, saved_model);
  for (const std::string& note : notes_of(*run.dataset)) notes.push_back(note);
  if (saved_model) check_tokens(*saved_model, data, *run.dataset);
  if (is_folders && !tokenizer && run.dataset->is_text())
    notes.push_back(fmt::format(
        "{} does not say what its {} tokens are; the characters of {} are taken for them",
        saved_model->path, run.dataset->vocabulary(), data.source));
  check_data_flags(options, *run.dataset);
  if (tokenizer && !data.source.empty()) {
    if (is_folders && run.dataset->vocabulary() > tokenizer->vocabulary()) {
      notes.push_back(fmt::format("the tokenizer of {} is not kept: {} has tokens from its {} on",
                                  saved_model->path, data.source, tokenizer->vocabulary()));
      tokenizer.reset();
      data.tokenizer.clear();
      data.tokenizer_checksum.clear();
    } else {
      check_tokenizer(data, *tokenizer, *run.dataset);
    }
  }
  run.data_line = description_of(data, *run.dataset, tokenizer);
  return tokenizer;
}

// Applies --limit-train-batches: an epoch with fewer batches counts as a fraction of an epoch.
// Epochs are counted in samples, so the remaining samples use the current batch size. Returns the
// samples of an epoch; 0: the run's length is not given in epochs.
double limit_epochs(TrainOptions& options, const models::Dataset& dataset, RunSpec& settings) {
  const auto all = static_cast<double>(dataset.epoch_samples(Split::train));
  if (!options.given.count("--limit-train-batches")) return options.epochs > 0.0 ? all : 0.0;
  const EpochLimit& limit = options.epoch_limit;
  const auto batch = static_cast<double>(settings.micro_batch * settings.data_ranks);
  const double batches = limit.batches > 0
                             ? std::min(static_cast<double>(limit.batches), std::floor(all / batch))
                             : std::floor(limit.share * std::floor(all / batch));
  const double epochs = options.given.count("--epochs") ? options.epochs : 1.0;
  options.epochs = settings.epochs = epochs * batches * batch / all;
  return batches * batch;
}

// Epochs end with the last whole step. A note if that leaves out a tenth of the conversations or
// more, or repeats them; empty: it does not.
std::string dropped_sequences(const TrainOptions& options, const RunSpec& settings,
                              const models::Dataset& dataset) {
  if (options.epochs <= 0.0 || !learns_conversations(options)) return "";
  const int64_t samples = dataset.epoch_samples(Split::train), batch = settings.samples_per_step();
  const double all = options.epochs * static_cast<double>(samples);
  const double used = std::floor(all / static_cast<double>(batch)) * static_cast<double>(batch);
  if (used >= 0.9 * all) return "";
  if (used == 0.0)
    return fmt::format(
        "the {:g} sequences of {:g} epochs are fewer than a step's {}, which repeats some; try a "
        "smaller --batch-size",
        all, options.epochs, batch);
  return fmt::format(
      "whole steps of {} take {:g} of the {:g} sequences of {:g} epochs; a smaller --batch-size "
      "takes more of them",
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
    throw ConfigError(
        fmt::format("--train-samples: expected at least the {} samples of the first step, got {}",
                    settings.rampup.batch_at(0, whole), options.train_samples));
  return std::max<int64_t>(1, end.steps);
}

// Skips two steps, in which caches, prefetching and the disk warm up.
StepRange steps_to_trace(int64_t first, int64_t end) {
  constexpr int64_t warm_up = 2, count = 3;
  const int64_t begin = first + std::clamp<int64_t>(end - first - count, 0, warm_up);
  return {begin, std::min(end, begin + count)};
}

std::string trace_path(const TrainOptions& options) {
  return options.trace +
         (options.is_first_process() ? "" : fmt::format(".rank{}", options.process->rank));
}

// The weights that the adapters are trained for: their path, and the hash by which a resumed run
// knows them. A plan reads no values.
void resolve_base(Run& run, const RunSpec* saved) {
  const TrainOptions& options = run.options;
  RunSpec& settings = run.settings;
  if (saved) settings.base = saved->base;
  if (!options.moved_base.empty()) move_base(settings, options.moved_base, run.resumed);
  if (settings.lora.rank == 0) return;
  const auto check_with_base = [&] {
    std::vector<NamedPath> paths = paths_of(train_groups(run.options));
    paths.push_back({"the adapters' base", PathUse::reads, settings.base.path});
    check_paths(paths);
  };
  if (saved) {
    check_with_base();
    if (!options.only_planned) checked_base(settings);
    return;
  }
  settings.base.path = absolute_path(!options.from_hf.empty() ? options.from_hf
                                     : run.initial            ? run.initial->path()
                                                              : options.initial_weights);
  check_with_base();
  if (options.only_planned) return;
  settings.base.hash = zero::weights_hash(base_weights(settings));
}

}  // namespace

bool TracedSteps::write() {
  is_written = true;
  if (trace->is_empty()) {
    print_line(stderr, "trace: {} is not written: none of steps {} to {} was taken", path,
               steps.first, steps.end - 1);
    return false;
  }
  trace->write(path);
  trace->clear();
  return true;
}

Run prepare_run(const TrainOptions& given, std::shared_ptr<const models::Dataset> dataset,
                std::shared_ptr<zero::DirectoryLock> lock) {
  Run run{.options = given, .lock = std::move(lock)};
  TrainOptions& options = run.options;
  resolve_auto_resume(options);
  if (!options.only_planned) require_device(options.device_flags.type);
  if (!options.kernels.empty() && options.device_flags.type == Device::Type::hpu)
    throw ConfigError(
        "--kernels: launches are counted on cpu and cuda, got --device hpu; try --device cuda, "
        "which plan takes without a GPU");
  if (!options.kernels.empty() && !options.trace.empty())
    throw ConfigError(
        "--kernels: a trace waits for each kernel, which changes the count; expected one of "
        "--kernels and --trace, got both");
  options.device_flags.device.count_launches = !options.kernels.empty();
  if (options.resume.empty())
    resolve_offload(options);  // when resuming, the stage is not known yet
  resolve_precision(options);
  std::optional<RunSpec> saved;
  Progress done;
  if (options.resume != "auto" && is_hf_folder(options.resume))
    throw ConfigError(fmt::format("--resume: {} is a Hugging Face folder; try --from-hf {}",
                                  options.resume, options.resume));
  // Lock before choosing the checkpoint, so that no other run saves or removes checkpoints after
  // the choice.
  if (!run.lock && writes_checkpoints(options) && is_directory(options.save))
    run.lock = lock_directory(options.save);
  if (!options.resume.empty()) run.checkpoint = checkpoint_to_resume(options.resume, options.save);
  if (run.checkpoint) {
    const zero::CheckpointInfo& info = run.checkpoint->manifest().info;
    run.resumed = run.checkpoint->path();
    run.steps_done = info.steps;
    saved = settings_of(*run.checkpoint);
    done = {.steps = info.steps, .samples = saved->samples};
    adopt(*saved, options);
    if (options.given.count("--dropout") && !options.seq2seq.config.empty())
      set_dropout(options.seq2seq, options.model.dropout);
  }
  resolve_chat_format(options.data, options.from_hf, saved ? saved->data.chat_format : "");
  std::vector<std::string> notes;
  std::optional<SavedModel> saved_model;  // settings of the weights that the run starts from
  if (saved) saved_model = {*saved, run.resumed, run.checkpoint};
  if (!options.from_hf.empty()) {
    notes = is_seq2seq_folder(options.from_hf)
                ? adopt_hf(models::Seq2SeqFolder(options.from_hf), options)
                : adopt_hf(open_hf_folder(options.from_hf), options);
    saved_model = {*settings_in(options.from_hf), options.from_hf};
  }
  check_seq2seq_flags(options, saved_model ? saved_model->path : "");
  resolve_lora(options);
  if (options.finetunes && is_seq2seq(options))
    throw ConfigError(
        "finetune: it trains decoders, and this is an encoder-decoder model; try zerograd train, "
        "with pairs");
  resolve_schedule(options);
  resolve_offload(options);
  if (options.device_flags.device.threads == 0)
    options.device_flags.device.threads = options.process
                                              ? threads_per_process(options.process->local_size)
                                              : threads_per_rank(static_cast<int>(options.ranks));
  const SavedModel* const origin = saved_model ? &*saved_model : nullptr;
  const auto tokenizer = is_seq2seq(options) ? open_pairs(run, dataset, origin)
                                             : open_data(run, std::move(dataset), origin, notes);
  run.settings = settings_of(options, *run.dataset);
  if (const std::string& path = options.matmul_algorithms; !path.empty()) {
    run.algorithms = std::make_shared<const MatmulAlgorithms>(MatmulAlgorithms::read(path));
    run.settings.matmul_checksum = run.algorithms->checksum();
  }
  if (saved_model) {
    run.settings.special_tokens = saved_model->settings.special_tokens;
    run.settings.generation_config = saved_model->settings.generation_config;
  }
  if (tokenizer) keep_tokenizer(*tokenizer, run.settings);
  require_dtype(options.device_flags.type, run.settings.optimisation.engine.compute, "--precision");
  if (const std::string& path = options.initial_weights; !path.empty()) {
    if (is_hf_folder(path))
      throw ConfigError(
          fmt::format("--init: {} is a Hugging Face folder; try --from-hf {}", path, path));
    if (is_directory(path)) run.initial = zero::open_checkpoint(path);
    notes.push_back(check_initial_weights(path, run.initial, run.settings));
  }
  if (!options.from_hf.empty()) hf_weights(options.from_hf, run.settings, &notes.emplace_back());
  if (options.is_first_process())
    for (const std::string& note : notes)
      if (!note.empty()) print_line(stderr, "note: {}", note);
  run.epoch_samples = limit_epochs(options, *run.dataset, run.settings);
  run.steps = total_steps(options, *run.dataset, run.settings, done);
  if (const std::string note = dropped_sequences(options, run.settings, *run.dataset);
      !note.empty() && options.is_first_process())
    print_line(stderr, "note: {}", note);
  // Without data an epoch has no number of steps.
  const bool counts_epochs =
      !options.data.source.empty() &&
      (options.given.count("--epochs") || options.given.count("--limit-train-batches"));
  if (options.only_planned && !options.given.count("--steps") && !counts_epochs)
    run.steps = done.steps + given.steps;
  zero::ScheduleOptions& schedule = run.settings.optimisation.schedule;
  if (zero::decays(schedule.kind) && schedule.total_num_steps == 0)
    schedule.total_num_steps = std::max<int64_t>(1, run.steps);
  if (options.warmup_ratio > 0.0)  // as get_warmup_steps() of transformers
    schedule.warmup_num_steps =
        std::max<int64_t>(1, std::ceil(static_cast<double>(run.steps) * options.warmup_ratio));
  zero::validate(schedule);
  check_step_flags(options, run.resumed, done.steps, run.steps);
  if (!options.kernels.empty() && run.steps <= run.steps_done)
    throw ConfigError("--kernels: the run takes no step; expected --steps of 1 or more left");
  check_optimizer_flags(options.given, run.settings.optimisation.engine.update);
  run.settings.steps = run.steps;
  if (!options.trace.empty()) {
    const StepRange steps = options.trace_steps.value_or(steps_to_trace(done.steps, run.steps));
    run.traced = std::make_shared<TracedSteps>(TracedSteps{trace_path(options), steps});
  }
  check_outputs(run);
  if (saved) {
    run.changes = check_resumed(*saved, run.settings);
    run.settings.samples = saved->samples;
    run.settings.skipped_samples = saved->skipped_samples;
    run.settings.loss = saved->loss;
  }
  resolve_base(run, saved ? &*saved : nullptr);
  return run;
}

}  // namespace zg::tools
