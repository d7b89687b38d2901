#include "tools/run/run.h"

#include "tests/support/error_message.h"
#include "tools/options/fields.h"

namespace zg::testing {
namespace {

using tools::Facts;
using tools::RunSpec;
using tools::TrainOptions;

/// The options of flags and their values.
TrainOptions options_with(const std::vector<std::string>& words) {
  TrainOptions options;
  options.data.source = "sort";
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    flag_named(words[i].c_str(), options).set(words[i], words[i + 1]);
    options.given.insert(words[i]);
  }
  return options;
}

RunSpec resolved(TrainOptions options, const Facts& facts = {}) {
  tools::resolve_options(options, facts);
  return tools::resolve_run(options, facts, *models::sort_dataset(options.seed)).spec;
}

/// A checkpoint of 3 steps.
Facts saved_facts() {
  TrainOptions options = options_with({"--steps", "9", "--lr", "0.5", "--weight-decay", "0.25",
                                       "--n-layer", "1", "--n-head", "2", "--n-embd", "16"});
  Facts facts{.saved = resolved(options), .resumed = "saved/step_3", .steps_done = 3};
  facts.saved->samples = 192;
  return facts;
}

}  // namespace

TEST_CASE("resolve: a default-constructed RunSpec is what a checkpoint stores and reads") {
  const RunSpec spec = resolved(options_with({}));
  CHECK(spec.steps == RunSpec().steps);
  CHECK(spec.micro_batch == RunSpec().micro_batch);
  const std::string json = tools::to_json(spec);
  CHECK(tools::to_json(tools::settings_from_json(json, "c")) == json);
}

TEST_CASE("resolve: batch, ranks and length follow from flags and data") {
  RunSpec spec = resolved(options_with({"--ranks", "4", "--tensor-parallel", "2",
                                        "--train-batch-size", "24", "--batch-size", "3", "--steps",
                                        "7", "--n-layer", "1", "--n-head", "2", "--n-embd", "16"}));
  CHECK(spec.data_ranks == 2);
  CHECK(spec.accumulation == 4);
  CHECK(spec.steps == 7);
  CHECK(spec.model.vocabulary == 3);
  CHECK(spec.model.block_size == 11);
  CHECK(spec.model.width == 16);
  spec = resolved(options_with({"--train-samples", "100", "--batch-size", "8"}));
  CHECK(spec.steps == 12);
  CHECK(spec.train_samples == 100);
  spec = resolved(
      options_with({"--steps", "10", "--warmup-ratio", "0.25", "--lr-scheduler-type", "linear"}));
  CHECK(spec.schedule.warmup_num_steps == 3);
  CHECK(spec.schedule.total_num_steps == 10);
}

TEST_CASE("resolve: --limit-train-batches counts each rank's batches of an epoch") {
  const std::pair<std::vector<std::string>, int64_t> cases[] = {
      {{"--limit-train-batches", "3"}, 3},
      {{"--limit-train-batches", "3", "--epochs", "2"}, 6},
      {{"--limit-train-batches", "6", "--grad-accum", "2", "--ranks", "2"}, 3},
      // 0.001 of the epoch's 5000 batches of 2 samples.
      {{"--limit-train-batches", "0.001", "--epochs", "2"}, 10}};
  for (const auto& [flags, steps] : cases) {
    std::vector<std::string> words = {"--batch-size", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    CAPTURE(steps);
    CHECK(resolved(options_with(words)).steps == steps);
  }
  CHECK(message_of<ConfigError>([] {
          resolved(options_with({"--batch-size", "64", "--limit-train-batches", "0.001"}));
        }) ==
        "--limit-train-batches: expected a limit that leaves a batch or more, got none of the 156 "
        "batches of 64 that the 10000 samples of an epoch make; try a larger limit or a smaller "
        "--batch-size");
}

TEST_CASE("resolve: a resumed run keeps the batch settings that no flag sets") {
  TrainOptions first = options_with({"--batch-size", "2", "--grad-accum", "4"});
  const Facts facts{.saved = resolved(first), .resumed = "saved/step_1", .steps_done = 1};
  const struct {
    std::vector<std::string> flags;
    int64_t micro, accumulation;
  } cases[] = {{{}, 2, 4},
               {{"--grad-accum", "2"}, 2, 2},
               {{"--batch-size", "4"}, 4, 4},
               {{"--train-batch-size", "4"}, 2, 2},
               {{"--train-batch-size", "12", "--grad-accum", "3"}, 4, 3}};
  for (const auto& [flags, micro, accumulation] : cases) {
    const RunSpec spec = resolved(options_with(flags), facts);
    CAPTURE(spec.samples_per_step());
    CHECK(spec.micro_batch == micro);
    CHECK(spec.accumulation == accumulation);
  }
}

TEST_CASE("resolve: a flag comes before the checkpoint, and the checkpoint before a default") {
  const Facts facts = saved_facts();
  RunSpec spec = resolved(options_with({"--lr", "0.125"}), facts);
  CHECK(spec.schedule.rate == 0.125);
  CHECK(spec.engine.update.weight_decay == 0.25f);
  CHECK(spec.model.width == 16);
  CHECK(spec.steps == 9);
  CHECK(spec.samples == 192);
  CHECK(tools::check_resumed(*facts.saved, spec) ==
        std::vector<std::string>{"run.rate: 0.5 in the checkpoint, 0.125 now"});
  CHECK(message_of<ConfigError>([&] {
          resolved(options_with({"--steps", "2"}), facts);
        }) ==
        "--steps: saved/step_3 is already at step 3, got 2; --steps counts from step 0, also after "
        "--resume");
  Facts chats = facts;  // --val-data goes with conversations alone
  chats.saved->data.source = "chats.jsonl";
  chats.saved->data.validation_source = "held.jsonl";
  CHECK(resolved(options_with({}), chats).data.validation_source == "held.jsonl");
  CHECK(resolved(options_with({"--data", "own.txt"}), chats).data.validation_source == "");
  TrainOptions plan = options_with({});
  plan.only_planned = true;
  CHECK(resolved(plan, facts).steps == 6);
}

TEST_CASE(
    "resolve: the model of a folder comes before a default, and flags of its sizes are refused") {
  Facts facts;
  facts.decoder = models::HFModel{};
  facts.decoder->config = {
      .layers = 1, .heads = 2, .width = 32, .vocabulary = 50, .block_size = 24};
  TrainOptions options = options_with({"--from-hf", "folder", "--dropout", "0.5"});
  tools::resolve_options(options, facts);
  CHECK(options.model.width == 32);
  CHECK(options.model.dropout == 0.5f);
  CHECK(options.sources.at("--n-embd") == tools::Source::folder);
  CHECK(message_of<ConfigError>([&] {
          TrainOptions other = options_with({"--from-hf", "folder", "--n-embd", "16"});
          tools::resolve_options(other, facts);
        }) == "--n-embd: folder defines the model; leave the flag out");
}

TEST_CASE("resolve: flags that contradict each other are refused without reading a file") {
  const auto refusal = [](const std::vector<std::string>& words) {
    return message_of<Error>([&] { resolved(options_with(words)); });
  };
  CHECK(refusal({"--kernels", "k", "--trace", "t"}) ==
        "--kernels: a trace waits for each kernel, which changes the count; expected one of "
        "--kernels and --trace, got both");
  CHECK(refusal({"--warmup-steps", "3"}).starts_with("--warmup-steps: expected a --schedule"));
  CHECK(
      refusal({"--offload-param", "host"}).starts_with("--offload-param: expected --zero-stage 3"));
  CHECK(refusal({"--offload-param", "host", "--precision", "bf16"})
            .starts_with("--offload-param: expected --zero-stage 3"));
  CHECK(refusal({"--lora-alpha", "3"}).starts_with("--lora-alpha: expected --lora RANK with it"));
  CHECK(refusal({"--optimizer", "sgd", "--betas", "0.5,0.75"})
            .starts_with("--betas: the optimizer is sgd"));
}

}  // namespace zg::testing
