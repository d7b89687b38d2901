#include <cstdlib>

#include "tools/deepspeed/load.h"
#include "tools/options/fields.h"
#include "tools/options/lora_flags.h"
#include "tools/options/model_flags.h"
#include "tools/options/options.h"
#include "tools/options/train_flags.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

// The command lines of train, finetune, plan, tune, eval and generate.
namespace zg::tools {
namespace {

void check_finetune(const TrainOptions& options) {
  if (options.from_hf.empty() && options.resume.empty() && options.initial_weights.empty())
    throw ConfigError(
        "finetune: expected a trained model, got none; try --from-hf FOLDER, --init F or --resume "
        "DIR");
  if (!options.data.source.empty() && !is_conversations(options.data.source))
    throw ConfigError(
        fmt::format("--data: finetune learns conversations; expected PATH.jsonl with lines such as "
                    "{{\"prompt\": \"Hi\", \"response\": \"Hello\"}}, got {}; try zerograd train",
                    options.data.source));
  if (!options.autotuning.empty())
    throw Unsupported(
        "--autotuning: it restarts zerograd train; try zerograd tune with the same flags, then "
        "finetune --config tuned.json");
}

// Throws if torchrun, accelerate or deepspeed started several processes: each would train alone.
void refuse_other_launchers() {
  const char* size = std::getenv("WORLD_SIZE");
  const long long processes =
      size ? std::atoll(size) : 1;  // WORLD_SIZE as a number, which is safe to print
  if (processes <= 1) return;
  throw ConfigError(fmt::format(
      "WORLD_SIZE: expected processes that MPI starts, got {} of another launcher, which cannot "
      "communicate; try zerograd launch --num_gpus {} train ..., or unset WORLD_SIZE",
      processes, processes));
}

// If mpirun or srun started this process as one of several, their number becomes the number of
// ranks; --ranks may be absent or equal to it. Throws ConfigError if --ranks differs, or if
// torchrun's variables ask for several processes, which could not communicate. Throws Unsupported
// in a build without MPI.
void adopt_processes(TrainOptions& options) {
  const std::optional<ProcessRank> place = process_rank();
  if (!place) refuse_other_launchers();
  if (!place || place->size == 1) return;
  if (mpi_version().empty())
    throw Unsupported(
        fmt::format("ranks: this build links no MPI, so the {} processes that were started cannot "
                    "communicate; try "
                    "--ranks {} in one process, or install libopenmpi-dev and build again",
                    place->size, place->size));
  if (options.given.count("--ranks") && options.ranks != place->size)
    throw ConfigError(
        fmt::format("--ranks: expected the {} processes that were started, or nothing; got {}",
                    place->size, options.ranks));
  options.ranks = place->size;
  options.process = place;
}

// Reads the config, sets the default folder of checkpoints, where a flag asks for checkpoints and
// --save is absent, and checks the flags. minGPT's trainer and Lightning use the same folder.
void complete(TrainOptions& options) {
  load_config(options);
  const bool asked = options.given.count("--save-interval") ||
                     options.given.count("--save-top-k") || options.resume == "auto";
  if (asked && options.save.empty()) options.save = "checkpoints";
  resolve_tracking(options);
  check_train(options);
}

}  // namespace

namespace {

bool parse_finetune_flags(const std::vector<std::string>& arguments, TrainOptions& options) {
  const CommandLine line = {
      .usage = "zerograd finetune --from-hf FOLDER --data CHATS.jsonl [flags]",
      .summary =
          "Trains a decoder of Hugging Face's on conversations: the loss is\non responses alone. "
          "It is train with other defaults: --epochs 3, --lr 2e-05,\n"
          "--lr-scheduler-type linear, --betas 0.9,0.999 and --weight-decay 0. As in train, "
          "conversations have --loss-mean token, --batch-size 8 "
          "and\n"
          "--block-size 1024, or the model's positions if fewer. A line of the data is\n"
          "{\"prompt\": \"Hi\", \"response\": \"Hello\"}, with \"completion\" as another name, or\n"
          "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, ...]} with --chat-format.",
      .groups = train_groups(options),
      .notes =
          "  zerograd finetune --from-hf LLAMA_FOLDER --data chats.jsonl --save runs/chat\n"
          "  zerograd finetune --from-hf QWEN_FOLDER --data chats.jsonl --chat-format chatml.json "
          "\\\n"
          "      --val-data held_out.jsonl --eval-interval 50 --save runs/chat\n"
          "  zerograd eval runs/chat --val-data held_out.jsonl"};
  return parse(line, arguments, options.given);
}

}  // namespace

bool parse_flags(const std::vector<std::string>& arguments, TrainOptions& options) {
  if (options.finetunes) return parse_finetune_flags(arguments, options);
  const CommandLine line = {
      .usage = "zerograd train --data sort|adder|PATH.txt|PATH.bin|PATH.jsonl [flags]",
      .summary =
          "Trains a language model. Defaults are in brackets. Sizes are written like 512MiB, 2GiB "
          "or 1e9.",
      .groups = train_groups(options),
      .notes =
          "Spellings of other systems work too: --n_layer, --learning_rate,\n"
          "--per_device_train_batch_size, --gradient_accumulation_steps,\n"
          "--num_train_epochs, --num_warmup_steps, --output_dir, --logging_steps, --gpus 2,\n"
          "--precision 16, --bf16, --strategy ddp|deepspeed_stage_N[_offload],\n"
          "--micro-batch-size, --global-batch-size, --num-layers, --hidden-size,\n"
          "--num-attention-heads, --seq-length, --clip-grad, --adam-beta1, --load,\n"
          "--deepspeed_config F, --config_name gpt2, --model_name_or_path DIR, --tokenizer_name "
          "PATH,\n"
          "--with_tracking --report_to tensorboard --report_name NAME (in --output_dir),\n"
          "--limit_train_batches 120 (of each epoch; without --epochs: of one).\n\n"
          "  zerograd train --data sort --ranks 2 --zero-stage 2\n"
          "  zerograd train --data input.txt --model-type gpt-mini --save checkpoints\n"
          "  zerograd train --data pairs.jsonl --from-hf BLENDERBOT_FOLDER --save runs/chat"};
  return parse(line, arguments, options.given);
}

bool parse(const std::vector<std::string>& arguments, TrainOptions& options) {
  if (!parse_flags(arguments, options)) return false;
  // The default length of finetune counts as not given.
  for (const char* flag : {"--steps", "--train-samples"})
    if (options.given.count(flag)) options.epochs = 0.0;
  if (options.finetunes) check_finetune(options);
  if (options.data.source.empty() && options.resume.empty() && !is_import(options))
    throw ConfigError(
        std::string("--data: expected sort, adder, PATH.txt or PATH.bin, got nothing; "
                    "try --data ") +
        (options.from_hf.empty() ? "sort" : "text.txt, or --steps 0 --save DIR"));
  adopt_processes(options);
  complete(options);
  if (options.injection.fault == FaultInjection::Fault::stop && !options.process)
    throw ConfigError(
        "--inject: expected processes of mpirun or launch for fault=stop, got ranks that are "
        "threads: all of them would stop");
  return true;
}

bool parse(const std::vector<std::string>& arguments, PlanOptions& options) {
  TrainOptions& train = options.train;
  train.steps = 3;  // unless --steps is given; later steps need the same memory
  CommandLine line = {
      .usage =
          "zerograd plan [--data sort|adder|PATH.txt|PATH.bin] [flags of train]\n"
          "       zerograd plan generate|eval CHECKPOINT [flags of generate or eval]",
      .summary =
          "Plans training steps on devices without memory. Prints the bytes of memory that train\n"
          "will take on each rank, and the bytes that ranks will send. Without --data the\n"
          "vocabulary and block size are those of --model-type or of other flags. The exit status\n"
          "is 3 if the memory exceeds --device-memory. `plan generate` and `plan eval` plan those.",
      .groups = {{"plan",
                  {switch_flag({"--explain"}, options.explain,
                               "ZeRO's formulas beside ours, and the precisions"),
                   path_flag({"--peaks"}, "F", options.peaks, PathUse::reads,
                             "with --kernels: the rates of a machine, such as "
                             "bench/peaks/h100-sxm.json;\n"
                             "predicts the time of a step and of each kernel")}}},
      .notes =
          "  zerograd plan --data sort --model-type gpt2-xl --device-memory 12GiB\n"
          "  zerograd plan --data input.txt --ranks 64 --zero-stage 3 --precision bf16\n"
          "  zerograd plan --model-type bloom-13b --ranks 8 --tensor-parallel 4 "
          "--pipeline-parallel 2"};
  for (FlagGroup& group : train_groups(train)) line.groups.push_back(std::move(group));
  if (!parse(line, arguments, train.given)) return false;
  complete(train);
  return true;
}

bool parse(const std::vector<std::string>& arguments, TuneOptions& options) {
  CommandLine line = {
      .usage = "zerograd tune --data sort|adder|PATH.txt|PATH.bin [flags of train]",
      .summary =
          "Plans the ZeRO stages, offloads, activation checkpointing, micro-batches and buckets "
          "that\n"
          "fit in --device-memory and --host-memory on --ranks, runs the best plans for a few "
          "steps\n"
          "and writes the fastest as a config. Settings that flags or a config give are not "
          "varied.",
      .groups = {{"tune",
                  {switch_flag({"--find-max-batch"}, options.find_max_batch,
                               "the largest micro-batch of each stage, all else as it is"),
                   number_flag({"--time"}, options.time_s,
                               {0.0, 1e6, true, false, "seconds above 0 and at most 1e6"},
                               "seconds that all of it may take"),
                   path_flag({"--out"}, "F", options.out, PathUse::writes,
                             "the best setting, for train --config F [" + options.out + "]")}}},
      .notes =
          "  zerograd tune --data sort --model-type gpt-mini --ranks 2 --device-memory 40MiB\n"
          "  zerograd tune --data input.txt --train-batch-size 64 --nvme-path /mnt/drive\n"
          "  zerograd tune --data sort --ranks 2 --device-memory 40MiB --find-max-batch"};
  for (FlagGroup& group : train_groups(options.train)) {
    // Each flag is also recorded with its words: tune passes them on to the runs that it starts.
    for (Flag& flag : group.flags)
      flag.set = [set = flag.set, is_switch = flag.value.empty(), &flags = options.flags](
                     const std::string& name, const std::string& value) {
        flags.emplace_back(
            name, is_switch
                      ? std::vector{value == "true" ? name : fmt::format("{}={}", name, value)}
                      : std::vector{name, value});
        set(name, value);
      };
    line.groups.push_back(std::move(group));
  }
  return parse(line, arguments, options.train.given);
}

namespace {

FlagGroup inference_flags(TrainOptions& train, InferenceOptions& inference) {
  FlagGroup group{"place", flags_named({"--device", "--use-hpu", "--threads", "--device-memory",
                                        "--host-memory"},
                                       train)};
  group.flags.push_back(dtype_flag(
      inference.dtype,
      "dtype in which matrices are stored, others in f32 [the files'; in a checkpoint the\n"
      "run's precision]. The run's precision, f32 for a folder, is that of the\n"
      "computation; with weights in another dtype it is f32"));
  group.flags.push_back(path_flag({"--memory-json"}, "F", inference.memory_json, PathUse::writes,
                                  "writes the bytes in use by phase and purpose"));
  return group;
}

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
  flags.push_back(number_flag({"--val-fraction"}, options.train.data.validation_fraction,
                              {0.0, 1.0, false, false, "a number from 0 to 1"},
                              "the end of a text, token file or conversations to evaluate on;\n1: "
                              "a whole text"));
  flags.push_back(adapter_flag(options.adapters));
  flags.push_back(base_flag(options.adapters));
  return flags;
}

std::vector<Flag> question_flags(EvalOptions& options) {
  return {path_flag({"--multiple-choice"}, "PATH.jsonl", options.questions, PathUse::reads,
                    "questions in HellaSwag's format in place of data: {\"ctx\": ...,\n"
                    "\"endings\": [...], \"label\": 0}"),
          switch_flag({"--plain-questions"}, options.plain_questions,
                      "ctx and endings as they are, as in llm.c; otherwise lines with ctx_a\n"
                      "get the texts of lm-evaluation-harness")};
}

}  // namespace

bool parse(const std::vector<std::string>& arguments, EvalOptions& options) {
  const CommandLine line = {
      .usage = "zerograd eval CHECKPOINT [flags]",
      .summary =
          "Prints the validation loss and perplexity, of conversations those of responses, and "
          "for\n"
          "sort and adder the scores on both splits. Of multiple choice questions it prints how\n"
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
                   seed_flag(options.train.seed, "of the data")}},
                 inference_flags(options.train, options.inference),
                 evaluation_script_flags(),
                 unsupported_flags(/*one_rank=*/true)},
      .notes =
          "A safetensors file holds weights only: give --data, and --n-head or --model-type.\n\n"
          "  zerograd eval checkpoints\n"
          "  zerograd eval checkpoints/step_300 --data input.txt --val-fraction 1\n"
          "  zerograd eval runs/chat --val-data held_out.jsonl\n"
          "  zerograd eval GPT2_FOLDER --multiple-choice hellaswag_val.jsonl"};
  if (!parse(line, arguments, options.train.given)) return false;
  check_model(options.train);
  check_device(options.train.given);
  options.inference.device_flags = options.train.device_flags;
  return true;
}

namespace {

FlagGroup search_flags(GenerateOptions& options) {
  models::BeamOptions& search = options.search;
  constexpr const char* own = "the model's own";
  return {
      "search, of encoder-decoder models",
      {integer_flag({"--num-beams"}, search.beams, "sequences that are searched at a time",
                    {1, own}),
       integer_flag({"--min-length"}, search.min_length,
                    "least tokens of an answer, with the first", {0, own}),
       integer_flag({"--max-length"}, options.max_length, "most tokens of it, with the first",
                    {1, own}),
       integer_flag({"--no-repeat-ngram-size"}, search.no_repeat_ngram_size,
                    "no N tokens in a row come twice; 0: any", {0, own}),
       integer_flag({"--encoder-no-repeat-ngram-size"}, search.encoder_no_repeat_ngram_size,
                    "no N tokens in a row are from the prompt; 0: any", {0, own}),
       number_flag({"--length-penalty"}, search.length_penalty,
                   {-1e3, 1e3, false, false, "a number from -1000 to 1000"},
                   "a score is divided by the length to this power", own),
       {{"--early-stopping"},
        "true|false|never",
        std::string("end once --num-beams answers are finished [") + own + "]",
        [&search](const std::string& name, const std::string& value) {
          using enum models::EarlyStopping;
          const models::EarlyStopping choices[] = {yes, no, never};
          search.early_stopping = choices[parse_choice(name, value, {"true", "false", "never"})];
        }}}};
}

}  // namespace

bool parse(const std::vector<std::string>& arguments, GenerateOptions& options) {
  models::SamplingOptions& sampling = options.sampling;
  const CommandLine line = {
      .usage = "zerograd generate CHECKPOINT --prompt TEXT|--chat [flags]",
      .summary = "Continues a prompt and prints it as it grows, or answers in turns.",
      .positionals = {checkpoint_positional(options.checkpoint)},
      .groups = {{"text",
                  {text_flag({"--prompt"}, "TEXT", options.prompt,
                             "how the text begins; token numbers for PATH.bin models"),
                   chat_flag(options.chat), flag_named("--chat-format", options.train),
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
                   seed_flag(sampling.seed, "of the draws"),
                   switch_flag({"--test-performance"}, options.test_performance,
                               "generate 30 times and print the averages without the first three:\n"
                               "latency of a token, bandwidth, operations")}},
                 search_flags(options),
                 {"model (the checkpoint's own unless given)",
                  {flag_named("--data", options.train), flag_named("--tokenizer", options.train),
                   flag_named("--model-type", options.train), flag_named("--n-head", options.train),
                   adapter_flag(options.adapters), base_flag(options.adapters)}},
                 inference_flags(options.train, options.inference),
                 evaluation_script_flags(),
                 unsupported_flags(/*one_rank=*/true)},
      .notes =
          "  zerograd generate checkpoints --prompt 'O God, O God!' --top-k 10\n"
          "  zerograd generate checkpoints --prompt 210021 --length 6 --temperature 0\n"
          "  zerograd generate QWEN_FOLDER --chat\n"
          "  zerograd generate runs/chat --prompt hello --num-beams 10"};
  if (!parse(line, arguments, options.train.given)) return false;
  if (options.prompt.empty() && !options.chat)
    throw ConfigError("--prompt: expected text to begin with, got nothing; try --prompt 'O God'");
  if (options.test_performance && options.length == 0)
    throw ConfigError("--test-performance: expected --length of 1 or more with it, got 0");
  if (sampling.min_p > 0.0 && sampling.temperature == 0.0)
    throw ConfigError(
        "--min-p: with --temperature 0 nothing is sampled; expected --temperature above 0");
  check_model(options.train);
  check_device(options.train.given);
  options.inference.device_flags = options.train.device_flags;
  return true;
}

}  // namespace zg::tools
