#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/commands/subcommands.h"
#include "tools/options/run_checks.h"
#include "tools/options/seq2seq_flags.h"
#include "tools/run/conversations.h"
#include "tools/run/evaluation.h"
#include "tools/run/pairs.h"
#include "tools/run/setup.h"
#include "tools/run/tokenizers.h"
#include "zerograd/models/gpt/multiple_choice.h"
#include "zerograd/models/tokenizer/question_file.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"

namespace zg::tools {
namespace {

// The checkpoint's data options, overridden by flags.
DataOptions data_options(const Settings& saved, const EvalOptions& options) {
  DataOptions data = saved.data;
  if (options.given.count("--data")) data.source = options.data.source;
  if (options.given.count("--val-fraction"))
    data.validation_fraction = options.data.validation_fraction;
  if (options.given.count("--split")) data.split = options.data.split;
  if (options.given.count("--tokenizer")) data.tokenizer = options.data.tokenizer;
  if (options.given.count("--pack")) data.pack = options.data.pack;
  // Only the named data is evaluated: its end, or all of --val-data.
  if (options.given.count("--data") || options.given.count("--val-fraction"))
    data.validation_source.clear();
  if (options.given.count("--val-data")) {
    data.validation_source = options.data.validation_source;
    if (!options.given.count("--data")) data.source = data.validation_source;
  }
  if (options.given.count("--chat-format")) {
    data.chat_format_path = options.data.chat_format_path;
    resolve_chat_format(data);
  }
  if (data.source.empty())
    throw ConfigError(fmt::format(
        "--data: expected sort, adder, PATH.txt, PATH.bin or PATH.jsonl, got nothing: {} "
        "does not name its data",
        options.checkpoint));
  return data;
}

void note_change(const DataOptions& data, const Settings& saved) {
  if (absolute_path(data.source) != absolute_path(saved.data.source)) return;
  const std::string change = change_of(saved.contents, contents_of(data.source), data.source);
  if (!change.empty()) print_line(stderr, "changed: {}", change);
}

// The checkpoint's options of pairs, overridden by flags.
Seq2SeqOptions pair_options(const TrainedModel& trained, const EvalOptions& options) {
  Seq2SeqOptions pairs = trained.saved_model.settings.seq2seq;
  if (options.given.count("--source-prefix")) pairs.source_prefix = options.pairs.source_prefix;
  if (options.given.count("--max-source-length")) pairs.max_source = options.pairs.max_source;
  if (options.given.count("--max-target-length")) pairs.max_target = options.pairs.max_target;
  if (options.given.count("--pad-to-max-length")) pairs.pad_to_max = options.pairs.pad_to_max;
  resolve_lengths(trained.seq2seq->config(), pairs);
  return pairs;
}

// An encoder-decoder: the loss of its validation pairs.
void eval_pairs(const TrainedModel& trained, const EvalOptions& options, const DataOptions& data,
                const std::optional<models::Tokenizer>& tokenizer) {
  for (const char* flag : {"--split", "--block-size", "--score-samples", "--seed", "--val-data",
                           "--chat-format", "--pack"})
    if (options.given.count(flag))
      throw ConfigError(fmt::format(
          "{}: it has no effect on the pairs of an encoder-decoder; leave the flag out", flag));
  const Settings& saved = trained.saved_model.settings;
  const Seq2SeqOptions of_pairs = pair_options(trained, options);
  const auto pairs = read_pair_data({.data = data,
                                     .options = of_pairs,
                                     .config = trained.seq2seq->config(),
                                     .tokenizer = tokenizer ? &*tokenizer : nullptr,
                                     .seed = saved.seed});
  note_change(data, saved);
  print_line(stdout, "val loss {:.4f}",
             pair_loss(
                 *trained.seq2seq, [&] { return trained.engine->inference_tape(); }, *pairs,
                 trained.device, options.batch, options.batches));
}

void check_block_size(const EvalOptions& options, const Settings& saved) {
  if (options.model.block_size > saved.model.block_size)
    throw ConfigError(fmt::format("--block-size: expected at most the model's {} positions, got {}",
                                  saved.model.block_size, options.model.block_size));
}

// Multiple choice questions: how often the likeliest ending is the right one.
void eval_questions(const TrainedModel& trained, const EvalOptions& options) {
  for (const char* flag : {"--data", "--val-fraction", "--val-data", "--split", "--chat-format",
                           "--pack", "--seed", "--eval-batches"})
    if (options.given.count(flag))
      throw ConfigError(
          fmt::format("{}: it has no effect on --multiple-choice; leave the flag out", flag));
  if (!trained.model)
    throw Unsupported(
        "--multiple-choice: it scores the endings of a decoder, and the model is an "
        "encoder-decoder");
  refuse_pair_flags(options.given);
  const Settings& saved = trained.saved_model.settings;
  check_block_size(options, saved);
  DataOptions data = saved.data;
  const bool named = options.given.count("--tokenizer") > 0;
  if (named) data.tokenizer = options.data.tokenizer;
  const auto tokenizer = resolve_tokenizer(data, &trained.saved_model, named);
  if (!tokenizer)
    throw ConfigError(
        fmt::format("--multiple-choice: expected a model with a tokenizer, and {} has none; try "
                    "--tokenizer PATH",
                    options.checkpoint));
  std::vector<models::ChoiceQuestion> questions;
  try {
    questions = models::read_questions(
        options.questions, *tokenizer,
        {.plain = options.plain_questions, .first = end_token(&trained.saved_model, &*tokenizer)});
  } catch (const FileError& error) {
    throw FileError(std::string("--multiple-choice: ") + error.what());
  }
  if (options.given.count("--score-samples")) {
    if (options.score_samples < 1)
      throw ConfigError(
          fmt::format("--score-samples: expected 1 question or more for --multiple-choice, got {}",
                      options.score_samples));
    questions.resize(std::min(questions.size(), static_cast<size_t>(options.score_samples)));
  }
  const int64_t block_size =
      options.model.block_size > 0 ? options.model.block_size : saved.model.block_size;
  const models::ChoiceScores scores =
      models::score_choices(*trained.model, [&] { return trained.engine->inference_tape(); },
                            questions, {.at_once = options.batch, .block_size = block_size});
  if (scores.cut > 0) print_line(stderr, "note: {}", cut_note(scores, block_size));
  print_line(stdout, "{}", choice_line(scores));
}

}  // namespace

int eval(const std::vector<std::string>& arguments) {
  EvalOptions options;
  if (!parse(arguments, options)) return 0;
  check_model_flags(options.given, options.checkpoint);
  const auto trained =
      load_model(options.checkpoint, options.model, options.device_flags, options.adapters);
  if (options.given.count("--multiple-choice")) return eval_questions(*trained, options), 0;
  if (options.plain_questions)
    throw ConfigError("--plain-questions: expected --multiple-choice PATH.jsonl beside it");
  const Settings& saved = trained->saved_model.settings;
  DataOptions data = data_options(saved, options);
  const bool named = options.given.count("--tokenizer") > 0;
  const auto tokenizer = resolve_tokenizer(data, &trained->saved_model, named);
  if (!options.given.count("--data") && !options.given.count("--val-data"))
    check_data_exists(data.validation_source.empty() ? data.source : data.validation_source,
                      trained->saved_model.path,
                      data.validation_source.empty() ? "--data" : "--val-data");
  if (trained->seq2seq) return eval_pairs(*trained, options, data, tokenizer), 0;
  refuse_pair_flags(options.given);
  check_block_size(options, saved);
  const int64_t max_length = saved.model.block_size;
  // A folder's model has more positions than most conversations have tokens.
  const bool is_long = is_conversations(data.source) && is_hf_folder(trained->saved_model.path);
  const int64_t block_size = is_long ? std::min(max_length, conversation_block_size) : max_length;
  const auto dataset = make_dataset(
      data, {.block_size = options.model.block_size > 0 ? options.model.block_size : block_size,
             .seed = options.given.count("--seed") ? options.seed : saved.seed,
             .vocabulary = saved.model.vocabulary,
             .tokenizer = tokenizer ? &*tokenizer : nullptr,
             .end = end_token(&trained->saved_model, tokenizer ? &*tokenizer : nullptr),
             .folder = trained->saved_model.path,
             .validation_only = true});
  for (const std::string& note : notes_of(*dataset))
    if (!note.empty()) print_line(stderr, "note: {}", note);
  check_tokens(trained->saved_model, data, *dataset);
  check_data_flags(options, data.source, *dataset);
  if (named) check_tokenizer(data, *tokenizer, *dataset);
  note_change(data, saved);
  const Evaluation evaluation = {.model = *trained->model,
                                 .make_tape = [&] { return trained->engine->inference_tape(); },
                                 .dataset = *dataset,
                                 .device = trained->device,
                                 .is_sort_task = data.source == "sort"};
  const double loss = evaluation.loss(options.batch, options.batches);
  print_line(stdout, "val loss {:.4f}", loss);
  if (dataset->question_length() == 0) print_line(stdout, "perplexity {:.4f}", std::exp(loss));
  if (dataset->question_length() > 0 && options.score_samples > 0)
    evaluation.scores(options.batch, options.score_samples,
                      [](const std::string& line) { print_line(stdout, "{}", line); });
  return 0;
}

}  // namespace zg::tools
