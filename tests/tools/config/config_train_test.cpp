#include <doctest/doctest.h>

#include <regex>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/deepspeed/deepspeed.h"
#include "zerograd/zero/trainer.h"

namespace zg::testing {
namespace {

const std::string config_run =
    "train --data sort --model-type gpt-nano --score-samples 0 --log-interval 0 --threads 1 ";

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

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
       {std::string(ZG_CONFIGS) + "zero2.json", std::string(ZG_CONFIGS) + "fp16.json",
        std::string(ZG_CONFIGS) + "accelerate_zero3.json", swapped}) {
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

TEST_CASE("every config of tools/configs trains") {
  const struct {
    const char *name, *precision;
    int stage, batch;
  } configs[] = {{"zero0", "f32", 0, 16},
                 {"zero1", "bf16", 1, 16},
                 {"zero1_ac", "bf16", 1, 16},
                 {"zero2", "bf16", 2, 16},
                 {"zero3", "bf16", 3, 16},
                 {"fp16", "f16", 2, 32},
                 {"accelerate_zero2", "f16", 2, 128},
                 {"accelerate_zero3", "f16", 3, 128},
                 {"accelerate_zero3_offload", "f16", 3, 128}};
  for (const auto& [name, precision, stage, batch] : configs) {
    CAPTURE(name);
    const std::string config =
        std::string(" --deepspeed --deepspeed_config ") + ZG_CONFIGS + name + ".json";
    // Their warm-ups hold the rate at 0 for two steps, and overflows at 2^16 may skip two more.
    const Outcome outcome = zerograd(config_run + "--ranks 2 --steps 6" + config);
    const Outcome initial = zerograd(config_run + "--ranks 2 --steps 0" + config);
    CAPTURE(outcome.error);
    CHECK(outcome.status == 0);
    CHECK(
        contains(outcome.error, std::string(precision) + ", ZeRO stage " + std::to_string(stage)));
    CHECK(contains(outcome.error, "batch " + std::to_string(batch) + " = "));
    const std::string before = line_after(initial.out, "param_hash ");
    CHECK(before.size() == 32);
    CHECK(line_after(outcome.out, "param_hash ").size() == 32);
    CHECK(line_after(outcome.out, "param_hash ") != before);
  }
}

TEST_CASE("plan shows the same offload for a config and for flags, and flags override the config") {
  const TemporaryFolder folder;
  write_file(folder / "ds.json",
             "{train_batch_size: 4, bf16: {enabled: true}, zero_optimization: {stage: 3, "
             "stage3_param_persistence_threshold: 0, offload_optimizer: {device: \"cpu\"}, "
             "offload_param: {device: \"cpu\"}}, activation_checkpointing: {cpu_checkpointing: "
             "true}}");
  const std::string plan = "plan --data sort --activation-checkpoint --zero-stage 3 ";
  const std::string config = "--config " + (folder / "ds.json");
  const auto lines = [&](const std::string& flags) { return checked(zerograd(plan + flags)).out; };
  const std::string same = "--batch-size 4 --precision bf16 --param-persistence-threshold 0 ";
  CHECK(lines(config) == lines(same + "--cpu-offload --offload-activations host"));
  CHECK(lines(config + " --offload-activations none") == lines(same + "--cpu-offload"));
  CHECK(lines(config) != lines(same));
  const Outcome none = zerograd(
      plan + config + " --offload-optimizer none --offload-param none --offload-activations none");
  CHECK(none.out == zerograd(plan + same).out);
  CHECK(contains(none.error, "zero_optimization.offload_optimizer.device (--offload-optimizer)"));
  CHECK(contains(none.error, "zero_optimization.offload_param.device (--offload-param)"));
}

TEST_CASE("a config and equal flags give the same bits in train and the same output of plan") {
  const std::string flags =
      "--ranks 2 --steps 4 --batch-size 8 --precision bf16 --zero-stage 2 --lr 1e-3 --betas "
      "0.8,0.999 --weight-decay 3e-7 --schedule WarmupLR --warmup-steps 1000 --clip 1 "
      "--reduce-bucket-size 5e7";
  const std::string config =
      std::string("--ranks 2 --steps 4 --config ") + ZG_CONFIGS + "zero2.json";
  const Outcome by_flags = checked(zerograd(config_run + flags)),
                by_config = zerograd(config_run + config);
  CHECK(line_after(by_config.out, "param_hash ") == line_after(by_flags.out, "param_hash "));
  const Outcome plan = checked(zerograd("plan --data sort --threads 1 " + config));
  CHECK(plan.out == zerograd("plan --data sort --threads 1 --overlap-comm on " + flags).out);
}

TEST_CASE("a flag overrides a config's key, and one line says so") {
  const std::string config = std::string("--steps 1 --config ") + ZG_CONFIGS + "zero1.json ";
  const Outcome outcome = checked(zerograd(
      config_run + config + "--lr 1e-2 --zero-stage 3 --train-batch-size 8 --log-interval 1"));
  CHECK(count(outcome.error, "overridden by flags") == 1);
  for (const char* part :
       {"zero1.json: overridden by flags: train_batch_size (--train-batch-size), "
        "optimizer.params.lr (--lr), scheduler.params.warmup_max_lr (--lr), "
        "zero_optimization.stage (--zero-stage)\n",
        "ZeRO stage 3", "batch 8 = ", "WarmupLR, 0.01 after"})
    CHECK(contains(outcome.error, part));
}

TEST_CASE("a resumed run keeps its offload unless it is told otherwise") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved", tail = " --steps 2 --score-samples 0 --resume " + save;
  const Outcome first =
      zerograd(config_run + "--steps 1 --zero-stage 3 --cpu-offload --save " + save);
  CHECK(contains(first.error, "ZeRO stage 3, parameters on the host, gradients on the host"));
  CHECK(contains(zerograd("train" + tail).error, "optimizer on the host"));
  const Outcome none = zerograd("train --zero-stage 0 --offload-optimizer none" + tail);
  CHECK(contains(none.error, "ZeRO stage 0, gradients on the host\n"));
  CHECK(contains(none.error,
                 "changed: run.offload_optimizer: \"host\" in the checkpoint, \"device\" now"));
  CHECK(line_after(none.out, "param_hash ") ==
        line_after(zerograd(config_run + "--steps 2").out, "param_hash "));
  // Sixteen samples a step on one rank are eight on each of two.
  checked(zerograd("train --ranks 2" + tail));
}

TEST_CASE("config: --config accepts a config in base64, as launchers pass it") {
  // {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
  const std::string text =
      "eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgIm9wdGltaXplciI6IHsidHlwZSI6ICJBZGFtVyIsICJwYXJhbXMiOiB7Imxy"
      "IjogMC4wMX19fQ==";
  const Outcome outcome = checked(zerograd(config_run + "--steps 1 --config " + text));
  CHECK(line_after(outcome.out, "param_hash ") ==
        line_after(zerograd(config_run + "--steps 1 --batch-size 4 --lr 0.01 --betas 0.9,0.999 "
                                         "--weight-decay 0")
                       .out,
                   "param_hash "));
  // {"train_batch_size": 4, "foo": 1}: places count in the decoded text.
  // {"train_batch_size": 4, "foo": 1}: DeepSpeed ignores the key.
  const Outcome wrong = checked(
      zerograd(config_run + "--steps 1 --config eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgImZvbyI6IDF9"));
  CHECK(contains(wrong.error, "--config:1:25: foo: accepted without effect"));
  // {"train_batch_size": 4, "???~~~": 1}: - and _ are the digits 62 and 63.
  CHECK(contains(
      zerograd(config_run + "--steps 1 --config eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgIj8_P35-fiI6IDF9")
          .error,
      "--config:1:25: ???~~~: "));
  checked(zerograd(config_run + "--steps 1 --config eyJ0cmFpbl9iX"), 5);
}

TEST_CASE("config: a wrong config ends a run before its first step with exit status 2, 5 or 6") {
  const TemporaryFolder folder;
  const std::string path = folder / "ds.json";
  const auto outcome = [&](const std::string& text, const std::string& flags = "") {
    write_file(path, text);
    return zerograd(config_run + "--steps 1 --config " + path + " " + flags);
  };
  Outcome end = checked(outcome("{\"train_batch_size\": 4}", "--ranks 8"), 2);
  CHECK(contains(end.error, "error: ConfigError: " + path + ":1:2: train_batch_size: "));
  CHECK(contains(end.error, "Micro batch size per gpu: 0 has to be greater than 0"));
  end = outcome(
      "{\"train_batch_size\": 4, \"zero_optimization\": {\"offload_param\": {\"device\": \"");
  CHECK(end.status == 2);
  CHECK(contains(end.error, path + ":1:75: zero_optimization.offload_param.device: "));
  CHECK(end.out.empty());
  CHECK(outcome("{}").status == 2);
  CHECK(outcome("{}", "--batch-size 4").status == 0);
  CHECK(outcome("{\"train_batch_size\": 4, \"steps_per_prin\": 1}").status == 2);
  CHECK(outcome("{\"train_batch_size\": 4, \"foo\": 1}", "--lenient").status == 0);
  CHECK(outcome("{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Lamb\"}}").status == 6);
  checked(zerograd(config_run + "--config " + (folder / "none.json")), 5);
  checked(zerograd(config_run + "--steps 1 --compat 0.16"), 2);
  checked(zerograd(config_run + "--steps 1 --lenient"), 2);
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

TEST_CASE("OneCycle sets rate and momentum for each step, and a resumed run continues the cycle") {
  const TemporaryFolder folder;
  write_file(folder / "ds.json",
             "{train_batch_size: 8, steps_per_print: 1, optimizer: {type: \"Adam\"}, scheduler: "
             "{type: \"OneCycle\", params: {cycle_min_lr: 0.001, cycle_max_lr: 0.005, "
             "cycle_first_step_size: 4, cycle_min_mom: 0.5, cycle_max_mom: 0.75}}}");
  const std::string save = " --save " + (folder / "saved");
  const Outcome outcome =
      zerograd(config_run + "--steps 3 --config " + (folder / "ds.json") + save);
  INFO("error ", outcome.error, ", out ", outcome.out);
  CHECK(contains(outcome.error, "learning rate: OneCycle, from 0.001 to 0.005 in 4 steps"));
  for (const char* line : {"step=1, skipped=0, lr=[0.002], mom=[[0.6875, 0.99]]\n",
                           "step=2, skipped=0, lr=[0.003], mom=[[0.625, 0.99]]\n"})
    CHECK(contains(outcome.out, line));
  const Outcome rest =
      zerograd("train --score-samples 0 --log-interval 0 --threads 1 --steps 6 --resume " +
               (folder / "saved"));
  const Outcome whole = zerograd(config_run + "--steps 6 --config " + (folder / "ds.json"));
  CHECK(line_after(rest.out, "param_hash ") == line_after(whole.out, "param_hash "));
}

TEST_CASE("a run with a config is resumed with or without the config to the same bits") {
  const TemporaryFolder folder;
  write_file(folder / "ds.json",
             "{train_batch_size: 8, optimizer: {type: \"AdamW\", params: {lr: 0.01, eps: 1e-4}}, "
             "scheduler: {type: \"WarmupDecayLR\", params: {warmup_min_lr: 1e-4, warmup_max_lr: "
             "0.01, warmup_num_steps: 3, total_num_steps: 20, warmup_type: \"linear\"}}, fp16: "
             "{enabled: true, initial_scale_power: 8, loss_scale_window: 2}}");
  const std::string config = "--config " + (folder / "ds.json");
  const Outcome whole = checked(zerograd(config_run + "--steps 8 " + config));
  const std::string save = " --save " + (folder / "saved");
  checked(zerograd(config_run + "--steps 4 " + config + save));
  const std::string resume =
      "train --score-samples 0 --log-interval 0 --threads 1 --steps 8 "
      "--resume " +
      (folder / "saved");
  for (const std::string& flags : {std::string(), " " + config}) {
    const Outcome rest = zerograd(resume + flags);
    INFO("flags ", flags, ", error ", rest.error);
    CHECK(line_after(rest.out, "param_hash ") == line_after(whole.out, "param_hash "));
  }
}

}  // namespace zg::testing
