#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "tools/run/run.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct GenerateBench {
  TrainOptions train;  ///< the model
  int64_t prompt = 128, tokens = 128, batch = 1, repeats = 3;
  ValuesOptions values;
  std::string json;
};

struct Generated {
  models::GPTConfig model;
  int threads;
  double read = 0.0;  ///< bytes/s of measure_read_bandwidth(); accelerator: measure_copy_rate()
  double weight_bytes = 0.0;     ///< bytes of parameters that generating one token reads
  std::vector<double> prefills;  ///< seconds until the first token, sorted
  std::vector<double> tokens;    ///< seconds for each later token, sorted
};

struct Row {
  const char* name;
  const std::vector<double>& seconds;
  double tokens;   ///< tokens generated in one sample, over all rows of the batch
  double limit_s;  ///< 0: no limit is printed

  double rate() const { return tokens / bench::quantile(seconds, 0.5); }
  double percent_of_limit(double q) const { return 100.0 * limit_s / bench::quantile(seconds, q); }
};

std::vector<Row> rows_of(const GenerateBench& options, const Generated& measured) {
  const auto batch = static_cast<double>(options.batch);
  return {{"prefill", measured.prefills, batch * static_cast<double>(options.prompt), 0.0},
          {"decode", measured.tokens, batch, measured.weight_bytes / measured.read}};
}

bool parse(const std::vector<std::string>& arguments, GenerateBench& options) {
  TrainOptions& train = options.train;
  models::GPTConfig& model = train.model;
  train.model_type = "gpt2";
  model.block_size = 1024;
  model.vocabulary = 50257;
  const CommandLine line = {
      .usage = "zerograd bench generate [flags]",
      .summary =
          "Generates as zerograd generate does, from random weights, always the likeliest token:\n"
          "the prompt in one pass, then token by token with a cache of keys and values. Compares\n"
          "the time of a token with the time in which memory can read the weights.",
      .groups =
          {{"model",
            {flag_named("--model-type", train), flag_named("--n-layer", train),
             flag_named("--n-head", train), flag_named("--n-embd", train),
             integer_flag({"--block-size"}, model.block_size, "longest sequence", {2, nullptr}),
             integer_flag({"--vocab-size"}, model.vocabulary, "number of tokens in the vocabulary",
                          {1, nullptr}),
             flag_named("--position-embedding", train), flag_named("--tied", train),
             dtype_flag({"--precision"}, options.values.compute, "dtype of the computation [f32]"),
             dtype_flag({"--dtype"}, options.values.stored,
                        "dtype in which weights are stored [--precision]")}},
           {"bench",
            {integer_flag({"--prompt"}, options.prompt, "tokens of the prompt", {1, nullptr}),
             integer_flag({"--tokens"}, options.tokens, "tokens to generate", {2, nullptr}),
             integer_flag({"--batch-size"}, options.batch, "prompts in a batch", {1, nullptr}),
             integer_flag({"--repeats"}, options.repeats, "measurements, after one for warm-up",
                          {1, nullptr}),
             flag_named("--threads", train), flag_named("--device", train),
             path_flag({"--json"}, "F", options.json, PathUse::writes, "write results as JSON")}},
           unsupported_flags(/*one_rank=*/true)},
      .notes = "  zerograd bench generate --tied --precision bf16 --batch-size 8"};
  if (!parse(line, arguments, train.given)) return false;
  check_model(train);
  if (is_seq2seq(train))
    throw Unsupported(
        "--model-type: bench generate takes decoder-only models; try zerograd bench seq2seq");
  if (const int64_t own = own_vocabulary(train); own > 0 && !train.has("--vocab-size"))
    model.vocabulary = own;
  if (options.prompt + options.tokens > model.block_size)
    raise<ConfigError>(
        "--tokens: expected --prompt and --tokens to add up to at most {} (--block-size), got {} "
        "and {}",
        model.block_size, options.prompt, options.tokens);
  refuse_emulator(options.train.device_flags.type);
  check_writable("--json", options.json);
  return true;
}

/// Generates once and returns the seconds of each token.
std::vector<double> generate_once(const GenerateBench& options, const models::GPT& model,
                                  Values& values,
                                  const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<double> seconds;
  Clock::time_point last = Clock::now();
  models::generate(
      model, [&] { return values.inference_tape(); }, prompts, options.tokens, {.temperature = 0.0},
      [&](int32_t) {
        const Clock::time_point now = Clock::now();
        seconds.push_back(std::chrono::duration<double>(now - last).count());
        last = now;
      });
  return seconds;
}

Generated measure(const GenerateBench& options) {
  const auto tokens =
      random_tokens(options.train.model.vocabulary, options.train.model.block_size, false);
  TrainOptions sizes = options.train;
  sizes.given.insert("--dropout");
  sizes.model.dropout = 0.0f;
  const Device device =
      device_of_rank(options.train.device_flags.type, 0, options.train.device_flags.device);
  Generated measured{.model = model_config(sizes, *tokens), .threads = device.traits().threads};
  const auto measure_read = [&] {  // measured twice, because other processes on this machine vary
    const Device own =
        device_of_rank(options.train.device_flags.type, 0, options.train.device_flags.device);
    measured.read =
        std::max(measured.read, own.type() == Device::Type::cpu ? bench::measure_read_bandwidth(own)
                                                                : bench::measure_copy_rate(own));
  };
  measure_read();
  ParameterStore store;
  const models::GPT model(store, measured.model);
  Values values(store, initial_weights(store, zero::Config().seed), device, options.values);
  const models::GPTConfig& config = measured.model;
  // A token reads one row of each embedding table; if the head is tied, it reads all of the token
  // embedding.
  const int64_t places = config.position == models::Position::learned ? config.block_size : 0;
  const int64_t looked_up = config.width * (places + (config.tied ? 0 : config.vocabulary));
  measured.weight_bytes = static_cast<double>(store.numel() - looked_up) *
                          static_cast<double>(values.bytes()) / static_cast<double>(store.numel());
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t row = 0; row < options.batch; ++row) {
    std::vector<int32_t> ids(static_cast<size_t>(config.block_size));
    std::vector<int32_t> targets(ids.size());
    tokens->sample(models::Split::train, row, ids.data(), targets.data());
    ids.resize(static_cast<size_t>(options.prompt));
    prompts.push_back(std::move(ids));
  }
  generate_once(options, model, values, prompts);
  for (int64_t i = 0; i < options.repeats; ++i) {
    const std::vector<double> seconds = generate_once(options, model, values, prompts);
    measured.prefills.push_back(seconds.front());
    measured.tokens.insert(measured.tokens.end(), seconds.begin() + 1, seconds.end());
  }
  measure_read();
  std::ranges::sort(measured.prefills);
  std::ranges::sort(measured.tokens);
  return measured;
}

void print(const GenerateBench& options, const Generated& measured) {
  const models::GPTConfig& model = measured.model;
  const std::string shape = fmt::format(
      "{} blocks, width {}, {} tokens{}; B{}, prompt {}, {} more", model.layers, model.width,
      model.vocabulary, model.tied ? ", tied" : "", options.batch, options.prompt, options.tokens);
  const char* dtype = name_of(options.values.stored.value_or(options.values.compute));
  std::printf(
      "| case | shape | dtype | threads | median ms | p10 - p90 | tokens/s | GB/s | %% of limit | "
      "best |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
      "| limit: %s | | | %d | | | | %.1f | | |\n",
      options.train.device_flags.type == Device::Type::cpu ? "read" : "memory, a copy",
      measured.threads, 1e-9 * measured.read);
  for (const Row& row : rows_of(options, measured)) {
    const auto ms = [&](double q) { return 1e3 * bench::quantile(row.seconds, q); };
    const bool limited = row.limit_s > 0.0;
    const auto percent = [&](double q) {
      return limited ? fmt::format("{:.1f} %", row.percent_of_limit(q)) : std::string();
    };
    const std::string gigabytes =
        limited ? fmt::format("{:.1f}", 1e-6 * measured.weight_bytes / ms(0.5)) : std::string();
    std::printf("| %s | %s | %s | %d | %.2f | %.2f - %.2f | %.1f | %s | %s | %s |\n", row.name,
                shape.c_str(), dtype, measured.threads, ms(0.5), ms(0.1), ms(0.9), row.rate(),
                gigabytes.c_str(), percent(0.5).c_str(), percent(0.0).c_str());
  }
  std::printf("\na token reads %.1f MB of weights\n", 1e-6 * measured.weight_bytes);
}

Json json_of(const GenerateBench& options, const Generated& measured) {
  Json rows = Json::array();
  for (const Row& row : rows_of(options, measured)) {
    const bool limited = row.limit_s > 0.0;
    rows.push_back({{"case", row.name},
                    {"samples", row.seconds.size()},
                    {"median_s", bench::quantile(row.seconds, 0.5)},
                    {"p10_s", bench::quantile(row.seconds, 0.1)},
                    {"p90_s", bench::quantile(row.seconds, 0.9)},
                    {"best_s", row.seconds.front()},
                    {"tokens", row.tokens},
                    {"tokens_per_s", row.rate()},
                    {"percent_of_limit", limited ? Json(row.percent_of_limit(0.5)) : Json()}});
  }
  return {{"schema", 1},
          {"bench", "generate"},
          {"machine", bench::machine_json(options.train.device_flags.type)},
          {"model", model_json(measured.model)},
          {"precision", name_of(options.values.compute)},
          {"dtype", name_of(options.values.stored.value_or(options.values.compute))},
          {"batch", options.batch},
          {"prompt", options.prompt},
          {"tokens", options.tokens},
          {"threads", measured.threads},
          {"limits", {{"read", measured.read}}},
          {"weight_bytes", measured.weight_bytes},
          {"rows", rows}};
}

}  // namespace

int bench_generate(const std::vector<std::string>& arguments) {
  GenerateBench options;
  if (!parse(arguments, options)) return 0;
  const Generated measured = measure(options);
  print(options, measured);
  if (!options.json.empty()) replace_text(options.json, json_of(options, measured).dump(1));
  return 0;
}

}  // namespace zg::tools
