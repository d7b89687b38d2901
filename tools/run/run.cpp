#include "tools/run/run.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <span>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

namespace zg::tools {

// Checks before training, not after hours of it, that a file can be written. Removes the empty
// file if it did not exist, so that a run that fails later leaves none.
void check_writable(const char* flag, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (!file)
    raise<FileError>(
        "{}: {} cannot be written: {}; expected a file in a folder that exists and is writable; "
        "try another path",
        flag, path, std::strerror(errno));
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
  check_paths(paths_of(train_groups(options)));  // also paths of the config and the checkpoint
  if (!options.is_first_process() || options.explain_settings) return;
  check_writable("--trace", options.trace);
  check_writable("--report", options.report);
  if (!options.only_planned) check_writable("--audit", options.audit.path);
  check_writable("--dump-gradients", options.dump_gradients);
  check_writable("--memory-json", options.memory_json);
  check_writable("--kernels", options.kernels);
  if (options.only_planned) return;
  refuse_kill_switch(options.kill_switch);
  if (!writes_checkpoints(options)) return;
  try {
    make_directories(options.save);
  } catch (const FileError& error) {
    raise<FileError>("--save: {}", error.what());
  }
  if (!run.lock) run.lock = lock_directory(options.save);
  check_own_directory(options.save, run.checkpoint);
}

// Skips two steps, in which caches, prefetching and the disk warm up.
StepRange steps_to_trace(int64_t first, int64_t end) {
  constexpr int64_t warm_up = 2, count = 3;
  const int64_t begin = first + std::clamp<int64_t>(end - first - count, 0, warm_up);
  return {begin, std::min(end, begin + count)};
}

// Sets the path of the adapters' base and its hash. A resumed run compares the base with the hash.
// A plan reads no values, so it does neither.
void resolve_base(Run& run, bool is_resumed) {
  TrainOptions& options = run.options;
  if (!options.moved_base.empty()) move_base(options, options.moved_base, run.resumed);
  if (options.lora.rank == 0) return;
  const auto check_with_base = [&] {
    std::vector<NamedPath> paths = paths_of(train_groups(run.options));
    paths.push_back({"the adapters' base", PathUse::reads, options.base.path});
    check_paths(paths);
  };
  if (is_resumed) {
    check_with_base();
    if (!options.only_planned) checked_base(options);
    return;
  }
  options.base.path = absolute_path(!options.from_hf.empty() ? options.from_hf
                                    : run.initial            ? run.initial->path()
                                                             : options.initial_weights);
  check_with_base();
  if (options.only_planned) return;
  options.base.hash = zero::weights_hash(base_weights(options));
}

}  // namespace

bool TracedSteps::write() {
  is_written = true;
  if (path.empty()) {
    trace->clear();
    return false;
  }
  if (trace->is_empty()) {
    print_line(stderr, "trace: {} is not written: none of steps {} to {} was taken", path,
               steps.first, steps.end - 1);
    return false;
  }
  trace->write(path);
  trace->clear();
  return true;
}

namespace {

/// Data for a plan without --data and for an import, which takes no step. Vocabulary and block size
/// come from the flags or from the published configuration of the named model. Throws ConfigError
/// when neither gives them.
std::shared_ptr<const models::Dataset> no_data(const TrainOptions& options) {
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
  return random_tokens(vocabulary, block_size, /*validates=*/options.only_planned);
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
  if (options.only_planned || is_import(options)) return no_data(options);
  raise<ConfigError>(
      "--data: expected sort, adder, PATH.txt, PATH.bin or PATH.jsonl, got nothing, and {}",
      run.resumed.empty() ? options.save + " has no checkpoint to resume"
                          : run.resumed + " was made without data; try --data PATH");
}

// The pairs of an encoder-decoder. Completes its model and lengths.
std::shared_ptr<const PairData> pairs_of(Run& run,
                                         const std::shared_ptr<const models::Dataset>& dataset,
                                         const models::Tokenizer* tokenizer) {
  TrainOptions& options = run.options;
  if (options.seq2seq.config.empty()) {
    const std::optional<models::Seq2SeqFamily> family = seq2seq_family(options.model_type);
    std::optional<models::Seq2SeqTokens> tokens;
    if (tokenizer)
      tokens = seq2seq_tokens(
          family ? *family : models::Seq2SeqConfig::preset(options.model_type).family, *tokenizer,
          options.data.tokenizer);
    options.seq2seq.config =
        models::hf_json(fresh_seq2seq(options, tokenizer ? tokenizer->vocabulary() : 0, tokens));
  }
  const models::Seq2SeqConfig config = seq2seq_model(options.seq2seq).config;
  resolve_lengths(config, options.seq2seq);
  if (const auto given = std::dynamic_pointer_cast<const PairData>(dataset)) return given;
  if (dataset) throw Unsupported("--model-type: an encoder-decoder model trains only on pairs");
  if (!options.data.source.empty())
    return read_pair_data({.data = options.data,
                           .options = options.seq2seq,
                           .config = config,
                           .tokenizer = tokenizer,
                           .seed = options.seed});
  if (options.only_planned || is_import(options))
    return std::make_shared<const PairData>(padding_of(options.seq2seq), config,
                                            options.only_planned);
  raise<ConfigError>("--data: expected pairs PATH.jsonl, got nothing{}",
                     run.resumed.empty() ? "" : "; " + run.resumed + " was made without data");
}

// Fills in the run's dataset, the name and checksum of its tokenizer, and the log line about both.
// Returns the tokenizer.
std::optional<models::Tokenizer> open_data(Run& run, std::shared_ptr<const models::Dataset> dataset,
                                           const SavedModel* saved_model,
                                           std::vector<std::string>& notes) {
  TrainOptions& options = run.options;
  DataOptions& data = options.data;
  if (!run.resumed.empty() && !options.has("--data")) check_data_exists(data.source, run.resumed);
  const bool named = options.has("--tokenizer"), learns_pairs = is_seq2seq(options);
  const bool is_folders = !options.from_hf.empty() && !named;
  if (is_folders) data.tokenizer = saved_model->settings.data.tokenizer;
  std::optional<models::Tokenizer> tokenizer = is_folders && !learns_pairs
                                                   ? folder_tokenizer(data, *saved_model, notes)
                                                   : resolve_tokenizer(data, saved_model, named);
  if (learns_pairs) {
    run.dataset = run.pairs = pairs_of(run, dataset, tokenizer ? &*tokenizer : nullptr);
    check_data_flags(options, *run.dataset);
    run.data_line = description_of(data, *run.dataset, tokenizer);
    return tokenizer;
  }
  if (options.model.vocabulary == 0 && own_vocabulary(options) == 0 && tokenizer)
    options.model.vocabulary = tokenizer->vocabulary();
  run.dataset = dataset ? std::move(dataset)
                        : dataset_of(run, tokenizer ? &*tokenizer : nullptr, saved_model);
  for (const std::string& note : notes_of(*run.dataset)) notes.push_back(note);
  if (saved_model) check_tokens(*saved_model, data, *run.dataset);
  if (is_folders && !tokenizer && run.dataset->is_text())
    notes.push_back(
        fmt::format("{} does not define its {} tokens; the characters of {} are used as tokens",
                    saved_model->path, run.dataset->vocabulary(), data.source));
  check_data_flags(options, *run.dataset);
  if (tokenizer && !data.source.empty()) {
    if (is_folders && run.dataset->vocabulary() > tokenizer->vocabulary()) {
      notes.push_back(fmt::format("the tokenizer of {} is not kept: {} needs more tokens than {}",
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

// Locks --save, chooses the checkpoint, and reads what the run's settings depend on.
Facts read_facts(Run& run, const TrainOptions& given) {
  const TrainOptions& options = run.options;
  if (options.resume != "auto" && is_hf_folder(options.resume))
    raise<ConfigError>("--resume: {} is a Hugging Face folder; try --from-hf {}", options.resume,
                       options.resume);
  // Lock before choosing the checkpoint, so that no other run saves or removes checkpoints after
  // the choice.
  if (!run.lock && writes_checkpoints(options) && is_directory(options.save))
    run.lock = lock_directory(options.save);
  if (!options.resume.empty()) run.checkpoint = checkpoint_to_resume(options.resume, options.save);
  Facts facts{.planned_steps = given.steps};
  if (run.checkpoint) {
    facts.saved = settings_of(*run.checkpoint);
    facts.resumed = run.resumed = run.checkpoint->path();
    facts.steps_done = run.steps_done = run.checkpoint->manifest().info.steps;
  }
  const std::string &folder = options.from_hf, &adapter = options.initial_adapter;
  if (is_seq2seq_folder(folder))
    facts.seq2seq = models::Seq2SeqFolder(folder).model();
  else if (!folder.empty())
    facts.decoder = open_hf_folder(folder).model();
  if (!adapter.empty() && options.resume.empty())
    facts.adapter = lora_options(models::open_peft(adapter).lora);
  return facts;
}

void open_initial_weights(Run& run, std::vector<std::string>& notes) {
  const std::string& path = run.options.initial_weights;
  if (path.empty()) return;
  if (is_hf_folder(path))
    raise<ConfigError>("--init: {} is a Hugging Face folder; try --from-hf {}", path, path);
  if (is_directory(path)) run.initial = zero::open_checkpoint(path);
  notes.push_back(check_initial_weights(path, run.initial, run.options));
}

}  // namespace

Run prepare_run(const TrainOptions& given, std::shared_ptr<const models::Dataset> dataset,
                std::shared_ptr<zero::DirectoryLock> lock) {
  Run run{.options = given, .lock = std::move(lock)};
  TrainOptions& options = run.options;
  resolve_auto_resume(options);
  if (!options.only_planned) require_device(options.device_flags.type);
  const Facts facts = read_facts(run, given);
  std::vector<std::string> notes = resolve_options(options, facts);
  if (uses_disk(options.engine.offload) && !options.only_planned &&
      !is_directory(options.offload.nvme_path))
    throw FileError(
        "--nvme-path: " + options.offload.nvme_path +
        " is not a directory; expected a directory on a disk for data offloaded to nvme");
  resolve_chat_format(options.data, options.from_hf,
                      facts.saved ? facts.saved->data.chat_format : "");
  options.device_flags.device.bits = options.bits;
  if (options.device_flags.device.threads == 0)
    options.device_flags.device.threads = options.process
                                              ? threads_per_process(options.process->local_size)
                                              : threads_per_rank(static_cast<int>(options.ranks));
  std::optional<SavedModel> origin;  // settings of the weights that the run starts from
  if (facts.saved) origin = {*facts.saved, run.resumed, run.checkpoint};
  if (!options.from_hf.empty()) origin = {*settings_in(options.from_hf), options.from_hf};
  const auto tokenizer = open_data(run, std::move(dataset), origin ? &*origin : nullptr, notes);
  ResolvedRun resolved = resolve_run(options, facts, *run.dataset);
  static_cast<RunSpec&>(options) = std::move(resolved.spec);
  run.epoch_samples = resolved.epoch_samples;
  options.contents = contents_of(options.data.source);
  options.validation_contents = contents_of(options.data.validation_source);
  if (const std::string& path = options.matmul_algorithms; !path.empty()) {
    run.algorithms = std::make_shared<const MatmulAlgorithms>(MatmulAlgorithms::read(path));
    options.matmul_checksum = run.algorithms->checksum();
  }
  if (origin) {
    options.special_tokens = origin->settings.special_tokens;
    options.generation_config = origin->settings.generation_config;
  }
  if (tokenizer) keep_tokenizer(*tokenizer, options);
  require_dtype(options.device_flags.type, options.engine.compute, "--precision");
  open_initial_weights(run, notes);
  if (reads_weights(options.from_hf, options.only_planned))
    hf_weights(options.from_hf, options, &notes.emplace_back());
  notes.push_back(std::move(resolved.note));
  for (const std::string& note : notes)
    if (!note.empty() && options.is_first_process()) print_line(stderr, "note: {}", note);
  StepRange steps = options.trace_steps.value_or(steps_to_trace(run.steps_done, options.steps));
  if (!options.trace.empty()) {
    const std::string rank =
        options.is_first_process() ? "" : fmt::format(".rank{}", options.process->rank);
    run.traced = std::make_shared<TracedSteps>(TracedSteps{options.trace + rank, steps});
  } else if (!options.report.empty() && !options.only_planned && options.kernels.empty() &&
             options.injection.fault != FaultInjection::Fault::flip) {
    steps.first = std::max(steps.first, steps.end - 1);
    run.traced = std::make_shared<TracedSteps>(TracedSteps{"", steps});
  }
  check_outputs(run);
  if (options.seq2seq.config.empty() && options.model.layers < options.axes.pipeline)
    raise<ConfigError>("--pipeline-parallel: expected at most the model's {} layers, got {}",
                       options.model.layers, options.axes.pipeline);
  if (facts.saved) run.changes = check_resumed(*facts.saved, options);
  resolve_base(run, facts.saved.has_value());
  return run;
}

namespace {

std::string checksum_of(const std::string& bytes) {
  return checksum(std::as_bytes(std::span(bytes)));
}

// The options that no checkpoint keeps and that must be equal on all ranks, as one text.
std::string path_of(const Run& run) {
  const TrainOptions& options = run.options;
  const zero::Config& engine = run.options.engine;
  return fmt::format(
      "{} {} {} {} {} {:d} {:d} {} {} {} {} {} {} {} {:d} {:d} {:d} {} {} {} {} {} {} {} {} {} "
      "{}{}",
      engine.reduce_bucket_size, engine.allgather_bucket_size, engine.prefetch_bucket_size,
      engine.prefetch_units, engine.param_persistence_threshold, engine.overlap_comm,
      options.activation_checkpoint, options.eval_interval, options.eval_batches,
      options.sample_interval, options.save_interval, options.exit_interval, options.max_bad_steps,
      options.score_samples, options.save.empty(), options.memory_json.empty(),
      options.audit.path.empty() + 2 * options.report.empty(), options.audit.interval,
      options.audit.first_op_step, options.audit.end_op_step,
      options.dump_gradients_step.value_or(-1), engine.offload.parameter, engine.offload.gradient,
      engine.offload.optimizer, engine.offload.activation, options.initial_weights, options.from_hf,
      run.checkpoint && zero::lies_in(run.resumed, options.save) ? " goes on in its folder" : "");
}

bool reads_checkpoint(const Run& run) { return run.checkpoint || run.initial; }

std::string checkpoints_of(const Run& run) {
  std::string names;
  for (const Checkpoint& checkpoint : {run.checkpoint, run.initial})
    names += " " + (checkpoint ? checkpoint->manifest().checksum : "none");
  return names;
}

/// The first rank whose text differs from rank 0's; 0: none.
size_t first_different(const std::vector<std::string>& texts) {
  for (size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) return rank;
  return 0;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> common_values(const Run& run) {
  std::vector<std::pair<std::string, std::string>> values = {
      {"program", checksum_of(read_text("/proc/self/exe"))},
      {"instruction set", run.options.bits == Bits::fast ? name_of(best_isa()) : "any"},
      {"data", run.options.contents.checksum},
      {"base", run.options.base.hash},
      {"settings", checksum_of(to_json(run.options))},
      {"course", checksum_of(path_of(run))}};
  if (reads_checkpoint(run)) values[4].second = values[5].second = "of a checkpoint";
  return values;
}

Run agree_on_checkpoint(Run run, const TrainOptions& given, Communicator& ranks) {
  if (!reads_checkpoint(run)) return run;
  std::vector<int> all(static_cast<size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::unique_ptr<Communicator> group = ranks.group(all, "checkpoint");
  constexpr int max_attempts = 20;
  for (int attempt = 1; first_different(gather_texts(*group, checkpoints_of(run))) > 0; ++attempt) {
    if (attempt == max_attempts)
      raise<ConfigError>(
          "--resume: in {} attempts the ranks found different checkpoints; expected a folder that "
          "every host sees alike; try one step_N of it",
          max_attempts);
    run = prepare_run(given, run.dataset, run.lock);
  }
  if (const size_t rank = first_different(
          gather_texts(*group, to_json(run.options) + path_of(run) + run.options.base.hash)))
    raise<ConfigError>(
        "ranks differ before step 0: the settings of rank {} are not rank 0's; expected the same "
        "command, program and files on every host",
        rank);
  return run;
}

}  // namespace zg::tools
