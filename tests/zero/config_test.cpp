#include "zerograd/zero/config.h"

#include <cmath>
#include <stdexcept>

#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

using namespace zg;
using zero::Config;
using namespace zg::testing;
using zero::Engine;
using zero::Precision;
using zero::PrecisionPreset;
using State = zero::Engine::State;

namespace {

Config config_of(PrecisionPreset preset) {
  return zero::with_precision({}, zero::precision_of(preset));
}

const PrecisionPreset presets[] = {PrecisionPreset::deepspeed, PrecisionPreset::fsdp_mixed,
                                   PrecisionPreset::fsdp_memory};

bool is_bf16(const std::vector<float>& values) {
  for (float x : values)
    if (rounded(x, DType::bf16) != x) return false;
  return true;
}

}  // namespace

TEST_CASE("a config value out of range is refused with the name of its field") {
  CHECK_NOTHROW(zero::validate(Config{}));
  CHECK_NOTHROW(zero::validate(Config{.compute = DType::bf16, .clip_norm = 0.0f}));
  CHECK_THROWS_WITH_AS(zero::validate(Config{.stage = 4}),
                       "config: stage is 4; expected 0, 1, 2 or 3", ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.stage = 2, .reduce_at_boundary = true}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.reduce_bucket_size = 0}), ConfigError);
  CHECK_NOTHROW(zero::validate(Config{.compute = DType::f16}));
  CHECK_THROWS_AS(zero::validate(Config{.loss_scaling = {.window = 0}}), ConfigError);
  CHECK_THROWS_WITH_AS(zero::validate(Config{.compute = DType::i32}),
                       "config: compute is i32; expected f32, bf16 or f16", ConfigError);
  CHECK_THROWS_WITH_AS(zero::validate(Config{.update = {.beta1 = 1.0f}}),
                       "config: update.beta1 is 1.000000; expected a number in [0, 1)",
                       ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.update = {.beta2 = -0.1f}}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.update = {.epsilon = NAN}}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.update = {.weight_decay = -1.0f}}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.clip_norm = INFINITY}), ConfigError);
}

TEST_CASE(
    "precision presets have the dtypes of the table in the documentation of Hugging Face's "
    "accelerate") {
  const auto row = [](PrecisionPreset preset) {
    const Precision p = zero::precision_of(preset);
    return std::string(name_of(p.load)) + " " + (p.mixed ? name_of(*p.mixed) : "none") + " " +
           name_of(p.local) + " " + name_of(p.compute) + " " + name_of(p.optimizer);
  };
  CHECK(row(PrecisionPreset::deepspeed) == "bf16 bf16 f32 bf16 f32");
  CHECK(row(PrecisionPreset::fsdp_mixed) == "bf16 bf16 f32 bf16 f32");
  CHECK(row(PrecisionPreset::fsdp_memory) == "bf16 none bf16 bf16 bf16");
  for (const PrecisionPreset preset : presets)
    CHECK(zero::precision_preset(name_of(preset)) == preset);
  for (const PrecisionPreset preset : presets)
    CHECK(zero::precision_of(config_of(preset)) == zero::precision_of(preset));
  CHECK(zero::precision_of(Config{.compute = DType::f16}) ==
        Precision{DType::f32, DType::f16, DType::f32, DType::f16, DType::f32});
  CHECK(zero::precision_of(Config{}) ==
        Precision{DType::f32, {}, DType::f32, DType::f32, DType::f32});
  CHECK_THROWS_WITH_AS(zero::precision_preset("fp8"),
                       "precision: no 'fp8'; expected one of deepspeed, fsdp-mixed, fsdp-memory",
                       ConfigError);
}

TEST_CASE(
    "an engine with a precision preset keeps masters, moments and values in the preset's dtypes") {
  for (const PrecisionPreset preset : presets) {
    CAPTURE(name_of(preset));
    const Precision precision = zero::precision_of(preset);
    const Toy toy;
    const Device device = Device::cpu();
    Engine engine(toy.store, device, config_of(preset));
    for (const Parameter* parameter : toy.trainable()) {
      std::vector<float> expected(static_cast<size_t>(parameter->shape.numel()));
      initialise(parameter->init, engine.config().seed, parameter->name, 0, expected);
      for (float& x : expected) x = rounded(x, precision.load);
      CHECK(engine.read(*parameter, State::master) == expected);
    }
    train_step(engine, 0);
    // The update is 1e-2 times a ratio that bf16 cannot represent. So the states have values that
    // are not bf16, unless they are stored in bf16.
    const bool narrow = precision.local == DType::bf16;
    CHECK(is_bf16(engine.read(toy.weight, State::master)) == narrow);
    CHECK(is_bf16(engine.read(toy.weight, State::moment1)) == narrow);
    CHECK(is_bf16(engine.read(toy.weight, State::moment2)) == narrow);
    Tape tape = engine.inference_tape();
    const Tape::Use use(tape, toy.first);
    CHECK(tape.parameter(toy.weight).value().dtype() == precision.compute);
  }
}

TEST_CASE("the fsdp-memory preset takes 8 bytes per parameter, the other presets take 16 to 18") {
  // Bytes per parameter: 4 each for the gradient accumulator, the two moments and the master, and 2
  // for the value while it is used. With fsdp-memory: 2 each for the value, the accumulator and the
  // two moments.
  ParameterStore store;
  store.add(store.unit("unit"), "weight", {1 << 16}, Init::normal(0.1f));
  for (const PrecisionPreset preset : presets) {
    const Device device = Device::meta();
    Engine engine(store, device, config_of(preset));
    const bool is_narrow = preset == PrecisionPreset::fsdp_memory;
    CHECK(device.memory().live() == (is_narrow ? 8 : 16) << 16);
    const Tape tape = engine.inference_tape();
    const Tape::Use use(tape, *store.units().front());
    CHECK(device.memory().live() == (is_narrow ? 8 : 18) << 16);
    const Device accelerator = Device::meta(0, {}, Device::Type::hpu);  // values stay
    const Engine on_accelerator(store, accelerator, config_of(preset));
    CHECK(accelerator.memory().live() == (is_narrow ? 8 : 18) << 16);
  }
}

TEST_CASE(
    "all-bf16 optimizer steps give the same bits at every instruction set, on two ranks at stages "
    "0 to 3, and after a resume") {
  Config config = config_of(PrecisionPreset::fsdp_memory);
  config.param_persistence_threshold = 70;
  // Takes the steps [from, to). A step has 4 micro-batches with random gradients, divided over the
  // ranks.
  const auto train = [](Engine& engine, int ranks, int rank, int from, int to) {
    for (int step = from; step < to; ++step) {
      for (int g = rank; g < 4; g += ranks)
        run_micro_batch(engine, random_gradients({&*engine.store().find("a.weight"),
                                                  &*engine.store().find("b.weight"),
                                                  &*engine.store().find("gain")},
                                                 static_cast<uint64_t>(4 * step + g)));
      engine.step(1e-2f);
    }
  };
  const Toy toy;
  Engine one(toy.store, Device::cpu(), config);
  train(one, 1, 0, 0, 4);
  const std::string expected = one.parameter_hash();
  for (const Device& device : devices_at_every_level()) {
    Engine engine(toy.store, device, config);
    train(engine, 1, 0, 0, 4);
    CHECK(engine.parameter_hash() == expected);
  }
  for (const int stage : {0, 1, 2, 3}) {
    config.stage = stage;
    run_local(2, [&](Communicator& comm, const Device& device) {
      Engine engine(toy.store, comm, device, config);
      train(engine, 2, comm.rank(), 0, 4);
      if (engine.parameter_hash() != expected)
        throw std::runtime_error("the parameter hash differs from that of one rank");
    });
  }
  config.stage = 0;
  const TemporaryFolder folder;
  Engine saved(toy.store, Device::cpu(), config), resumed(toy.store, Device::cpu(), config);
  train(saved, 1, 0, 0, 2);
  zero::save_checkpoint(folder.path(), saved, {.steps = 2});
  zero::load_checkpoint(folder.path(), resumed);
  train(resumed, 1, 0, 2, 4);
  CHECK(resumed.parameter_hash() == expected);
}

TEST_CASE(
    "load_weights() rounds f32 weights to the preset's load dtype, bf16, before they become f32 "
    "masters") {
  const Toy toy;
  const TemporaryFolder folder;
  const Engine wide(toy.store, Device::cpu(), {.seed = 5});
  zero::save_checkpoint(folder.path(), wide, {});
  Engine engine(toy.store, Device::cpu(), config_of(PrecisionPreset::deepspeed));
  zero::load_weights(folder.path(), engine);
  std::vector<float> expected = wide.read(toy.weight, State::master);
  CHECK_FALSE(is_bf16(expected));
  for (float& x : expected) x = rounded(x, DType::bf16);
  CHECK(engine.read(toy.weight, State::master) == expected);
}

TEST_CASE("dtypes that do not go together are refused") {
  Precision precision = zero::precision_of(PrecisionPreset::deepspeed);
  precision.optimizer = DType::bf16;
  CHECK_THROWS_WITH_AS(zero::with_precision({}, precision),
                       "precision: local is f32, optimizer is bf16; expected the same, because "
                       "masters and moments have one dtype",
                       ConfigError);
  precision = zero::precision_of(PrecisionPreset::fsdp_mixed);
  precision.compute = DType::f16;
  CHECK_THROWS_WITH_AS(zero::with_precision({}, precision),
                       "precision: compute is f16; expected bf16, as mixed says", ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.optimizer = DType::bf16}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.optimizer = DType::f16}), ConfigError);
  CHECK_THROWS_AS(zero::validate(Config{.load = DType::i32}), ConfigError);
}
