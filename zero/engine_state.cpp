#include "zerograd/zero/engine_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

LossScaler scaler_of(const Config& config) {
  return config.compute == DType::f16 ? LossScaler(config.loss_scaling) : LossScaler();
}

// Updates the scaler. If it throws because the scale is at its minimum, adds the name of the
// parameter that overflowed.
std::string update_scale(LossScaler& scaler, const std::optional<std::string>& non_finite) {
  try {
    return scaler.update(non_finite.has_value());
  } catch (const Error& error) {
    raise<Error>("{} The gradient of {} is not finite; try bf16, which has the range of f32.",
                 error.what(), *non_finite);
  }
}

/// The factor of the gradients, NaN if the step must be skipped.
Tensor scale_on_device(const GradientSums& sums, const Clipping& clipping, const Device& device) {
  const PurposeScope purpose(device, Purpose::workspace);
  const Tensor scale = Tensor::empty({1}, DType::f32, device);
  kernels::gradient_scale({.limbs = sums.limbs(),
                           .non_finite = sums.non_finite(),
                           .scale = scale,
                           .clipping = clipping},
                          device.compute());
  return scale;
}

// The mesh, or null if it has one pipeline stage and one tensor rank: then every rank has the whole
// model.
const Mesh* mesh_with_model_parts(const Mesh* mesh) {
  return mesh && mesh->shape.pipeline * mesh->shape.tensor > 1 ? mesh : nullptr;
}

/// Throws ConfigError if a parameter group decides for no parameter of the model, which may be
/// divided over the mesh: collective then.
void check_groups(const ParameterStore& store, const UpdateOptions& options, const Mesh* mesh,
                  const Device& device) {
  if (options.groups.empty()) return;
  std::vector<int64_t> counts(options.groups.size());
  for (const auto& parameter : store.parameters())
    if (const ParameterGroup* group = group_of(options, parameter->name);
        group && parameter->trainable)
      ++counts[static_cast<size_t>(group - options.groups.data())];
  if (mesh) counts = sum_over_parts(counts, *mesh, device, "parameter groups");
  if (mesh && device.type() == Device::Type::meta) return;  // it does not know the other parts
  const auto unused = std::ranges::find(counts, 0);
  if (unused == counts.end()) return;
  const size_t index = static_cast<size_t>(unused - counts.begin());
  const auto& all = store.parameters();
  const auto trained =
      std::ranges::find_if(all, [](const auto& parameter) { return parameter->trainable; });
  raise<ConfigError>(
      "config: parameter group {} '{}' decides for no parameter; expected a pattern of names like "
      "'{}' that no earlier group matches",
      index + 1, options.groups[index].pattern, trained == all.end() ? "" : (*trained)->name);
}

}  // namespace

// --- partition of the parameters ---

EngineState::EngineState(const ParameterStore& store, Ranks given, const Device& device,
                         const Config& config)
    : store(store),
      device(device),
      host(device.traits().backend == Device::Type::cpu
               ? device
               : Device::cpu(device.index(), {.threads = 1, .separate = true})),
      config(config),
      optimizers(config.update),
      ranks(std::move(given)),
      comm(ranks.mesh   ? *ranks.mesh->data
           : ranks.data ? *ranks.data
                        : *ranks.alone),
      world(ranks.mesh ? ranks.mesh->world : comm),
      mesh(mesh_with_model_parts(ranks.mesh)),
      places(store.parameters().size()),
      begins(store.parameters().size()),
      users(store.units().size()),
      residency(storages, comm, this->config),
      reducer(comm, device, this->config),
      mirrors(store, mesh, device),
      activations(config.offload.activation == Space::device
                      ? nullptr
                      : std::make_unique<OffloadedActivations>(config.offload.activation)),
      scaler(scaler_of(config)) {
  check_parameters(store, optimizers);
  check_ranks_agree(store, config, comm, world);
  check_groups(store, config.update, mesh, device);
  // Small parameters are not partitioned at stage 3: gathering each would cost more time than their
  // memory is worth.
  const bool shards_values =
      config.stage == 3 && (comm.size() > 1 || config.offload.parameter != Space::device);
  std::vector<const Parameter*> persistent;
  Placements places_of(this->config.offload, store, comm.size());
  const auto add = [&](const std::string& name, std::span<const Parameter* const> parameters,
                       bool stays_whole) {
    const NameScope states_of(this->device, name);
    const auto [parameter, optimizer] = places_of.next(parameters, stays_whole);
    const Storage& storage = storages.emplace_back(
        name, parameters,
        Storage::Placement{this->config, optimizers, comm.rank(), comm.size(), this->device,
                           stays_whole,
                           rounds_at_use(config, world.size(), this->device.traits().backend),
                           parameter, optimizer});
    storages.back().initialise(config.seed, config.load);
    for (const Values* values : {&storage.trainable, &storage.frozen})
      for (const FlatUnit::Piece& piece : values->flat.pieces) {
        places[static_cast<size_t>(piece.parameter->index)] = storages.size() - 1;
        begins[static_cast<size_t>(piece.parameter->index)] = piece.begin;
      }
  };
  if (config.nccl_reduce && comm.size() > 1) {
    if (device.traits().backend != Device::Type::cuda)
      throw Unsupported(
          "config: nccl_reduce is for ranks on cuda devices; try without it: sums are then exact");
    comm.sum_by_library();
  }
  storages.reserve(store.units().size() + 1);
  std::vector<std::vector<const Parameter*>> units(store.units().size());
  for (const auto& unit : store.units())
    for (const Parameter* parameter : unit->parameters)
      (shards_values && parameter->shape.numel() <= config.param_persistence_threshold
           ? persistent
           : units[static_cast<size_t>(unit->index)])
          .push_back(parameter);
  if (config.stage == 1 || config.stage == 2) join_units(units, comm.size(), optimizers);
  for (const auto& unit : store.units())
    add(unit->name, units[static_cast<size_t>(unit->index)], !shards_values);
  if (!persistent.empty()) {
    add("small parameters", persistent, true);
    has_persistent = true;
  }
  // Behind all states, so that forward finds their memory in one piece.
  for (Storage& storage : storages) storage.open_sums();
  residency.resize();
  if (config.offload.speculation == 0) return;
  if (device.traits().backend != Device::Type::cpu)
    throw Unsupported(
        "config: offload.speculation is for CPU devices, whose drive then works during backward; "
        "expected 0");
  speculation = std::make_unique<Speculation>(storages, storages.size() - (has_persistent ? 1 : 0),
                                              this->config, device, comm.size());
}

size_t EngineState::index_of(const Unit& unit) const {
  if (!store.has(unit))
    raise<ConfigError>("engine: unit '{}' is not of the store that the engine was made with",
                       unit.name);
  return static_cast<size_t>(unit.index);
}

Storage& EngineState::storage_of(const Parameter& parameter) {
  const size_t index = static_cast<size_t>(parameter.index);
  if (index >= places.size() || store.parameters()[index].get() != &parameter)
    raise<ConfigError>("engine: parameter '{}' is not of the store that the engine was made with",
                       parameter.name);
  return storages[places[index]];
}

void EngineState::check_store(const char* operation) const {
  if (store.parameters().size() == places.size() && store.units().size() == users.size()) return;
  const bool is_parameter = store.parameters().size() > places.size();
  const std::string added =
      is_parameter ? fmt::format("parameter '{}'", store.parameters()[places.size()]->name)
                   : fmt::format("unit '{}'", store.units()[users.size()]->name);
  raise<ConfigError>(
      "{}: {} was added to the store after the engine was made; expected the store to "
      "stay as it was; make the engine after the whole model",
      operation, added);
}

void EngineState::clear_gradients() {
  micro_batches = expected = 0;
  for (Storage& storage : storages) storage.clear();
  for (size_t unit = 0; unit < users.size(); ++unit)
    if (users[unit] > 0) storages[unit].open_values();  // an update has freed them
  if (speculation) speculation->cancel();
}

Engine::Engine(const ParameterStore& store, const Device& device, const Config& config) {
  validate(config);
  state_ = std::make_unique<EngineState>(
      store, EngineState::Ranks{.alone = counting_communicator(0, 1)}, device, config);
}

Engine::Engine(const ParameterStore& store, Communicator& ranks, const Device& device,
               const Config& config) {
  validate(config);
  state_ = std::make_unique<EngineState>(store, EngineState::Ranks{.data = &ranks}, device, config);
}

Engine::Engine(const ParameterStore& store, const Mesh& mesh, const Device& device,
               const Config& config) {
  validate(config);
  state_ = std::make_unique<EngineState>(store, EngineState::Ranks{.mesh = &mesh}, device, config);
}

Engine::~Engine() = default;

// --- steps ---

Tape Engine::tape() { return Tape(state_->device, this); }

Tape Engine::inference_tape() { return Tape(state_->device, this, TapeMode::inference); }

namespace {

void check_tape(const Tape& tape, const Engine& engine) {
  if (!tape.reads(engine))
    throw TapeError(
        "engine: backward got a tape that does not read this engine; expected "
        "Engine::tape(), or a Tape of sources that include the engine");
}

}  // namespace

void Engine::backward(Tape& tape, const Var& loss) {
  check_tape(tape, *this);
  const PhaseScope phase(state_->device, "backward");
  state_->begin_backward();
  if (state_->observer) state_->observer->backward_begins(&loss);
  tape.backward(loss, state_->scaler.scale());
}

void Engine::backward(Tape& tape, std::span<const Var> outputs, std::span<const Tensor> gradients) {
  check_tape(tape, *this);
  const PhaseScope phase(state_->device, "backward");
  state_->begin_backward();
  if (state_->observer) state_->observer->backward_begins(nullptr);
  tape.backward(outputs, gradients);
}

void EngineState::begin_backward() {
  in_backward = true;
  if (speculation) speculation->begin(micro_batches);
}

void EngineState::finish_micro_batch() {
  residency.finish();
  for (Mirrors::Gradient& gradient : mirrors.exchange())
    reduce({&gradient.parameter, 1}, {&gradient.sum, 1});
  reducer.finish();
  if (speculation) speculation->complete(snapshot);
  ++micro_batches;
}

void EngineState::note_gradients(const GradientSummary& gradients, const Clipping& clipping,
                                 StepResult& result) {
  result.square_limbs = gradients.limbs;
  result.skipped = gradients.non_finite.has_value();
  result.scaler_line = update_scale(scaler, gradients.non_finite);
  if (result.skipped) {
    ++skipped;
    result.gradient_norm = std::numeric_limits<double>::infinity();
    result.bad_tensor = *gradients.non_finite;
  } else {
    ++taken;
    result.gradient_norm = std::sqrt(gradients.sum_of_squares()) / clipping.divisor();
  }
}

GradientSums EngineState::begin_update(const char* operation) {
  check_store(operation);
  if (micro_batches == 0)
    raise<ConfigError>("{}: no micro-batch since the last one; call backward first", operation);
  residency.finish();
  mirrors.finish();
  if (config.reduce_at_boundary)
    for (Storage& storage : storages) reducer.reduce_local_sums(storage);
  return sum_gradients(storages, store, config, device, comm);
}

StepResult Engine::step(float rate, const std::optional<Betas>& betas) {
  EngineState& s = *state_;
  if (!std::isfinite(rate))
    raise<ConfigError>("step: rate is {:f}; expected a finite number", rate);
  const PhaseScope phase(s.device, "step");
  GradientSums sums = s.begin_update("step");
  const Clipping clipping{.micro_batches = s.micro_batches * s.comm.size(),
                          .clip_norm = s.config.clip_norm,
                          .loss_scale = s.scaler.scale()};
  StepResult result{.loss_scale = loss_scale()};
  OptimizerStep update{.rate = rate, .betas = betas};
  if (s.config.update.stochastic_rounding) update.rounding_seed = s.config.seed;
  if (device_decides(s.storages, s.optimizers, s.device, s.mesh)) {
    // If the step is skipped, the kernels write nothing, and its number was not used.
    update.step = s.taken + 1;
    update.scale = scale_on_device(sums, clipping, s.device);
    zero::update(s.storages, s.optimizers, update, s.config, s.device, s.comm, s.snapshot);
    s.note_gradients(summarise(sums, s.store, s.host, s.mesh), clipping, result);
  } else {
    s.note_gradients(summarise(std::exchange(sums, {}), s.store, s.host, s.mesh), clipping, result);
    update.step = s.taken;
    update.skipped = result.skipped;
    update.gradient_scale = clipping.factor(result.gradient_norm);
    if (s.speculation && s.speculation->settle(s.micro_batches, update, s.snapshot))
      count_unplanned(s.device, s.speculation->redo_io());
    zero::update(s.storages, s.optimizers, update, s.config, s.device, s.comm, s.snapshot,
                 s.speculation ? s.speculation->buffers() : nullptr);
  }
  s.refresh_mirrors();
  const int64_t micro_batches = s.micro_batches;
  s.clear_gradients();
  count_step(s.device);
  if (s.observer) s.observer->step_ends(rate, micro_batches, result);
  return result;
}

void Engine::expect_step(int64_t micro_batches, float rate, const std::optional<Betas>& betas) {
  EngineState& s = *state_;
  if (const int64_t most = std::numeric_limits<int64_t>::max() / s.comm.size();
      micro_batches < 1 || micro_batches > most)
    raise<ConfigError>("expect_step: micro_batches is {}; expected 1 to {}", micro_batches, most);
  s.expected = micro_batches;
  if (!s.speculation) return;
  const Clipping mean{.micro_batches = micro_batches * s.comm.size(),
                      .loss_scale = s.scaler.scale()};
  OptimizerStep step{.rate = rate, .betas = betas, .step = s.taken + 1};
  if (s.config.update.stochastic_rounding) step.rounding_seed = s.config.seed;
  step.gradient_scale = mean.factor(0.0);
  s.speculation->expect(micro_batches, step);
}

StepResult Engine::observe(const std::string& stream) {
  EngineState& s = *state_;
  const auto declares = [&](const Optimizers::Entry& entry) {
    return has_stream(*entry.optimizer, stream);
  };
  const auto& all = s.optimizers.all();
  if (std::ranges::none_of(all, declares))
    raise<ConfigError>(
        "observe: no optimizer declares the stream '{}'; expected a name of Optimizer::streams()",
        stream);
  const GradientSums sums = s.begin_update("observe");
  const Clipping mean{.micro_batches = s.micro_batches * s.comm.size(),
                      .loss_scale = s.scaler.scale()};
  const GradientSummary gradients = summarise(sums, s.store, s.host, s.mesh);
  StepResult result{.gradient_norm = std::sqrt(gradients.sum_of_squares()) / mean.divisor(),
                    .skipped = gradients.non_finite.has_value(),
                    .bad_tensor = gradients.non_finite.value_or(""),
                    .loss_scale = loss_scale()};
  if (result.skipped) result.scaler_line = update_scale(s.scaler, gradients.non_finite);
  zero::update(s.storages, s.optimizers,
               {.step = s.taken,
                .skipped = result.skipped,
                .stream = stream,
                .gradient_scale = mean.factor(0.0)},
               s.config, s.device, s.comm, s.snapshot);
  s.clear_gradients();
  return result;
}

double Engine::loss_scale() const {
  return state_->config.compute == DType::bf16 ? 0.0 : state_->scaler.scale();
}
const LossScaler& Engine::loss_scaler() const { return state_->scaler; }

void Engine::set_loss_scaler(const std::optional<LossScaler::State>& state) {
  state_->scaler = scaler_of(state_->config);
  if (state) state_->scaler.restore(*state);
}

void Engine::set_steps(int64_t taken, int64_t skipped) {
  if (taken < 0 || skipped < 0)
    raise<ConfigError>("set_steps: taken is {} and skipped is {}; expected counts from 0", taken,
                       skipped);
  state_->taken = taken;
  state_->skipped = skipped;
  state_->clear_gradients();
}

void Engine::drop_gradients() {
  state_->residency.finish();
  state_->mirrors.finish();
  state_->clear_gradients();
}

// --- ParameterSource, called by the tape ---

void Engine::begin_tape(TapeMode mode) {
  const bool records = mode == TapeMode::record;
  state_->check_store(records ? "tape" : "inference_tape");
  if (records) world().set_step(steps());  // shown in errors about ranks that do not arrive
  if (records && state_->observer) state_->observer->tape_begins();
  if (records && state_->micro_batches == 0)
    for (Storage& storage : state_->storages) storage.release_sums();
  state_->residency.start(mode);
  if (records && state_->speculation) state_->speculation->begin(state_->micro_batches);
  state_->in_backward = false;  // an exception may have ended a backward
}

void Engine::end_backward() {
  state_->in_backward = false;
  state_->finish_micro_batch();
}

ActivationStore* Engine::activations() { return state_->activations.get(); }

void Engine::acquire(const Unit& unit, Stream&) {
  const size_t index = state_->index_of(unit);
  state_->residency.acquire(index);
  ++state_->users[index];
}

void Engine::release(const Unit& unit, Stream&) noexcept {
  const size_t index = static_cast<size_t>(unit.index);
  --state_->users[index];
  state_->residency.release(index);
}

void Engine::done_reading(const Unit& unit) noexcept {
  EngineState& s = *state_;
  const size_t index = static_cast<size_t>(unit.index);
  const bool is_last = s.in_backward && s.micro_batches + 1 == s.expected;
  if (is_last && s.users[index] == 0) s.storages[index].free_values();
}

Tensor Engine::value(const Parameter& parameter) const {
  const Storage& storage = state_->storage_of(parameter);
  if (state_->users[static_cast<size_t>(parameter.unit->index)] == 0)
    raise<NotResident>(
        "value: '{}' is read outside its unit; expected unit '{}' to be open; open it "
        "with Tape::Use use(tape, unit)",
        parameter.name, parameter.unit->name);
  const Tensor& whole = is_updated(parameter) ? storage.trainable.whole : storage.frozen.whole;
  return whole.alias(state_->begin_of(parameter) * size_of(storage.compute), parameter.shape,
                     storage.compute);
}

Tensor Engine::gradient_place(const Parameter& parameter) {
  state_->advance_speculation();
  if (state_->config.reduce_at_boundary || !is_updated(parameter)) return {};
  Storage& storage = state_->storage_of(parameter);
  if (state_->comm.size() > 1) return state_->reducer.place_of(storage, parameter);
  const size_t piece = storage.index_in_shard(parameter);
  if (piece == storage.pieces.size()) return {};  // the parameter has no elements in this shard
  return storage.lend_sum(piece);
}

void Engine::reduce(const Unit& unit, std::span<Tensor> gradients, Stream&) {
  EngineState& s = *state_;
  s.index_of(unit);  // throws for a unit of another store
  if (!s.in_backward && s.scaler.scale() != 1.0)
    raise<TapeError>(
        "engine: the gradients of unit '{}' omit this engine's loss scale of f16, {:g}; expected "
        "Engine::backward(tape, loss) of it, not Tape::backward or another engine's",
        unit.name, s.scaler.scale());
  std::vector<const Parameter*> parameters;
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& parameter = *unit.parameters[i];
    Tensor gradient = std::exchange(gradients[i], Tensor());
    if (s.mirrors.has(parameter)) {
      s.mirrors.keep(parameter, std::move(gradient));
      continue;
    }
    parameters.push_back(&parameter);
    leaves.push_back(std::move(gradient));
  }
  s.reduce(parameters, leaves);
  s.advance_speculation();
}

void EngineState::advance_speculation() {
  if (!speculation) return;
  reducer.note_sums();
  speculation->advance(snapshot);
}

void EngineState::reduce(std::span<const Parameter* const> parameters,
                         std::span<Tensor> gradients) {
  std::vector<const Parameter*> own, small;
  std::vector<Tensor> own_gradients, small_gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool persistent = is_persistent(*parameters[i]);
    (persistent ? small : own).push_back(parameters[i]);
    (persistent ? small_gradients : own_gradients).push_back(std::exchange(gradients[i], Tensor()));
  }
  if (!own.empty()) reducer.reduce(storage_of(*own.front()), own, own_gradients);
  if (!small.empty()) reducer.reduce(storages.back(), small, small_gradients);
}

}  // namespace zg::zero
