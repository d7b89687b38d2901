#include "tests/support/temporary_folder.h"
#include "tests/zero/deepspeed/deepspeed_case.h"
#include "zerograd/runtime/error.h"

// DeepSpeed's config as a program reads it.
namespace zg::testing {
namespace {

using zero::DeepSpeedConfig;
using zero::read_deepspeed_config;
using Field = zero::DeepSpeedField;

const std::string batch_of_8 = "{train_batch_size: 8, ";

}  // namespace

TEST_CASE("deepspeed: a section's defaults are those of the version that is asked for") {
  const auto engine = [&](const std::string& text, zero::DeepSpeedVersion version) {
    return load(batch_of_8 + text + "}", {.version = version}).settings.engine;
  };
  using enum zero::DeepSpeedVersion;
  CHECK(engine("", v0_19).clip_norm == 1.0f);
  CHECK(engine("", v0_16).clip_norm == 0.0f);
  CHECK(engine("gradient_clipping: 0.5", v0_16).clip_norm == 0.5f);
  const DeepSpeedConfig adam = load(batch_of_8 + "optimizer: {type: \"adamw\"}}").settings;
  CHECK(adam.engine.update.beta1 == 0.9f);
  CHECK(adam.engine.update.beta2 == 0.999f);
  CHECK(adam.engine.update.weight_decay == 0.0f);
  CHECK(adam.schedule.rate == 1e-3);
  // Without the block the optimizer is the program's own.
  CHECK(engine("", v0_19).update.beta2 == 0.95f);
  const DeepSpeedConfig warmup =
      load(batch_of_8 +
           "optimizer: {type: \"Adam\", params: {lr: 0.5}}, scheduler: {type: \"WarmupLR\", "
           "params: {}}}")
          .settings;
  CHECK(warmup.schedule.rate == 0.5);  // warmup_max_lr: the optimizer's
  CHECK(warmup.schedule.warmup_num_steps == 1000);
  CHECK(warmup.schedule.warmup_type == zero::WarmupType::log);
}

TEST_CASE("deepspeed: auto is filled from the program and the model, as accelerate fills it") {
  const std::string text =
      "{train_batch_size: \"auto\", train_micro_batch_size_per_gpu: \"auto\", "
      "gradient_clipping: \"auto\", optimizer: {type: \"AdamW\", params: {lr: \"auto\", "
      "weight_decay: \"auto\"}}, scheduler: {type: \"WarmupDecayLR\", params: {warmup_min_lr: "
      "\"auto\", warmup_max_lr: \"auto\", warmup_num_steps: \"auto\", total_num_steps: \"auto\"}}, "
      "zero_optimization: {stage: 3, reduce_bucket_size: \"auto\", stage3_prefetch_bucket_size: "
      "\"auto\", stage3_param_persistence_threshold: \"auto\"}}";
  const DeepSpeedConfig program = {
      .engine = {.update = {.weight_decay = 0.25f}, .clip_norm = 0.75f},
      .schedule = {.rate = 0.125, .warmup_num_steps = 7, .total_num_steps = 70}};
  const DeepSpeedConfig filled = load(text, {.program = program}).settings;
  CHECK(filled.batch.micro == 64);
  CHECK(!filled.batch.train);
  CHECK(filled.engine.clip_norm == 0.75f);
  CHECK(filled.schedule.rate == 0.125);
  CHECK(filled.schedule.warmup_num_steps == 7);
  CHECK(filled.schedule.total_num_steps == 70);
  CHECK(filled.engine.update.weight_decay == 0.25f);
  CHECK(filled.engine.update.beta2 == 0.999f);  // not "auto": DeepSpeed's default
  CHECK(filled.buckets.reduce_per_square == 1.0);
  CHECK(filled.buckets.prefetch_per_square == 0.9);
  CHECK(filled.buckets.persistence_per_width == 10.0);
  zero::Config engine = filled.engine;
  zero::fill_buckets(filled.buckets, 100, engine);
  CHECK(engine.reduce_bucket_size == 10'000);
  CHECK(engine.prefetch_bucket_size == 9'000);
  CHECK(engine.param_persistence_threshold == 1'000);
  CHECK(engine.allgather_bucket_size == zero::Config{}.allgather_bucket_size);

  DeepSpeedConfig with_batch = program;
  with_batch.batch.micro = 3;
  const DeepSpeedConfig decided =
      load(text, {.program = with_batch, .decided = {Field::reduce_bucket_size}}).settings;
  CHECK(decided.batch.micro == 3);
  CHECK(decided.buckets.reduce_per_square == 0.0);
  CHECK(decided.overridden.empty());
}

TEST_CASE(
    "deepspeed: values that the program decides win over the config, and overridden keys are "
    "listed") {
  const DeepSpeedConfig config = read_deepspeed_config(
      batch_of_8 +
          "optimizer: {type: \"Adam\", params: {lr: 0.5, betas: [0.5, 0.75]}}, scheduler: {type: "
          "\"OneCycle\", params: {cycle_min_lr: 0.25, cycle_max_lr: 1}}, fp16: {enabled: true, "
          "loss_scale: 8}, zero_optimization: {stage: 2}}",
      {.program = {.engine = {.stage = 1, .update = {.beta2 = 0.875f}},
                   .schedule = {.rate = 0.125}},
       .decided = {Field::rate, Field::beta2, Field::stage, Field::initial_scale_power}});
  using Overridden = DeepSpeedConfig::Overridden;
  CHECK(config.overridden ==
        std::vector<Overridden>{{"optimizer.params.lr", Field::rate},
                                {"optimizer.params.betas", Field::beta2},
                                {"scheduler.params.cycle_max_lr", Field::rate},
                                {"fp16.loss_scale", Field::initial_scale_power},
                                {"zero_optimization.stage", Field::stage}});
  CHECK(config.schedule.rate == 0.125);
  CHECK(config.schedule.kind == zero::ScheduleKind::one_cycle);
  CHECK(!config.schedule.one_cycle.cycle_momentum);  // the program's betas stay
  CHECK(config.engine.update.beta1 == 0.5f);
  CHECK(config.engine.update.beta2 == 0.875f);
  CHECK(config.engine.stage == 1);
  CHECK(config.engine.compute == DType::f16);
  CHECK(config.engine.loss_scaling.loss_scale == 0.0);
  CHECK(config.taken.count(Field::beta1) == 1);
  CHECK(config.taken.count(Field::beta2) == 0);
  CHECK(config.defaulted.count(Field::epsilon) == 1);
  CHECK(config.defaulted.count(Field::beta1) == 0);
  // Two keys set the loss scale.
  for (const char* key : {"initial_scale_power", "loss_scale"})
    CHECK(read_deepspeed_config(batch_of_8 + "fp16: {enabled: true, " + key + ": 12}}")
              .defaulted.count(Field::initial_scale_power) == 0);
  // The values of one config for what another leaves out: only the keys of that one are told.
  const DeepSpeedConfig next =
      read_deepspeed_config(batch_of_8 + "gradient_clipping: 0.5}", {.program = config});
  CHECK(next.engine.update.beta1 == 0.5f);
  CHECK(next.engine.compute == DType::f16);
  CHECK(next.taken ==
        std::set<Field>{Field::train_batch, Field::clip_norm, Field::memory_breakdown});
  CHECK(next.defaulted == std::set<Field>{Field::memory_breakdown});
  CHECK(next.overridden.empty());
}

TEST_CASE("deepspeed: a config can be given as a path, as text or as base64") {
  const TemporaryFolder folder;
  const std::string path = folder / "ds_config.json";
  const std::string text = "{\n  \"train_batch_size\": 24  // a comment\n}";
  write_file(path, text);
  CHECK(read_deepspeed_config(path).batch.train == 24);
  CHECK(read_deepspeed_config(" \n" + text).batch.train == 24);
  CHECK(read_deepspeed_config("eyJ0cmFpbl9iYXRjaF9zaXplIjogMjR9").batch.train == 24);
  const zero::BatchSize size = solve_batch_size(read_deepspeed_config(path).batch, 4);
  CHECK(size.micro == 6);
  CHECK(message_of<ConfigError>([&] {
          solve_batch_size(read_deepspeed_config(path).batch, 5);
        }).starts_with(path + ":2:3: train_batch_size: expected train_batch_size = "));

  const auto error = [](const std::string& config) {
    return message_of<ConfigError>([&] { read_deepspeed_config(config); });
  };
  write_file(path, "{\n\"train_batch_size\": 24, \"zero_optimization\": {\"stag\": 2}}");
  CHECK(error(path) == path +
                           ":2:47: zero_optimization.stag: unknown key; expected a key of "
                           "zero_optimization, got 'stag'; did you mean stage?");
  CHECK(error("{stage: 2}").starts_with("read_deepspeed_config:1:2: stage: unknown key; "));
  CHECK(message_of<FileError>([&] { read_deepspeed_config(folder / "none.json"); }) ==
        "read_deepspeed_config: " + folder / "none.json" +
            " cannot be read: there is nothing of that name; expected a DeepSpeed config, JSON");
  const DeepSpeedConfig lenient = read_deepspeed_config(
      batch_of_8 + "\"foo\": 1, wall_clock_breakdown: true, dump_state: true}", {.lenient = true});
  REQUIRE(lenient.warnings.size() == 1);
  CHECK(lenient.warnings[0].starts_with("read_deepspeed_config:1:23: foo: unknown key, ignored; "));
  REQUIRE(lenient.without_effect.size() == 1);
  CHECK(contains(lenient.without_effect[0], "wall_clock_breakdown: accepted without effect ("));
  const auto& state = lenient.state;
  CHECK(std::ranges::count(state, "train_batch_size = 8") == 1);
  CHECK(std::ranges::count(state, "gradient_clipping = 1 (default)") == 1);
  CHECK(read_deepspeed_config(batch_of_8 + "}").state.empty());
  CHECK_ERROR(Unsupported, "read_deepspeed_config:1:23: sparse_gradients: true: ",
              read_deepspeed_config(batch_of_8 + "sparse_gradients: true}"));
}

TEST_CASE("deepspeed: settings that follow from several keys reach the engine's config") {
  const auto engine = [](const std::string& text, const zero::DeepSpeedOptions& options = {}) {
    return read_deepspeed_config(batch_of_8 + text + "}", options).engine;
  };
  const std::string bf16 =
      "bf16: {enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}";
  CHECK(engine(bf16).compute == DType::bf16);
  CHECK(engine(bf16).optimizer == DType::bf16);
  CHECK(engine(bf16).load == DType::bf16);
  CHECK(engine(bf16).grad_accum == DType::bf16);
  CHECK(engine(bf16 + ", data_types: {grad_accum_dtype: \"fp32\"}").grad_accum == DType::f32);
  CHECK(engine(bf16, {.decided = {Field::grad_accum_dtype}}).grad_accum == DType::f32);
  CHECK(engine("bf16: {enabled: true}").optimizer == DType::f32);

  const std::string checkpoints = "activation_checkpointing: {cpu_checkpointing: true}";
  const std::string own = ", zerograd: {activation_checkpoint: true";
  CHECK(engine(checkpoints).offload.activation == Space::device);
  CHECK(engine(checkpoints + own + "}").offload.activation == Space::host);
  CHECK(engine(checkpoints, {.program = {.activation_checkpoint = true}}).offload.activation ==
        Space::host);
  CHECK(engine(checkpoints + own + ", offload_activations: \"none\"}").offload.activation ==
        Space::device);
  CHECK(engine(checkpoints + own + "}", {.decided = {Field::offload_activations}})
            .offload.activation == Space::device);

  const std::string nvme = "zerograd: {offload_gradients: \"nvme\"}";
  CHECK(message_of<ConfigError>([&] { engine(nvme); }) ==
        "read_deepspeed_config: nvme without a path; expected nvme_path in "
        "zero_optimization.offload_optimizer or offload_param, got none; try \"nvme_path\": "
        "\"/local_nvme\"");
  CHECK(engine(nvme, {.program = {.swap = {.directory = "/tmp"}}}).offload.gradient == Space::file);
  const DeepSpeedConfig swapped = read_deepspeed_config(
      batch_of_8 +
      "zero_optimization: {stage: 3, offload_optimizer: {device: \"nvme\", nvme_path: \"/nvme\"}}, "
      "aio: {block_size: 4096, queue_depth: 3}}");
  CHECK(swapped.swap.directory == "/nvme");
  CHECK(swapped.swap.block_size == 4096);
  CHECK(swapped.swap.queue_depth == 3);
  CHECK(swapped.engine.offload.optimizer == Space::file);
  CHECK(swapped.engine.offload.gradient == Space::host);
}

TEST_CASE(
    "DeepSpeed's OneCycle keeps SGD's momentum fixed and lists cycle_momentum as without effect") {
  const auto loaded = load(R"({"train_batch_size": 4,
    "optimizer": {"type": "SGD", "params": {"momentum": 0.75}},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01,
      "cycle_momentum": true}}})")
                          .settings;
  CHECK(!loaded.schedule.one_cycle.cycle_momentum);
  CHECK(zero::betas_of(loaded.engine.update).beta1 == 0.75f);
  REQUIRE(loaded.without_effect.size() == 1);
  CHECK(contains(loaded.without_effect[0], "cycle_momentum: accepted without effect (SGD has no"));
}

TEST_CASE(
    "DeepSpeed's muon_lr is the rate and adam_lr a factor of it, unless a scheduler sets the "
    "rate") {
  const auto loaded = [](const std::string& params, const std::string& rest = "") {
    return load(R"({"train_batch_size": 4, "optimizer": {"type": "Muon", "params": {)" + params +
                "}}" + rest + "}")
        .settings;
  };
  const std::string rates = R"("lr": 0.125, "muon_lr": 0.25, "adam_lr": 0.0625)";
  const auto both = loaded(rates);
  CHECK(both.engine.update.rule == OptimizerRule::muon);
  CHECK(both.engine.update.muon.rate == zero::MuonRate::original);
  CHECK(both.schedule.rate == 0.25);
  CHECK(both.engine.update.muon.adam_rate == 0.25f);
  CHECK(loaded(R"("lr": 0.125, "muon_lr": 0.25)").engine.update.muon.adam_rate == 0.5f);
  CHECK(loaded(R"("lr": 0.125)").engine.update.muon.adam_rate == 1.0f);
  // A scheduler sets one rate for all parameters.
  const auto scheduled =
      loaded(rates, R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})");
  CHECK(scheduled.schedule.rate == 0.5);
  CHECK(scheduled.engine.update.muon.adam_rate == 1.0f);
  CHECK_ERROR(ConfigError, "adam_lr is a multiple of muon_lr here; expected a muon_lr above 0",
              loaded(R"("lr": 0, "adam_lr": 0.5)"));
}

}  // namespace zg::testing
