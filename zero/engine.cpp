#include "zero/engine.h"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/error.h"
#include "zero/checksum.h"
#include "zero/optimizer.h"
#include "zero/transfer.h"
#include "zero/unit_storage.h"

namespace zg::zero {

struct EngineState {
  EngineState(const ParameterStore& store, const Device& device, const Config& config)
      : store(store), device(device), config(config), begins(store.parameters().size()) {
    units.reserve(store.units().size());
    for (const auto& unit : store.units()) {
      UnitStorage& storage = units.emplace_back(*unit, device, config.compute);
      storage.initialise(config.seed, device.compute());
      for (const FlatUnit* flat : {&storage.trainable, &storage.frozen})
        for (const FlatUnit::Piece& piece : flat->pieces)
          begins[static_cast<size_t>(piece.parameter->index)] = piece.begin;
    }
  }

  UnitStorage& storage_of(const Unit& unit) {
    const size_t index = static_cast<size_t>(unit.index);
    if (index >= units.size() || units[index].unit != &unit)
      throw ConfigError("engine: unit '" + unit.name +
                        "' is not of the store that the engine was made with");
    return units[index];
  }

  UnitStorage& storage_of(const Parameter& parameter) {
    const size_t index = static_cast<size_t>(parameter.index);
    if (index >= begins.size() || store.parameters()[index].get() != &parameter)
      throw ConfigError("engine: parameter '" + parameter.name +
                        "' is not of the store that the engine was made with");
    return units[static_cast<size_t>(parameter.unit->index)];
  }

  int64_t begin_of(const Parameter& parameter) const {
    return begins[static_cast<size_t>(parameter.index)];
  }

  /// Its elements in one of the unit's flat buffers; absent where the parameter has no such state.
  Tensor part(const Parameter& parameter, Engine::State state) {
    UnitStorage& storage = storage_of(parameter);
    const auto of = [&](const Tensor& flat) {
      return flat.flat(begin_of(parameter), parameter.shape.numel());
    };
    if (!parameter.trainable)
      return state == Engine::State::master ? of(storage.frozen_values) : Tensor();
    switch (state) {
      case Engine::State::master:
        return of(storage.masters);
      case Engine::State::moment1:
        return of(storage.moment1);
      case Engine::State::moment2:
        return of(storage.moment2);
      case Engine::State::gradient:
        storage.zero_unfolded(device.compute());
        return of(storage.sums);
    }
    return {};
  }

  void clear_gradients() {
    micro_batches = 0;
    for (UnitStorage& unit : units) unit.clear();
  }

  const ParameterStore& store;
  const Device device;
  const Config config;
  std::vector<int64_t> begins;  // of each parameter in its flat array
  std::vector<UnitStorage> units;
  int64_t micro_batches = 0, taken = 0, skipped = 0;
};

Engine::Engine(const ParameterStore& store, const Device& device, const Config& config) {
  validate(config);
  state_ = std::make_unique<EngineState>(store, device, config);
}
Engine::~Engine() = default;

// --- steps ---

Tape Engine::tape() { return Tape(state_->device, this); }
Tape Engine::inference_tape() { return Tape(state_->device, this, TapeMode::inference); }

void Engine::backward(Tape& tape, const Var& loss) {
  const PhaseScope phase(state_->device, "backward");
  tape.backward(loss);
  ++state_->micro_batches;
}

StepResult Engine::step(float rate) {
  EngineState& s = *state_;
  if (s.micro_batches == 0)
    throw ConfigError("step: no micro-batch since the last one; call backward first");
  if (!std::isfinite(rate))
    throw ConfigError("step: rate is " + std::to_string(rate) + "; expected a finite number");
  const PhaseScope phase(s.device, "step");
  const int64_t parameters = static_cast<int64_t>(s.store.parameters().size());
  const GradientSummary gradients = summarise(s.units, parameters, s.device);
  const int64_t micro_batches = s.micro_batches;
  if (gradients.non_finite) {
    ++s.skipped;
    s.clear_gradients();
    return {.gradient_norm = std::numeric_limits<double>::infinity(),
            .skipped = true,
            .bad_tensor = gradients.non_finite->name};
  }
  const double norm = std::sqrt(gradients.sum_of_squares) / static_cast<double>(micro_batches);
  const OptimizerStep step = {
      .adam = s.config.adam,
      .gradient_scale = gradient_scale(norm, micro_batches, s.config.clip_norm),
      .rate = rate,
      .step = ++s.taken};
  for (UnitStorage& unit : s.units) update(unit, step, s.device.compute());
  s.clear_gradients();
  return {.gradient_norm = norm};
}

int64_t Engine::steps() const { return state_->taken + state_->skipped; }
int64_t Engine::skipped() const { return state_->skipped; }
int64_t Engine::micro_batches() const { return state_->micro_batches; }
const Config& Engine::config() const { return state_->config; }
const ParameterStore& Engine::store() const { return state_->store; }
const Device& Engine::device() const { return state_->device; }

// --- state ---

std::string Engine::parameter_hash() const {
  static_assert(std::endian::native == std::endian::little, "the hash is of little-endian bytes");
  Checksum hash;
  for (const auto& [name, parameter] : state_->store.by_name())
    read_floats(state_->part(*parameter, State::master),
                [&](std::span<const float> values) { hash.update(std::as_bytes(values)); });
  return hash.hex();
}

std::vector<float> Engine::read(const Parameter& parameter, State state) const {
  std::vector<float> values;
  if (const Tensor part = state_->part(parameter, state)) {
    values.reserve(static_cast<size_t>(part.numel()));
    read_floats(part, [&](std::span<const float> chunk) {
      values.insert(values.end(), chunk.begin(), chunk.end());
    });
  }
  return values;
}

void Engine::write(const Parameter& parameter, State state, std::span<const float> values) {
  if (state == State::gradient)
    throw ConfigError("write: gradients of '" + parameter.name +
                      "' come from backward; expected master, moment1 or moment2");
  const Tensor part = state_->part(parameter, state);
  const size_t numel = part ? static_cast<size_t>(part.numel()) : 0;
  if (values.size() != numel)
    throw ShapeError("write: '" + parameter.name + "' takes " + std::to_string(numel) +
                     " values, got " + std::to_string(values.size()));
  if (!part) return;
  write_floats(part, [&](int64_t begin, std::span<float> chunk) {
    const auto from = values.begin() + begin;
    std::copy(from, from + static_cast<int64_t>(chunk.size()), chunk.begin());
  });
  if (state != State::master || !parameter.trainable) return;
  const int64_t begin = state_->begin_of(parameter);
  state_->storage_of(parameter).round_masters(begin, begin + part.numel(),
                                              state_->device.compute());
}

void Engine::set_steps(int64_t taken, int64_t skipped) {
  if (taken < 0 || skipped < 0)
    throw ConfigError("set_steps: taken is " + std::to_string(taken) + " and skipped is " +
                      std::to_string(skipped) + "; expected counts from 0");
  state_->taken = taken;
  state_->skipped = skipped;
  state_->clear_gradients();
}

// --- what the tape asks for ---

void Engine::acquire(const Unit& unit, Stream&) { ++state_->storage_of(unit).users; }
void Engine::release(const Unit& unit, Stream&) noexcept { --state_->storage_of(unit).users; }

Tensor Engine::value(const Parameter& parameter) const {
  const UnitStorage& storage = state_->storage_of(parameter);
  if (storage.users == 0)
    throw NotResident("value: '" + parameter.name + "' is read outside its unit; expected unit '" +
                      parameter.unit->name +
                      "' to be open; open it with Tape::Use use(tape, unit)");
  return storage.value(parameter, state_->begin_of(parameter));
}

void Engine::reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) {
  state_->storage_of(unit).fold(gradients, stream);
}

}  // namespace zg::zero
