#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inference.h"
#include "zerograd/models/gpt/multiple_choice.h"
#include "zerograd/models/tokenizer/question_file.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

struct EvalOptions : InferenceOptions {
  std::string questions;  ///< path of multiple choice questions; empty: evaluate on data
  bool plain_questions = false;
  int64_t batch = 64, batches = 0;
};

std::vector<Flag> data_and_heads_flags(EvalOptions& options) {
  std::vector<Flag> flags =
      flags_named({"--data", "--val-data", "--chat-format", "--pack", "--split", "--tokenizer",
                   "--block-size", "--model-type", "--n-head", "--source-prefix",
                   "--max-source-length", "--max-target-length", "--pad-to-max-length"},
                  options.train);
  for (Flag& flag : flags)
    if (flag.names.front() == "--block-size")
      flag.help = "sequence length, if shorter than the model's block size";
    else if (flag.names.front().starts_with("--max-"))
      flag.help = flag.help.substr(0, flag.help.find(" ["));  // the default is the checkpoint's
  flags.push_back(number_flag(
      {"--val-fraction"}, options.train.data.validation_fraction,
      {0.0, 1.0, false, false, "a number from 0 to 1"},
      "share of a text, token file or conversations, at the end, to evaluate;\n1: all of it"));
  flags.push_back(adapter_flag(options.adapters));
  flags.push_back(base_flag(options.adapters));
  return flags;
}

std::vector<Flag> question_flags(EvalOptions& options) {
  return {path_flag({"--multiple-choice"}, "PATH.jsonl", options.questions, PathUse::reads,
                    "questions in HellaSwag's format in place of data: {\"ctx\": ...,\n"
                    "\"endings\": [...], \"label\": 0}"),
          switch_flag({"--plain-questions"}, options.plain_questions,
                      "use ctx and endings unchanged, as llm.c does; by default lines with\n"
                      "ctx_a get the texts of lm-evaluation-harness")};
}

bool parse(const std::vector<std::string>& arguments, EvalOptions& options) {
  const CommandLine line = {
      .usage = "zerograd eval CHECKPOINT [flags]",
      .summary =
          "Prints the validation loss and perplexity (for conversations, of the responses), and "
          "for\n"
          "sort and adder the scores on both splits. For multiple choice questions it prints how\n"
          "often the likeliest ending is the right one.",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"data and model (the checkpoint's own unless given)",
                  data_and_heads_flags(options)},
                 {"multiple choice", question_flags(options)},
                 {"how much",
                  {integer_flag({"--batch-size", "--per-device-eval-batch-size"}, options.batch,
                                "samples at a time", {.minimum = 1}),
                   integer_flag({"--eval-batches", "--eval-iters"}, options.batches,
                                "batches of the validation split; 0: all of it"),
                   integer_flag({"--score-samples"}, options.train.score_samples,
                                "sort and adder: problems of each split to score; with\n"
                                "--multiple-choice: questions, all unless given"),
                   seed_flag(options.train.seed, "seed of the data")}},
                 inference_flags(options),
                 evaluation_script_flags(),
                 unsupported_flags(/*one_rank=*/true)},
      .notes =
          "A safetensors file holds weights only: give --data, and --n-head or --model-type.\n\n"
          "  zerograd eval checkpoints\n"
          "  zerograd eval checkpoints/step_300 --data input.txt --val-fraction 1\n"
          "  zerograd eval runs/chat --val-data held_out.jsonl\n"
          "  zerograd eval GPT2_FOLDER --multiple-choice hellaswag_val.jsonl"};
  return parse_inference(line, arguments, options);
}

// The checkpoint's data options, overridden by flags.
DataOptions data_options(const RunSpec& saved, const EvalOptions& options) {
  DataOptions data = with_flags(saved, options.train).data;
  // Only the named data is evaluated: its end, or all of --val-data.
  if (options.train.has("--data") || options.train.has("--val-fraction"))
    data.validation_source.clear();
  if (options.train.has("--val-data")) {
    data.validation_source = options.train.data.validation_source;
    if (!options.train.has("--data")) data.source = data.validation_source;
  }
  data.chat_format_path = options.train.data.chat_format_path;
  resolve_chat_format(data, is_hf_folder(options.checkpoint) ? options.checkpoint : saved.base.path,
                      saved.data.chat_format);
  if (data.source.empty())
    raise<ConfigError>(
        "--data: expected sort, adder, PATH.txt, PATH.bin or PATH.jsonl, got nothing: {} does not "
        "name its data",
        options.checkpoint);
  return data;
}

void note_change(const DataOptions& data, const RunSpec& saved) {
  if (absolute_path(data.source) != absolute_path(saved.data.source)) return;
  const std::string change = change_of(saved.contents, contents_of(data.source), data.source);
  if (!change.empty()) print_line(stderr, "changed: {}", change);
}

// The checkpoint's options of pairs, overridden by flags.
Seq2SeqOptions pair_options(const RunSpec& saved, const EvalOptions& options) {
  Seq2SeqOptions pairs = with_flags(saved, options.train).seq2seq;
  resolve_lengths(seq2seq_model(saved.seq2seq).config, pairs);
  return pairs;
}

int64_t batches_of(InferenceMode mode, const EvalOptions& options) {
  return mode == InferenceMode::budget ? 1 : options.batches;
}

// An encoder-decoder: the loss of its validation pairs.
int eval_pairs(const SavedModel& saved_model, const EvalOptions& options, const DataOptions& data,
               const std::optional<models::Tokenizer>& tokenizer) {
  refuse_flags(options.train.given,
               {"--split", "--block-size", "--score-samples", "--seed", "--val-data",
                "--chat-format", "--pack"},
               "it has no effect on the pairs of an encoder-decoder; leave the flag out");
  const RunSpec& saved = saved_model.settings;
  const Seq2SeqOptions of_pairs = pair_options(saved, options);
  const auto pairs = read_pair_data({.data = data,
                                     .options = of_pairs,
                                     .config = seq2seq_model(saved.seq2seq).config,
                                     .tokenizer = tokenizer ? &*tokenizer : nullptr,
                                     .seed = saved.seed});
  note_change(data, saved);
  return run_inference(saved_model, options, [&](const TrainedModel& trained, InferenceMode mode) {
    const double loss = pair_loss(*trained.model.seq2seq, trained.make_tape(), *pairs,
                                  trained.device, options.batch, batches_of(mode, options));
    if (mode == InferenceMode::run) print_line(stdout, "val loss {:.4f}", loss);
  });
}

void check_block_size(const EvalOptions& options, const RunSpec& saved) {
  if (options.train.model.block_size > saved.model.block_size)
    raise<ConfigError>("--block-size: expected at most the model's {} positions, got {}",
                       saved.model.block_size, options.train.model.block_size);
}

/// Scores of multiple choice questions in one line: "acc 0.5000 (6 of 12, stderr 0.1508), acc_norm
/// ...", as in lm-evaluation-harness. A single question has no stderr.
std::string choice_line(const models::ChoiceScores& scores) {
  const auto text = [](const char* name, const models::ChoiceAccuracy& accuracy) {
    const std::string error =
        accuracy.total > 1 ? fmt::format(", stderr {:.4f}", accuracy.standard_error()) : "";
    return fmt::format("{} {:.4f} ({} of {}{})", name, accuracy.fraction(), accuracy.correct,
                       accuracy.total, error);
  };
  return text("acc", scores.acc) + ", " + text("acc_norm", scores.acc_norm) + ", " +
         text("acc_token", scores.acc_token);
}

/// A note on contexts that lost tokens: scores.cut is above 0.
std::string cut_note(const models::ChoiceScores& scores, int64_t block_size) {
  size_t endings = 0;
  for (const models::ChosenEndings& chosen : scores.questions) endings += chosen.sums.size();
  return fmt::format(
      "the contexts of {} of {} endings are too long for the block size {} and lose their first "
      "tokens",
      scores.cut, endings, block_size);
}

// Multiple choice questions: how often the likeliest ending is the right one.
int eval_questions(const SavedModel& saved_model, const EvalOptions& options) {
  refuse_flags(options.train.given,
               {"--data", "--val-fraction", "--val-data", "--split", "--chat-format", "--pack",
                "--seed", "--eval-batches"},
               "it has no effect on --multiple-choice; leave the flag out");
  const RunSpec& saved = saved_model.settings;
  if (!saved.seq2seq.config.empty())
    throw Unsupported(
        "--multiple-choice: it scores the endings of a decoder, and the model is an "
        "encoder-decoder");
  refuse_pair_flags(options.train.given);
  check_block_size(options, saved);
  DataOptions data = saved.data;
  const bool named = options.train.has("--tokenizer");
  if (named) data.tokenizer = options.train.data.tokenizer;
  const auto tokenizer = resolve_tokenizer(data, &saved_model, named);
  if (!tokenizer)
    raise<ConfigError>(
        "--multiple-choice: expected a model with a tokenizer, and {} has none; try --tokenizer "
        "PATH",
        options.checkpoint);
  std::vector<models::ChoiceQuestion> questions;
  try {
    questions = models::read_questions(
        options.questions, *tokenizer,
        {.plain = options.plain_questions, .first = end_token(&saved_model, &*tokenizer)});
  } catch (const FileError& error) {
    raise<FileError>("--multiple-choice: {}", error.what());
  }
  if (options.train.has("--score-samples")) {
    if (options.train.score_samples < 1)
      raise<ConfigError>(
          "--score-samples: expected 1 question or more for --multiple-choice, got {}",
          options.train.score_samples);
    questions.resize(std::min(questions.size(), static_cast<size_t>(options.train.score_samples)));
  }
  const int64_t block_size =
      options.train.model.block_size > 0 ? options.train.model.block_size : saved.model.block_size;
  // The question of the longest text takes the most memory.
  const auto tokens_of = [](const models::ChoiceQuestion& question) {
    size_t tokens = 0;
    for (const models::Choice& choice : question.choices)
      tokens = std::max(tokens, choice.tokens.size());
    return tokens;
  };
  const auto longest = std::ranges::max_element(
      questions, [&](const auto& a, const auto& b) { return tokens_of(a) < tokens_of(b); });
  return run_inference(saved_model, options, [&](const TrainedModel& trained, InferenceMode mode) {
    const bool whole = mode != InferenceMode::budget || questions.empty();
    const models::ChoiceScores scores = models::score_choices(
        *trained.model.decoder, trained.make_tape(), whole ? questions : std::vector{*longest},
        {.at_once = options.batch, .block_size = block_size});
    if (mode != InferenceMode::run) return;
    if (scores.cut > 0) print_line(stderr, "note: {}", cut_note(scores, block_size));
    print_line(stdout, "{}", choice_line(scores));
  });
}

void print_evaluation(const Evaluation& evaluation, const EvalOptions& options,
                      InferenceMode mode) {
  const bool prints = mode == InferenceMode::run;
  const double loss = evaluation.loss(options.batch, batches_of(mode, options));
  const bool asks = evaluation.dataset.question_length() > 0;
  if (prints) print_line(stdout, "val loss {:.4f}", loss);
  if (prints && !asks) print_line(stdout, "perplexity {:.4f}", std::exp(loss));
  if (!asks || options.train.score_samples == 0) return;
  if (mode == InferenceMode::budget)
    return evaluation.plan_scores(options.batch, options.train.score_samples);
  evaluation.scores(options.batch, options.train.score_samples, [&](const std::string& line) {
    if (prints) print_line(stdout, "{}", line);
  });
}

}  // namespace

int eval(const std::vector<std::string>& arguments, bool only_planned) {
  EvalOptions options;
  if (!parse(arguments, options)) return 0;
  options.only_planned = only_planned;
  const SavedModel saved_model = open_for_inference(options);
  if (options.train.has("--multiple-choice")) return eval_questions(saved_model, options);
  if (options.plain_questions)
    throw ConfigError("--plain-questions: expected --multiple-choice PATH.jsonl beside it");
  const RunSpec& saved = saved_model.settings;
  DataOptions data = data_options(saved, options);
  const bool named = options.train.has("--tokenizer");
  const auto tokenizer = resolve_tokenizer(data, &saved_model, named);
  if (!options.train.has("--data") && !options.train.has("--val-data"))
    check_data_exists(data.validation_source.empty() ? data.source : data.validation_source,
                      saved_model.path, data.validation_source.empty() ? "--data" : "--val-data");
  if (!saved.seq2seq.config.empty()) return eval_pairs(saved_model, options, data, tokenizer);
  refuse_pair_flags(options.train.given);
  check_block_size(options, saved);
  const int64_t max_length = saved.model.block_size;
  // A folder's model has more positions than most conversations have tokens.
  const bool is_long = is_conversations(data.source) && is_hf_folder(saved_model.path);
  const int64_t block_size = is_long ? std::min(max_length, conversation_block_size) : max_length;
  const auto dataset = make_dataset(
      data, {.block_size =
                 options.train.model.block_size > 0 ? options.train.model.block_size : block_size,
             .seed = options.train.has("--seed") ? options.train.seed : saved.seed,
             .vocabulary = saved.model.vocabulary,
             .tokenizer = tokenizer ? &*tokenizer : nullptr,
             .end = end_token(&saved_model, tokenizer ? &*tokenizer : nullptr),
             .folder = saved_model.path,
             .validation_only = true});
  for (const std::string& note : notes_of(*dataset))
    if (!note.empty()) print_line(stderr, "note: {}", note);
  check_tokens(saved_model, data, *dataset);
  check_split_flags(options.train.given, data.source, options.train.score_samples, *dataset);
  if (named) check_tokenizer(data, *tokenizer, *dataset);
  note_change(data, saved);
  return run_inference(saved_model, options, [&](const TrainedModel& trained, InferenceMode mode) {
    print_evaluation({.model = *trained.model.decoder,
                      .make_tape = trained.make_tape(),
                      .dataset = *dataset,
                      .device = trained.device,
                      .is_sort_task = data.source == "sort"},
                     options, mode);
  });
}

int eval(const std::vector<std::string>& arguments) { return eval(arguments, false); }

}  // namespace zg::tools
