#include <regex>
#include <tuple>

#include "tests/support/temporary_folder.h"
#include "tests/tools/config/config_matrix.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/deepspeed/deepspeed.h"
#include "zerograd/zero/trainer.h"

namespace zg::testing {
namespace {

const std::string config_run =
    "train --data sort --model-type gpt-nano --score-samples 0 --log-interval 0 --threads 1 ";

/// A program of two ranks that trains the command's model on its data with a config for 6 steps.
std::string hash_of_program(const std::string& path) {
  const zero::DeepSpeedConfig config = zero::read_deepspeed_config(
      path, {.program = {.schedule = {.rate = 5e-4, .total_num_steps = 6}}});
  std::string hash;
  const auto train = [&](Communicator& ranks, const Device& device) {
    const auto data = models::sort_dataset(/*seed=*/3407);
    models::GPTConfig sizes = models::GPTConfig::preset("gpt-nano");
    sizes.vocabulary = data->vocabulary();
    sizes.block_size = data->block_size();
    ParameterStore store;
    const models::GPT model(store, sizes);
    zero::Config own = config.engine;
    zero::fill_buckets(config.buckets, sizes.width, own);
    zero::Engine engine(store, ranks, device, own);
    const zero::BatchSize batch = zero::solve_batch_size(config.batch, ranks.size());
    zero::Trainer trainer(
        engine,
        {.micro_batch = batch.micro,
         .accumulation = batch.accumulation,
         .steps = 6,
         .schedule = config.schedule},
        {.batch =
             [&](const zero::MicroBatch& b) {
               const models::Batch tokens =
                   data->batch(models::Split::train, b.first_sample, b.samples, device);
               return std::vector<Tensor>{tokens.ids, tokens.targets};
             },
         .forward =
             [&](Tape& tape, const zero::MicroBatch& b) {
               return model.loss(tape, b.tensors[0], b.tensors[1],
                                 {.seed = 3407, .step = b.step, .first_sample = b.first_sample});
             }});
    trainer.run();
    const std::string whole = engine.parameter_hash();
    if (ranks.rank() == 0) hash = whole;
  };
  run_local(2, train, {.device = {.threads = 1, .swap = config.swap}});
  return hash;
}

}  // namespace

TEST_CASE("a program that calls read_deepspeed_config trains to the same bits as the command") {
  const TemporaryFolder folder;
  const std::string swapped = folder / "nvme.json";
  write_file(swapped,
             R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
  "optimizer": {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false}},
  "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.001, "cycle_max_lr": 0.02,
    "cycle_first_step_size": 2}},
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 3000,
    "offload_param": {"device": "nvme", "nvme_path": ")" +
                 folder.path() + R"("}, "offload_optimizer": {"device": "nvme", "nvme_path": ")" +
                 folder.path() + R"("}}})");
  std::string before;
  for (const std::string& path :
       {std::string(ZG_CONFIGS) + "fp16.json", std::string(ZG_CONFIGS) + "zero3.json", swapped}) {
    CAPTURE(path);
    const Outcome outcome = zerograd(config_run + "--ranks 2 --steps 6 --config " + path);
    CAPTURE(outcome.error);
    const std::string hash = line_after(outcome.out, "param_hash ");
    CHECK(hash.size() == 32);
    CHECK(hash != before);
    CHECK(hash_of_program(path) == hash);
    before = hash;
  }
}

TEST_CASE(
    "config: each config of tools/configs gives the precision, stage and batch in its table") {
  const struct {
    const char *name, *precision, *stage;
    int batch;
  } configs[] = {{"zero0", "f32", "0", 16},
                 {"zero1", "bf16", "1", 16},
                 {"zero1_ac", "bf16", "1", 16},
                 {"zero2", "bf16", "2", 16},
                 {"zero3", "bf16", "3", 16},
                 {"fp16", "f16", "2", 32},
                 {"accelerate_zero2", "f16", "2", 128},
                 {"accelerate_zero3", "f16", "3", 128},
                 {"accelerate_zero3_offload", "f16", "3", 128}};
  for (const auto& [name, precision, stage, batch] : configs) {
    CAPTURE(name);
    Configured run = configured(std::string("--ranks 2 --deepspeed --deepspeed_config ") +
                                ZG_CONFIGS + name + ".json");
    checked(run.outcome);
    CHECK(run.seen["compute"] == precision);
    CHECK(run.seen["stage"] == stage);
    CHECK(std::stoi(run.seen["micro_batch"]) * std::stoi(run.seen["accumulation"]) * 2 == batch);
  }
}

TEST_CASE("a config and equal flags give the same run") {
  const std::string flags =
      "--ranks 2 --batch-size 8 --precision bf16 --zero-stage 2 --overlap-comm on --lr 1e-3 "
      "--betas "
      "0.8,0.999 --weight-decay 3e-7 --schedule WarmupLR --warmup-steps 1000 --clip 1 "
      "--reduce-bucket-size 5e7";
  Seen by_flags = configured(flags).seen;
  by_flags["allgather_bucket_size"] = "50000000";  // keys without a flag
  by_flags["steps_per_print"] = "2000";
  CHECK(surprise("same", configured(std::string("--ranks 2 --config ") + ZG_CONFIGS + "zero2.json"),
                 by_flags) == "");
}

TEST_CASE("config: --config accepts a config in base64, as launchers pass it") {
  // {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
  const std::string text =
      "eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgIm9wdGltaXplciI6IHsidHlwZSI6ICJBZGFtVyIsICJwYXJhbXMiOiB7Imxy"
      "IjogMC4wMX19fQ==";
  CHECK(configured("--config " + text).seen ==
        configured("--batch-size 4 --lr 0.01 --betas 0.9,0.999 --weight-decay 0").seen);
  // {"train_batch_size": 4, "foo": 1}: DeepSpeed ignores the key. Places count in the decoded text.
  CHECK(contains(configured("--config eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgImZvbyI6IDF9").outcome.error,
                 "--config:1:25: foo: accepted without effect"));
  // {"train_batch_size": 4, "???~~~": 1}: - and _ are the digits 62 and 63.
  CHECK(contains(
      configured("--config eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgIj8_P35-fiI6IDF9").outcome.error,
      "--config:1:25: ???~~~: "));
  checked(configured("--config eyJ0cmFpbl9iX").outcome, 5);
}

TEST_CASE("config: a wrong config ends a run before its first step with exit status 2, 5 or 6") {
  const TemporaryFolder folder;
  const std::string path = folder / "ds.json";
  const struct {
    const char *text, *flags;
    int status;
    const char* part;
  } cases[] = {
      {"{\"train_batch_size\": 4}", "--ranks 8", 2,
       ":1:2: train_batch_size: expected train_batch_size = "},
      {"{\"train_batch_size\": 4}", "--ranks 8", 2,
       "Micro batch size per gpu: 0 has to be greater than 0"},
      {"{}", "", 2, "needs to be provided"},
      {"{}", "--batch-size 4", 0, ""},
      {"{\"train_batch_size\": 4, \"steps_per_prin\": 1}", "", 2, "did you mean steps_per_print"},
      {"{\"train_batch_size\": 4, \"foo\": 1}", "--lenient", 0, "foo: "},
      {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Lamb\"}}", "", 6, "Lamb"}};
  for (const auto& [text, flags, status, part] : cases) {
    CAPTURE(text);
    write_file(path, text);
    CHECK(contains(checked(configured("--config " + path + " " + flags).outcome, status).error,
                   part));
  }
  const Outcome end = checked(zerograd(config_run + "--steps 1 --config " + path), 6);
  CHECK(end.out.empty());
  checked(configured("--config " + (folder / "none.json")).outcome, 5);
  checked(configured("--compat 0.16").outcome, 2);
  checked(configured("--lenient").outcome, 2);
}

TEST_CASE(
    "DeepSpeed's progress lines come every steps_per_print steps, in exactly DeepSpeed's format") {
  const TemporaryFolder folder;
  write_file(folder / "ds.json",
             "{train_batch_size: 8, gradient_accumulation_steps: 2, steps_per_print: 2, optimizer: "
             "{type: \"Adam\", params: {lr: 0.001, betas: [0.8, 0.999]}}, scheduler: {type: "
             "\"WarmupLR\", params: {warmup_num_steps: 4, warmup_type: \"linear\"}}}");
  const Outcome outcome =
      checked(zerograd(config_run + "--steps 5 --config " + (folder / "ds.json")));
  const std::string stamp =
      "\\[20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3}\\] \\[INFO\\] ";
  const std::string number = "[0-9]+\\.[0-9]+(e[+-][0-9]{2,3})?";
  const auto progress = [&](const char* step, const char* rate) {
    return stamp + "\\[logging\\.py:96:log_dist\\] \\[Rank 0\\] step=" + step +
           ", skipped=0, lr=\\[" + rate + "\\], mom=\\[\\[0\\.8, 0\\.999\\]\\]\n";
  };
  const std::regex expected("(.|\n)*\n" + progress("2", "0\\.00025") + progress("4", "0\\.00075") +
                            stamp +
                            "\\[timer\\.py:260:stop\\] epoch=0/micro_step=8/global_step=4, "
                            "RunningAvgSamplesPerSec=" +
                            number + ", CurrSamplesPerSec=" + number + ", MemAllocated=" + number +
                            "GB, MaxMemAllocated=" + number + "GB\nparam_hash [0-9a-f]{32}\n");
  CAPTURE(outcome.out);
  CHECK(std::regex_match(outcome.out, expected));
}

TEST_CASE("OneCycle sets rate and momentum for each step") {
  const TemporaryFolder folder;
  write_file(folder / "ds.json",
             "{train_batch_size: 8, steps_per_print: 1, optimizer: {type: \"Adam\"}, scheduler: "
             "{type: \"OneCycle\", params: {cycle_min_lr: 0.001, cycle_max_lr: 0.005, "
             "cycle_first_step_size: 4, cycle_min_mom: 0.5, cycle_max_mom: 0.75}}}");
  const Outcome outcome = zerograd(config_run + "--steps 2 --config " + (folder / "ds.json"));
  INFO("error ", outcome.error, ", out ", outcome.out);
  CHECK(contains(outcome.error, "learning rate: OneCycle, from 0.001 to 0.005 in 4 steps"));
  for (const char* line : {"step=1, skipped=0, lr=[0.002], mom=[[0.6875, 0.99]]\n",
                           "step=2, skipped=0, lr=[0.003], mom=[[0.625, 0.99]]\n"})
    CHECK(contains(outcome.out, line));
  // Optimizers without betas have the rate alone, and the key does not count as --betas.
  write_file(folder / "ds.json",
             "{train_batch_size: 8, steps_per_print: 1, optimizer: {type: \"SGD\", params: "
             "{momentum: 0.5}}, scheduler: {type: \"OneCycle\", params: {cycle_min_lr: 0.001, "
             "cycle_max_lr: 0.005, cycle_first_step_size: 4, cycle_momentum: true}}, "
             "zero_optimization: {stage: 2, offload_param: {device: \"cpu\"}}}");
  for (const std::string flag : {"", " --optimizer adafactor"}) {
    const Outcome plain =
        checked(zerograd(config_run + "--steps 2 --config " + (folder / "ds.json") + flag));
    CHECK(contains(plain.error, flag.empty() ? "(SGD has no betas to cycle)"
                                             : "(Adafactor has no betas to cycle)"));
    CHECK(contains(plain.error, "(parameters are offloaded at stage 3 only)"));
    CHECK(contains(plain.out, "step=2, skipped=0, lr=[0.003]"));
  }
}

TEST_CASE("a run with a config is resumed with or without the config to the same bits") {
  const TemporaryFolder folder;
  const std::string some =
      "{train_batch_size: 8, fp16: {enabled: true, initial_scale_power: 8, loss_scale_window: 2}";
  write_file(folder / "some.json", some + "}");
  write_file(folder / "ds.json",
             some +
                 ", optimizer: {type: \"AdamW\", params: {lr: 0.01, eps: 1e-4}}, scheduler: {type: "
                 "\"WarmupDecayLR\", params: {warmup_min_lr: 1e-4, warmup_max_lr: 0.01, "
                 "warmup_num_steps: 3, total_num_steps: 20, warmup_type: \"linear\"}}, "
                 "zero_optimization: {stage: 2, offload_optimizer: {device: \"cpu\"}}}");
  const std::string config = "--config " + (folder / "ds.json");
  const Outcome whole = checked(zerograd(config_run + "--steps 8 " + config));
  const std::string save = " --save " + (folder / "saved");
  checked(zerograd(config_run + "--steps 4 " + config + save));
  const std::string resume =
      "train --score-samples 0 --log-interval 0 --threads 1 --steps 8 "
      "--resume " +
      (folder / "saved");
  // A block that a config leaves out is the checkpoint's.
  const std::string partly = " --config " + (folder / "some.json");
  for (const std::string& flags : {std::string(), " " + config, partly}) {
    const Outcome rest = zerograd(resume + flags);
    INFO("flags ", flags, ", error ", rest.error);
    CHECK(line_after(rest.out, "param_hash ") == line_after(whole.out, "param_hash "));
  }
  const std::string explained = checked(called(resume + partly + " --explain-settings")).out;
  CAPTURE(explained);
  for (const auto& [name, value, source] : {std::tuple{"--offload-optimizer", "host", "checkpoint"},
                                            {"--adam-eps", "0.0001", "checkpoint"},
                                            {"run.warmup_min_rate", "0.0001", "checkpoint"},
                                            {"--initial-scale-power", "8", "config"},
                                            {"--metrics", "-", "default"}})
    CHECK(contains(explained, fmt::format("  {:<30}  {:<24}  {}\n", name, value, source)));
}

}  // namespace zg::testing
