#include "zerograd/models/gpt/generate.h"

#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>

#include "tools/commands/chat.h"
#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inference.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

struct GenerateOptions : InferenceOptions {
  std::string prompt;
  bool chat = false;  ///< each line of stdin is a turn
  int64_t length = 200;
  bool test_performance = false;
  models::SamplingOptions sampling;
  models::BeamOptions search;  ///< of an encoder-decoder; the fields whose flags are given
  int64_t max_length = 0;      ///< the flag's value, with the first token; 0: not given
};

FlagGroup search_flags(GenerateOptions& options) {
  models::BeamOptions& search = options.search;
  constexpr const char* own = "the model's own";
  return {
      "search, of encoder-decoder models",
      {integer_flag({"--num-beams"}, search.beams, "sequences that are searched at a time",
                    {1, own}),
       integer_flag({"--min-length"}, search.min_length,
                    "least tokens of an answer, with the first", {0, own}),
       integer_flag({"--max-length"}, options.max_length,
                    "most tokens of an answer, with the first", {1, own}),
       integer_flag({"--no-repeat-ngram-size"}, search.no_repeat_ngram_size,
                    "no sequence of N tokens occurs twice; 0: no limit", {0, own}),
       integer_flag({"--encoder-no-repeat-ngram-size"}, search.encoder_no_repeat_ngram_size,
                    "no sequence of N tokens is from the prompt; 0: no limit", {0, own}),
       number_flag({"--length-penalty"}, search.length_penalty,
                   {-1e3, 1e3, false, false, "a number from -1000 to 1000"},
                   "a score is divided by the length to this power", own),
       {{"--early-stopping"},
        "true|false|never",
        std::string("end when --num-beams answers are finished [") + own + "]",
        [&search](const std::string& name, const std::string& value) {
          using enum models::EarlyStopping;
          const models::EarlyStopping choices[] = {yes, no, never};
          search.early_stopping = choices[parse_choice(name, value, {"true", "false", "never"})];
        }}}};
}

bool parse(const std::vector<std::string>& arguments, GenerateOptions& options) {
  models::SamplingOptions& sampling = options.sampling;
  const CommandLine line = {
      .usage = "zerograd generate CHECKPOINT --prompt TEXT|--chat [flags]",
      .summary = "Continues a prompt and prints each token at once, or answers a chat.",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"text",
                  {text_flag({"--prompt"}, "TEXT", options.prompt,
                             "beginning of the text; token numbers for PATH.bin models"),
                   switch_flag(
                       {"--chat"}, options.chat,
                       "answer each line of stdin, a turn of the user, with the model's own chat\n"
                       "template; --prompt gives the first turn, --length the most tokens of\n"
                       "an answer"),
                   flag_named("--chat-format", options.train),
                   integer_flag({"--length", "--max-new-tokens", "--max-tokens"}, options.length,
                                "tokens to add"),
                   number_flag({"--temperature"}, sampling.temperature, not_negative,
                               "divides the logits; 0: always the likeliest token"),
                   integer_flag({"--top-k"}, sampling.top_k, "keep the N likeliest; 0: all"),
                   number_flag({"--top-p"}, sampling.top_p,
                               {0.0, 1.0, true, false, "a number above 0 and at most 1"},
                               "keep the likeliest that together have this probability"),
                   number_flag({"--min-p"}, sampling.min_p,
                               {0.0, 1.0, false, false, "a number from 0 to 1"},
                               "drop tokens below this share of the largest probability; 0: none"),
                   seed_flag(sampling.seed, "seed of sampling"),
                   switch_flag({"--test-performance"}, options.test_performance,
                               "generate 30 times and print the averages without the first three:\n"
                               "latency of a token, bandwidth, operations")}},
                 search_flags(options),
                 {"model (the checkpoint's own unless given)",
                  {flag_named("--data", options.train), flag_named("--tokenizer", options.train),
                   flag_named("--model-type", options.train), flag_named("--n-head", options.train),
                   adapter_flag(options.adapters), base_flag(options.adapters)}},
                 inference_flags(options),
                 evaluation_script_flags(),
                 unsupported_flags(/*one_rank=*/true)},
      .notes =
          "  zerograd generate checkpoints --prompt 'O God, O God!' --top-k 10\n"
          "  zerograd generate checkpoints --prompt 210021 --length 6 --temperature 0\n"
          "  zerograd generate QWEN_FOLDER --chat\n"
          "  zerograd generate runs/chat --prompt hello --num-beams 10"};
  if (!parse_inference(line, arguments, options)) return false;
  if (options.prompt.empty() && !options.chat)
    throw ConfigError("--prompt: expected text to begin with, got nothing; try --prompt 'O God'");
  if (options.test_performance && options.length == 0)
    throw ConfigError("--test-performance: expected --length of 1 or more with it, got 0");
  if (sampling.min_p > 0.0 && sampling.temperature == 0.0)
    throw ConfigError(
        "--min-p: with --temperature 0 nothing is sampled; expected --temperature above 0");
  return true;
}

// A weights file does not store the characters: they come from the training data, which a flag
// names.
std::string characters_for(const SavedModel& saved_model, const GenerateOptions& options) {
  const RunSpec& settings = saved_model.settings;
  if (options.train.data.source.empty()) return settings.characters;
  const auto dataset = make_dataset(options.train.data, {.block_size = settings.model.block_size,
                                                         .seed = settings.seed,
                                                         .vocabulary = settings.model.vocabulary});
  check_tokens(saved_model, options.train.data, *dataset);
  return characters_of(*dataset);
}

// The model's own tokenizer, or that of the flag. If both exist, they must be equal.
std::optional<models::Tokenizer> tokenizer_for(const SavedModel& saved_model,
                                               const GenerateOptions& options) {
  DataOptions data = saved_model.settings.data;
  const bool named = options.train.has("--tokenizer");
  if (named) data.tokenizer = options.train.data.tokenizer;
  if (!data.tokenizer.empty() && !options.train.data.source.empty())
    raise<ConfigError>("--data: the tokens are those of the tokenizer {}; leave the flag out",
                       data.tokenizer);
  return resolve_tokenizer(data, &saved_model, named);
}

std::vector<int32_t> prompt_tokens(const models::TextStream& words, const std::string& prompt) try {
  return words.encode(prompt);
} catch (const ConfigError& error) {
  const std::string message = error.what();
  if (message.find("neither characters nor a tokenizer") == std::string::npos)
    throw ConfigError(message.starts_with("--prompt") ? message : "--prompt: " + message);
  raise<ConfigError>("{}; try --tokenizer PATH, or --data with the text that it was trained on",
                     message);
}

constexpr int runs = 30, warm_up_runs = 3;

// Prints the averages of DeepSpeedExamples' inference-test.py. As there, the number of parameters
// is 12 x layers x width^2, without embeddings. For a token each parameter is read once and takes
// two operations.
void print_performance(const TrainedModel& trained, int64_t length,
                       const std::vector<double>& seconds) {
  double sum = 0.0;
  for (size_t i = warm_up_runs; i < seconds.size(); ++i) sum += seconds[i];
  const double token = sum / static_cast<double>((seconds.size() - warm_up_runs) * length);
  const models::GPTConfig& config = trained.model.decoder->config();
  const double parameters = 12.0 * static_cast<double>(config.layers) *
                            static_cast<double>(config.width) * static_cast<double>(config.width);
  const double bytes =
      static_cast<double>(trained.values->bytes()) / static_cast<double>(trained.store.numel());
  std::printf("Avg Per Token Latency: %8.2f ms\n", token * 1e3);
  std::printf("Avg BW: %8.2f GB/s\n", parameters * bytes / token * 1e-9);
  std::printf("Avg flops: %8.2f TFlops/s\n", 2.0 * parameters / token * 1e-12);
}

void note_on_generation(const std::string& keys) {
  if (!keys.empty()) print_line(stderr, "note: generation_config.json: without effect: {}", keys);
}

bool draws(const Given& given) {
  return given.count("--top-k") || given.count("--top-p") || given.count("--min-p");
}

models::SamplingOptions with_flags(models::SamplingOptions own, const GenerateOptions& options) {
  const models::SamplingOptions& flags = options.sampling;
  own.seed = flags.seed;
  if (options.train.has("--temperature")) own.temperature = flags.temperature;
  if (options.train.has("--top-k")) own.top_k = flags.top_k;
  if (options.train.has("--top-p")) own.top_p = flags.top_p;
  if (options.train.has("--min-p")) own.min_p = flags.min_p;
  return own;
}

// The values of the flags; for flags that are not given those of the model's
// generation_config.json, as transformers applies it. If that has no do_sample, the defaults of the
// flags sample.
models::SamplingOptions sampling_of(const RunSpec& settings, const GenerateOptions& options,
                                    const std::vector<int32_t>& prompt, int64_t& length,
                                    InferenceMode mode) {
  models::SamplingOptions sampling = options.sampling;
  if (settings.generation_config.empty()) return sampling;
  const models::HFGeneration own =
      models::hf_generation(settings.generation_config, "generation_config.json",
                            {.start = {0}, .eos = settings.special_tokens.eos});
  models::BeamOptions rules = own.options;
  if (mode == InferenceMode::run)
    note_on_generation(rules.beams > 1 ? own.note + (own.note.empty() ? "" : ", ") + "num_beams"
                                       : own.note);
  if (rules.sampling)
    sampling = with_flags(*rules.sampling, options);
  else if (own.do_sample && !draws(options.train.given) && !options.train.has("--temperature"))
    sampling.temperature = 0.0;
  const auto used = static_cast<int64_t>(prompt.size());
  if (!options.train.has("--length") && (rules.max_new_tokens || rules.max_length))
    length =
        std::max<int64_t>(1, rules.max_new_tokens.value_or(rules.max_length.value_or(0) - used));
  rules.start = prompt;
  rules.max_new_tokens = std::max<int64_t>(1, length);
  models::validate(rules);
  sampling.process = [rules](std::span<float> logits, std::span<const int32_t> tokens) {
    models::process_logits(logits, tokens, {}, rules);
  };
  return sampling;
}

void speak(const TrainedModel& trained, const GenerateOptions& options, models::TextStream& words,
           InferenceMode mode) {
  const RunSpec& settings = trained.saved_model.settings;
  const std::vector<int32_t> prompt = prompt_tokens(words, options.prompt);
  check_prompt("--prompt", prompt, settings.model.vocabulary);
  if (prompt.empty()) throw ConfigError("--prompt: expected at least one token, got none");
  int64_t length = options.length;
  models::SamplingOptions sampling = sampling_of(settings, options, prompt, length, mode);
  const bool is_run = mode == InferenceMode::run, measures = is_run && options.test_performance;
  if (is_run)
    for (const int32_t token : prompt) print_text(words.decode(token));
  // A measurement generates --length tokens: it does not stop at an end token.
  if (is_run && !measures) sampling.ends = settings.special_tokens.eos;
  std::vector<double> seconds;
  for (int i = 0; i < (measures ? runs : 1); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    write_continuation(trained, prompt, length, sampling, i == 0 ? &words : nullptr, mode);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  if (measures) print_performance(trained, length, seconds);
}

// The format of --chat-format, or of the chats in training (in the settings), or of the folder.
ChatOptions chat_options(const SavedModel& saved_model, const GenerateOptions& options,
                         InferenceMode mode) {
  const RunSpec& settings = saved_model.settings;
  const std::string &path = options.train.data.chat_format_path, &saved = settings.data.chat_format,
                    &folder =
                        is_hf_folder(saved_model.path) ? saved_model.path : settings.base.path;
  const auto format = path.empty() && !saved.empty() ? models::chat_format(saved, saved_model.path)
                                                     : chat_format_of(path, folder, saved);
  if (!format)
    raise<Unsupported>(
        "--chat: {} has no chat template; try --chat-format F.jinja, or F.json with a prefix and a "
        "suffix for each role",
        saved_model.path);
  const auto sampling = [&settings, &options, first = mode](const std::vector<int32_t>& prompt,
                                                            int64_t& length) mutable {
    return sampling_of(settings, options, prompt, length,
                       std::exchange(first, InferenceMode::plan));  // the note is printed once
  };
  return {*format, options.prompt, options.length, settings.special_tokens.eos, sampling};
}

void check_decoder_flags(const Given& given) {
  refuse_flags(given,
               {"--num-beams", "--min-length", "--max-length", "--no-repeat-ngram-size",
                "--encoder-no-repeat-ngram-size", "--length-penalty", "--early-stopping"},
               "expected an encoder-decoder model, got a decoder-only model, which samples; try "
               "--length, --top-k or --temperature 0");
}

// The model's own options, overridden by flags.
models::BeamOptions search_options(const RunSpec& settings, const GenerateOptions& options) {
  models::BeamOptions search = seq2seq_model(settings.seq2seq).generation;
  const models::BeamOptions& now = options.search;
  const auto given = [&](const char* flag) { return options.train.has(flag); };
  if (given("--length") && given("--max-length"))
    throw ConfigError("--max-length: expected one of it and --length, got both");
  if (given("--num-beams")) search.beams = now.beams;
  if (given("--min-length")) {
    search.min_length = now.min_length;
    search.min_new_tokens.reset();
  }
  if (given("--max-length")) {
    search.max_length = options.max_length;
    search.max_new_tokens.reset();
  }
  if (given("--length")) search.max_new_tokens = options.length;
  if (given("--no-repeat-ngram-size")) search.no_repeat_ngram_size = now.no_repeat_ngram_size;
  if (given("--encoder-no-repeat-ngram-size"))
    search.encoder_no_repeat_ngram_size = now.encoder_no_repeat_ngram_size;
  if (given("--length-penalty")) search.length_penalty = now.length_penalty;
  if (given("--early-stopping")) search.early_stopping = now.early_stopping;
  const bool samples =
      draws(options.train.given) || (given("--temperature") && options.sampling.temperature > 0.0);
  if (samples) {
    if (given("--num-beams") && now.beams > 1)
      throw Unsupported(
          "--num-beams: beams are searched, not sampled; leave out the flags of sampling");
    search.beams = search.return_sequences = 1;
    search.sampling = with_flags(search.sampling.value_or(models::SamplingOptions()), options);
  } else if (given("--temperature")) {
    search.sampling.reset();
  } else if (search.sampling) {
    search.sampling->seed = options.sampling.seed;
  } else if (given("--seed")) {
    throw ConfigError(
        "--seed: nothing is drawn; expected --top-k, --top-p, --min-p or --temperature with it, "
        "got none");
  }
  return search;
}

// Prints the answer of an encoder-decoder to the prompt.
void answer(const TrainedModel& trained, const GenerateOptions& options,
            const std::optional<models::Tokenizer>& tokenizer, InferenceMode mode) {
  if (options.test_performance)
    throw Unsupported(
        "--test-performance: it measures decoder-only models; try zerograd bench seq2seq");
  if (options.train.has("--data"))
    throw ConfigError(
        "--data: without a tokenizer the prompt is token numbers; leave the flag out");
  const RunSpec& settings = trained.saved_model.settings;
  const models::Seq2SeqConfig& config = trained.model.seq2seq->config();
  const PairText text(config, tokenizer ? &*tokenizer : nullptr, "--prompt");
  const std::vector<int32_t> source = text.encode(settings.seq2seq.source_prefix + options.prompt,
                                                  std::numeric_limits<int32_t>::max());
  if (static_cast<int64_t>(source.size()) > config.positions)
    raise<ConfigError>("--prompt: expected at most the model's {} tokens, got {}", config.positions,
                       source.size());
  check_prompt("--prompt", source, config.vocabulary);
  models::BeamOptions search = search_options(settings, options);
  // In a plan all logits are 0, and the answer is as long as it can be. Before a run two tokens are
  // planned: then the beams have their rows of the cache, and all memory of an answer is in use.
  if (mode == InferenceMode::plan) {
    search.min_new_tokens = std::numeric_limits<int32_t>::max();
  } else if (mode == InferenceMode::budget) {
    search.min_new_tokens = 2;
    search.eos = {0};
    search.early_stopping = models::EarlyStopping::yes;
  }
  const models::Generated answers =
      models::generate(*trained.model.seq2seq, trained.make_tape(), {source}, search);
  if (mode != InferenceMode::run) return;
  note_on_generation(seq2seq_model(settings.seq2seq).generation_note);
  for (const std::vector<int32_t>& row : answers.rows) print_text(text.decode(row) + "\n");
}

}  // namespace

int generate(const std::vector<std::string>& arguments, bool only_planned) {
  GenerateOptions options;
  if (!parse(arguments, options)) return 0;
  options.only_planned = only_planned;
  if (options.chat)
    refuse_flags(options.train.given, {"--test-performance", "--data"},
                 "it has no effect on --chat; leave the flag out");
  if (!options.chat && options.train.has("--chat-format"))
    throw ConfigError("--chat-format: expected --chat with it, got none");
  const SavedModel saved_model = open_for_inference(options);
  std::optional<models::Tokenizer> tokenizer = tokenizer_for(saved_model, options);
  const bool is_decoder = saved_model.settings.seq2seq.config.empty();
  if (options.chat && !(is_decoder && tokenizer))
    raise<Unsupported>("--chat: expected a decoder with a tokenizer, got {}", saved_model.path);
  std::unique_ptr<models::TextStream> words;
  if (is_decoder) check_decoder_flags(options.train.given);
  if (is_decoder && !options.chat)
    words = tokenizer ? models::text_stream(std::move(*tokenizer))
                      : models::character_stream(characters_for(saved_model, options), "--prompt");
  return run_inference(saved_model, options, [&](const TrainedModel& trained, InferenceMode mode) {
    if (options.chat)
      return talk(trained, *tokenizer, chat_options(saved_model, options, mode), mode);
    if (is_decoder) return speak(trained, options, *words, mode);
    answer(trained, options, tokenizer, mode);
  });
}

int generate(const std::vector<std::string>& arguments) { return generate(arguments, false); }

}  // namespace zg::tools
