#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/flags.h"
#include "tools/run/planner.h"
#include "tools/run/run.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/seq2seq/seq2seq_generate.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/trainer.h"

// Fine-tuning of an encoder-decoder model by data parallelism and by ZeRO-2: the largest batches
// that fit, and the time of an epoch of training and of generation.
namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct Seq2SeqBench {
  std::string model = "blenderbot-400m";
  int64_t encoder_layers = 0, decoder_layers = 0, width = 0, heads = 0, vocabulary = 0;
  int64_t source = 128, target = 64, beams = 10;
  int64_t train_samples = 10000, validation_samples = 1000;
  int64_t ranks = 2, threads = 0, memory = 0;
  DType compute = DType::f16;
  bool runs = false;

  models::Seq2SeqConfig config() const {
    models::Seq2SeqConfig config = models::Seq2SeqConfig::preset(model);
    const auto replace = [](int64_t& value, int64_t given) {
      if (given > 0) value = given;
    };
    replace(config.encoder_layers, encoder_layers);
    replace(config.decoder_layers, decoder_layers);
    replace(config.encoder_heads, heads);
    replace(config.decoder_heads, heads);
    replace(config.vocabulary, vocabulary);
    if (width > 0) {
      config.width = width;
      config.encoder_hidden = config.decoder_hidden = 4 * width;
    }
    return config;
  }
  int64_t samples_of_rank(int64_t samples) const { return std::max<int64_t>(1, samples / ranks); }
  DeviceOptions device() const {
    return {.threads = static_cast<int>(threads), .memory_limit = memory};
  }
};

constexpr int64_t special_tokens = 4;  // ids that no text has

/// `count` texts of `length` random tokens, from number `first` on.
std::vector<std::vector<int32_t>> texts(const models::Seq2SeqConfig& config, const char* stream,
                                        int64_t first, int64_t count, int64_t length) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t i = first; i < first + count; ++i) {
    models::RandomStream random(/*seed=*/1, stream, static_cast<uint64_t>(i));
    std::vector<int32_t>& text = all.emplace_back();
    for (int64_t t = 0; t < length; ++t)
      text.push_back(
          static_cast<int32_t>(special_tokens + random.below(config.vocabulary - special_tokens)));
  }
  return all;
}

/// One rank's model and engine.
struct PairRank {
  PairRank(const Seq2SeqBench& options, int stage, Communicator& ranks, const Device& device)
      : config(options.config()),
        model(store, config),
        engine(store, ranks, device, {.stage = stage, .compute = options.compute}) {}

  const models::Seq2SeqConfig config;
  ParameterStore store;
  const models::Seq2Seq model;
  zero::Engine engine;
};

/// The program that trains `steps` steps of `batch` samples a rank.
Program training(const Seq2SeqBench& options, int stage, int64_t batch, int64_t steps) {
  return [=](Communicator& ranks, const Device& device) {
    PairRank rank(options, stage, ranks, device);
    const models::Seq2SeqConfig& config = rank.config;
    zero::Trainer trainer(
        rank.engine, {.micro_batch = batch, .steps = steps, .schedule = {.rate = 1e-6}},
        {.batch =
             [&](const zero::MicroBatch& micro) {
               const models::Seq2SeqBatch padded = models::padded_batch(
                   texts(config, "sources", micro.first_sample, micro.samples, options.source),
                   texts(config, "targets", micro.first_sample, micro.samples, options.target),
                   config.tokens, device, options.source, options.target);
               return std::vector{padded.source, padded.source_lengths, padded.labels};
             },
         .forward =
             [&](Tape& tape, const zero::MicroBatch& micro) {
               return rank.model.loss(tape,
                                      {.source = micro.tensors[0],
                                       .source_lengths = micro.tensors[1],
                                       .labels = micro.tensors[2]},
                                      {.step = micro.step, .first_sample = micro.first_sample});
             }});
    trainer.run();
  };
}

/// The program that generates for `samples` sources a rank, `batch` at a time. Every sequence has
/// the longest length, so neither time nor memory depends on values.
Program evaluation(const Seq2SeqBench& options, int stage, int64_t batch, int64_t samples) {
  return [=](Communicator& ranks, const Device& device) {
    PairRank rank(options, stage, ranks, device);
    models::BeamOptions beams = models::beam_options_of(rank.config);
    beams.beams = options.beams;
    beams.max_new_tokens = beams.min_new_tokens = options.target - 1;
    const int64_t first = ranks.rank() * samples;
    for (int64_t done = 0; done < samples; done += batch)
      models::generate(
          rank.model, [&] { return rank.engine.inference_tape(); },
          texts(rank.config, "sources", first + done, std::min(batch, samples - done),
                options.source),
          beams);
  };
}

/// The device's work of evaluation() for one batch, without the search on the host, which takes
/// minutes for a large batch and no memory of the device.
Program decoding(const Seq2SeqBench& options, int stage, int64_t batch) {
  return [=](Communicator& ranks, const Device& device) {
    PairRank rank(options, stage, ranks, device);
    const models::Seq2SeqBatch padded = models::padded_batch(
        texts(rank.config, "sources", 0, batch, options.source), {}, rank.config.tokens, device);
    const auto encoded = [&] {
      Tape tape = rank.engine.inference_tape();
      return rank.model.encode(tape, padded.source, padded.source_lengths);
    };
    models::Seq2SeqCache cache(rank.config, encoded(), padded.source_lengths, options.target);
    for (int64_t t = 0; t + 1 < options.target; ++t) {
      std::vector<int64_t> rows(static_cast<size_t>(t == 0 ? batch : batch * options.beams));
      for (size_t row = 0; row < rows.size(); ++row)
        rows[row] = static_cast<int64_t>(row) / (t == 1 ? options.beams : 1);
      cache.reorder(rows);
      Tape tape = rank.engine.inference_tape();
      const Tensor ids = Tensor::zeros({std::ssize(rows), 1}, DType::i32, device);
      rank.model.next_logits(tape, ids, cache);
    }
  };
}

Plan planned(const Seq2SeqBench& options, const Program& program, std::vector<int> ranks = {}) {
  return plan_ranks(static_cast<int>(options.ranks), program,
                    {.device = options.device(), .ranks = std::move(ranks)});
}

/// All ranks need the same memory, so the first one decides.
bool fits(const Seq2SeqBench& options, const Program& program) {
  return !planned(options, program, {0}).ranks[0].refused.has_value();
}

/// Runs the program, compares it with its plan, and returns the seconds of the run.
double seconds_of(const Seq2SeqBench& options, const Program& program) {
  const Plan plan = planned(options, program);
  const Clock::time_point begin = Clock::now();
  run_ranks(static_cast<int>(options.ranks), program,
            {.local = {.device = options.device()}, .expect = &plan});
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Method {
  const char* name;
  int stage;
  int64_t train_batch = 0, evaluation_batch = 0;
  double train_s = 0.0, evaluation_s = 0.0;  ///< 0: not run
};

Method measured(Method method, const Seq2SeqBench& options) {
  const int64_t most = options.samples_of_rank(options.train_samples);
  const int64_t evaluated = options.samples_of_rank(options.validation_samples);
  method.train_batch = largest_fitting(most, [&](int64_t batch) {
    return fits(options, training(options, method.stage, batch, /*steps=*/2));
  });
  method.evaluation_batch = largest_fitting(evaluated, [&](int64_t batch) {
    return fits(options, decoding(options, method.stage, batch));
  });
  if (!options.runs) return method;
  if (method.train_batch > 0)
    method.train_s = seconds_of(
        options, training(options, method.stage, method.train_batch, most / method.train_batch));
  if (const int64_t batch = method.evaluation_batch; batch > 0) {
    const Program whole = evaluation(options, method.stage, batch, batch);
    if (planned(options, whole).peaks() !=
        planned(options, decoding(options, method.stage, batch)).peaks())
      throw Error("bench seq2seq: a generation needs other memory with its search than without");
    method.evaluation_s = seconds_of(options, evaluation(options, method.stage, batch, evaluated));
  }
  return method;
}

/// `most`: the samples that a rank has; a larger batch is not tried.
std::string cell(int64_t batch, int64_t most) {
  if (batch == 0) return "out of memory";
  return fmt::format("{}{}", batch, batch == most ? " (all)" : "");
}
std::string cell(double seconds) {
  return seconds > 0.0 ? fmt::format("{:.2f}", seconds) : "not run";
}

bool parse(const std::vector<std::string>& arguments, Seq2SeqBench& options, std::string& json) {
  const auto size = [](const char* name, int64_t& target, const char* help) {
    return integer_flag({name}, target, help, {1, "the model's"});
  };
  const CommandLine line = {
      .usage = "zerograd bench seq2seq --device-memory SIZE [flags]",
      .summary =
          "Fine-tunes an encoder-decoder model with data parallelism and with ZeRO-2. Plans find\n"
          "the largest batches of a rank for training and for generation. With --run an epoch of\n"
          "each is run: its seconds are measured, and its memory is compared with the plan. No\n"
          "batch is larger than a rank's share of --n-train or --n-val.",
      .groups = {{"model",
                  {{{"--model-type"},
                    "NAME",
                    fmt::format("{} [{}]", join(models::Seq2SeqConfig::preset_names(), ", "),
                                options.model),
                    [&options](const std::string& name, const std::string& value) {
                      const auto& names = models::Seq2SeqConfig::preset_names();
                      options.model = names[parse_choice(name, value, names)];
                    }},
                   size("--encoder-layers", options.encoder_layers, "layers of the encoder"),
                   size("--decoder-layers", options.decoder_layers, "layers of the decoder"),
                   size("--n-embd", options.width, "width"),
                   size("--n-head", options.heads, "heads"),
                   size("--vocab-size", options.vocabulary, "number of tokens in the vocabulary"),
                   dtype_flag({"--precision"}, options.compute, "dtype of the computation [f16]")}},
                 {"work",
                  {integer_flag({"--max-source-length"}, options.source, "tokens of a source",
                                {1, nullptr}),
                   integer_flag({"--max-target-length"}, options.target, "tokens of a target",
                                {2, nullptr}),
                   integer_flag({"--num-beams"}, options.beams, "beams of a generation",
                                {1, nullptr}),
                   integer_flag({"--n-train"}, options.train_samples, "pairs of a training epoch",
                                {1, nullptr}),
                   integer_flag({"--n-val"}, options.validation_samples, "sources of an evaluation",
                                {1, nullptr})}},
                 {"place",
                  {integer_flag({"--ranks", "--gpus", "--num-gpus"}, options.ranks,
                                "ranks, as threads of this process", {1, nullptr}),
                   integer_flag({"--threads"}, options.threads,
                                "threads for kernels, of each rank; 0: its share of the cores"),
                   size_flag({"--device-memory"}, options.memory, "memory of each rank's device"),
                   switch_flag({"--run"}, options.runs, "also run an epoch of each"),
                   path_flag({"--json"}, "F", json, PathUse::writes, "write results as JSON")}}},
      .notes =
          "  zerograd bench seq2seq --device-memory 24GB\n"
          "  zerograd bench seq2seq --device-memory 64MiB --n-embd 64 --n-head 4 --decoder-layers "
          "2 \\\n      --vocab-size 512 --n-train 256 --n-val 16 --run"};
  Given given;
  if (!zg::parse(line, arguments, given)) return false;
  if (options.memory == 0)
    throw ConfigError(
        "--device-memory: expected the memory of a device, which the largest batch fills, got "
        "none; try --device-memory 24GB");
  if (const int64_t positions = options.config().positions;
      std::max(options.source, options.target) > positions)
    raise<ConfigError>(
        "--max-source-length, --max-target-length: expected at most the model's {} positions, got "
        "{} and {}",
        positions, options.source, options.target);
  validate(options.config());
  if (options.config().vocabulary <= special_tokens)
    raise<ConfigError>("--vocab-size: expected more than {} tokens, got {}", special_tokens,
                       options.config().vocabulary);
  check_writable("--json", json);
  return true;
}

}  // namespace

int bench_seq2seq(const std::vector<std::string>& arguments) {
  Seq2SeqBench options;
  std::string json;
  if (!parse(arguments, options, json)) return 0;
  const models::Seq2SeqConfig config = options.config();
  std::fputs(fmt::format("{}: {} + {} layers, width {}, {} tokens; {}; {} ranks of {} MiB; sources "
                         "of {} tokens, targets of {}, {} beams\n\n",
                         options.model, config.encoder_layers, config.decoder_layers, config.width,
                         config.vocabulary, options.compute, options.ranks, mib(options.memory),
                         options.source, options.target, options.beams)
                 .c_str(),
             stdout);
  std::printf(
      "| method | largest batch, training | largest batch, evaluation | training epoch s | "
      "evaluation epoch s |\n|---|---:|---:|---:|---:|\n");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Method& method : {Method{"data parallel", 0}, Method{"ZeRO-2", 2}}) {
    const Method row = measured(method, options);
    std::printf(
        "| %s | %s | %s | %s | %s |\n", row.name,
        cell(row.train_batch, options.samples_of_rank(options.train_samples)).c_str(),
        cell(row.evaluation_batch, options.samples_of_rank(options.validation_samples)).c_str(),
        cell(row.train_s).c_str(), cell(row.evaluation_s).c_str());
    std::fflush(stdout);
    rows.push_back({{"method", row.name},
                    {"stage", row.stage},
                    {"train_batch", row.train_batch},
                    {"evaluation_batch", row.evaluation_batch},
                    {"train_s", row.train_s},
                    {"evaluation_s", row.evaluation_s}});
  }
  if (json.empty()) return 0;
  const nlohmann::ordered_json record = {{"schema", 1},
                                         {"bench", "seq2seq"},
                                         {"machine", bench::machine_json()},
                                         {"model", options.model},
                                         {"encoder_layers", config.encoder_layers},
                                         {"decoder_layers", config.decoder_layers},
                                         {"width", config.width},
                                         {"heads", config.decoder_heads},
                                         {"vocabulary", config.vocabulary},
                                         {"dtype", name_of(options.compute)},
                                         {"source", options.source},
                                         {"target", options.target},
                                         {"beams", options.beams},
                                         {"train_samples", options.train_samples},
                                         {"validation_samples", options.validation_samples},
                                         {"ranks", options.ranks},
                                         {"device_memory", options.memory},
                                         {"rows", rows}};
  replace_text(json, record.dump(1) + "\n");
  return 0;
}

}  // namespace zg::tools
