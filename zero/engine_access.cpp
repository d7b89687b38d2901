#include <algorithm>
#include <bit>

#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/engine_state.h"
#include "zerograd/zero/parallel/whole_model.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

using State = Engine::State;

/// This rank's elements of one state: [begin, begin + tensor.numel()) of the storage's flat array.
struct Local {
  Tensor tensor;
  int64_t begin = 0;
  const FlatUnit* flat = nullptr;
};

void require_writable(const Parameter& parameter, const State& state) {
  if (state == State::gradient)
    raise<ConfigError>(
        "write: gradients of '{}' come from backward; expected master or a state of the optimizer",
        parameter.name);
}

Local local_state(EngineState& s, const Parameter& parameter, const State& state) {
  Storage& storage = s.storage_of(parameter);
  const bool trainable = is_updated(parameter);
  const Values& values = trainable ? storage.trainable : storage.frozen;
  const FlatUnit* flat = &values.flat;
  const int64_t shard_begin = flat->shard_begin(s.comm.rank());
  if (!trainable) {
    if (state != State::master) return {};
    return storage.stays_whole ? Local{values.whole, 0, flat}
                               : Local{values.shard, shard_begin, flat};
  }
  if (state == State::master) return {storage.masters, storage.state_begin, flat};
  if (state == State::gradient) {
    storage.zero_unfolded(s.device.compute());
    return {storage.sums, storage.sums_begin, flat};
  }
  const size_t index = storage.index_of(parameter, state.name);
  if (index == storage.states.size()) return {};
  return {storage.states[index].tensor, storage.states[index].begin, flat};
}

/// A state with a shape of its own; absent for other states, and on ranks that do not have it.
Tensor shaped_state(const Storage& storage, const Parameter& parameter, const State& state) {
  if (!is_updated(parameter)) return {};
  const size_t index = storage.index_of(parameter, state.name);
  return index == storage.states.size() ? Tensor() : storage.shaped(index, parameter);
}

}  // namespace

Tensor EngineState::whole_state(const Parameter& parameter, const State& state) {
  Storage& storage = storage_of(parameter);
  Local local = local_state(*this, parameter, state);
  if (!local.flat) return {};
  if (const size_t index =
          is_updated(parameter) ? storage.index_of(parameter, state.name) : storage.states.size();
      index < storage.states.size() && !storage.states[index].is_whole) {
    // Only some parameters of the storage have this state.
    const PurposeScope purpose(device, Purpose::workspace);
    const DType dtype = optimizers.arrays()[index].dtype.value_or(config.optimizer);
    const Tensor shard = Tensor::zeros({storage.state_numel}, dtype, device);
    if (local.tensor)
      copy(in_memory(local.tensor),
           shard.flat(local.begin - storage.state_begin, local.tensor.numel()), device.compute());
    local.tensor = shard;
  }
  if (!local.tensor || local.tensor.numel() == local.flat->padded) return in_memory(local.tensor);
  const PurposeScope purpose(device, Purpose::workspace);
  const Tensor whole = Tensor::empty({local.flat->padded}, local.tensor.dtype(), device);
  comm.wait(comm.all_gather(in_memory(local.tensor), whole, storage.name + " state"));
  return whole;
}

void EngineState::refresh_mirrors() {
  for (const auto& [name, parameter] : mirrors.parameters()) {
    Storage& storage = storage_of(*parameter);
    const Values& values = mirrors.is_owner() ? storage.trainable : storage.frozen;
    const int64_t begin = begin_of(*parameter), numel = parameter->shape.numel();
    if (storage.stays_whole) {
      mirrors.copy_value(*parameter, values.whole.flat(begin, numel));
      continue;
    }
    const PurposeScope purpose(device, Purpose::comm);
    if (mirrors.is_owner()) {
      const Tensor whole = Tensor::empty({values.flat.padded}, storage.compute, device);
      std::vector<Communicator::Ticket> tickets;
      if (comm.size() == 1)
        copy(values.shard, whole, device.compute());
      else
        gather_in_buckets(in_memory(values.shard), whole, storage.name + " values",
                          config.allgather_bucket_size, comm, tickets);
      if (!tickets.empty()) comm.wait(tickets.back());
      mirrors.copy_value(*parameter, whole.flat(begin, numel));
      continue;
    }
    const Tensor whole = Tensor::empty({numel}, storage.compute, device);
    mirrors.copy_value(*parameter, whole);
    const int64_t shard = values.flat.shard_begin(comm.rank());
    const int64_t first = std::max(begin, shard);
    const int64_t last = std::min(begin + numel, shard + values.flat.shard_numel());
    if (first < last)
      copy(whole.flat(first - begin, last - first), values.shard.flat(first - shard, last - first),
           device.compute());
  }
}

RestingBytes Engine::resting_bytes() const {
  RestingBytes rest;
  int64_t held = 0;  // bytes of states in the arena
  const auto numel_of = [](std::span<const FlatUnit::Piece> pieces) {
    int64_t sum = 0;
    for (const FlatUnit::Piece& piece : pieces) sum += piece.numel();
    return sum;
  };
  const auto add = [&](int64_t& kind, const Tensor& tensor, int64_t numel) {
    if (!tensor) return;
    kind += numel * size_of(tensor.dtype());
    held += arena_bytes(tensor.bytes(), tensor.buffer()->space());
  };
  for (const Storage& storage : state_->storages) {
    for (const Values* values : {&storage.trainable, &storage.frozen})
      if (storage.stays_whole)
        add(rest.parameter, values->whole, values->flat.numel);
      else
        add(rest.parameter, values->shard, numel_of(values->flat.shard(storage.rank)));
    const FlatUnit& flat = storage.trainable.flat;
    if (flat.padded > 0) {  // also where forward has released the accumulators
      const int64_t width = size_of(storage.sums_dtype);
      rest.gradient += numel_of(storage.pieces) * width;
      held += arena_bytes(flat.shard_numel() * width,
                          storage.sums ? storage.sums.buffer()->space() : Space::device);
    }
    add(rest.gradient, storage.local_sums, flat.numel);
    const int64_t states =
        numel_of(flat.within(storage.state_begin, storage.state_begin + storage.state_numel));
    if (!storage.values_are_masters) add(rest.optimizer, storage.masters, states);
    for (const Storage::State& state : storage.states) {
      int64_t numel = 0;
      for (const auto& part : state.parts) numel += part.second.shape.numel();
      if (state.parts.empty() && state.tensor)
        numel = numel_of(flat.within(state.begin, state.begin + state.tensor.numel()));
      add(rest.optimizer, state.tensor, numel);
    }
  }
  if (state_->speculation)
    for (const Tensor& tensor : state_->speculation->shadows())
      add(rest.optimizer, tensor, tensor.numel());
  rest.padding = held - rest.parameter - rest.gradient - rest.optimizer;
  return rest;
}

std::string Engine::parameter_hash() const {
  static_assert(std::endian::native == std::endian::little, "the hash is of little-endian bytes");
  if (state_->on_meta() && state_->mesh &&
      state_->mesh->shape.pipeline * state_->mesh->shape.tensor > 1)
    throw Unsupported(
        "parameter_hash: a plan does not know the parts of the model that other ranks have; "
        "expected ranks of the data axis only; try a program without the hash");
  Checksum hash;
  WholeModel model(*this);
  for (const auto& [name, entry] : model.entries())
    model.visit(name, State::master,
                [&](std::span<const float> values) { hash.update(std::as_bytes(values)); });
  return state_->on_meta() ? "planned" : hash.hex();
}

void Engine::visit_masters(const VisitMasters& visit) const {
  const int rank = state_->comm.rank();
  const auto visit_all = [&](std::span<const FlatUnit::Piece> pieces, const Tensor& values,
                             bool is_counted) {
    for (const auto& [parameter, position, begin, end, offset] : pieces) {
      if (parameter->copy == Copy::mirror) continue;
      int64_t at = offset;
      read_floats(values.flat(begin, end - begin), [&](std::span<const float> chunk) {
        visit(*parameter, at, chunk, is_counted && parameter->copy == Copy::own);
        at += std::ssize(chunk);
      });
    }
  };
  for (const Storage& storage : state_->storages) {
    const int64_t begin = storage.state_begin, end = begin + storage.state_numel;
    // In stage 0 each rank has all masters.
    visit_all(storage.trainable.flat.within(begin, end), storage.masters,
              config().stage > 0 || rank == 0);
    const Values& frozen = storage.frozen;
    if (storage.stays_whole)
      visit_all(frozen.flat.within(0, frozen.flat.padded), frozen.whole, rank == 0);
    else
      visit_all(frozen.flat.shard(rank), frozen.shard, true);
  }
}

double Engine::mean_loss(std::span<const double> own) { return mean_loss(own, std::ssize(own)); }

double Engine::mean_loss(std::span<const double> own, int64_t count) {
  const Mesh* mesh = state_->mesh;
  const bool has_losses = !mesh || mesh->is_last_stage();
  if (has_losses && std::ssize(own) != count)
    raise<ConfigError>("mean_loss: {} losses; expected those of {} micro-batches", own.size(),
                       count);
  Communicator& comm = state_->comm;
  const int64_t ranks = comm.size();
  std::vector<double> all(own.begin(), own.end());
  if (ranks > 1 || mesh) {
    // Each rank sends the bits of its losses as integers, the other ranks add zeros. So a sum of
    // integers, which is exact, exchanges the losses.
    const PurposeScope purpose(state_->host, Purpose::comm);
    std::vector<int64_t> bits(static_cast<size_t>(count * ranks));
    if (has_losses && (!mesh || mesh->tensor_rank == 0))
      std::transform(own.begin(), own.end(), bits.begin() + comm.rank() * count,
                     [](double loss) { return std::bit_cast<int64_t>(loss); });
    if (ranks > 1) {
      const Tensor sum = Tensor::from(bits, {count * ranks}, state_->host);
      comm.wait(comm.all_reduce(sum, "losses"));
      bits = sum.to_host<int64_t>();
    }
    if (mesh) bits = sum_over_parts(bits, *mesh, state_->host, "losses");
    all.resize(bits.size());
    std::transform(bits.begin(), bits.end(), all.begin(),
                   [](int64_t word) { return std::bit_cast<double>(word); });
  }
  double sum = 0.0;
  for (int64_t micro_batch = 0; micro_batch < count; ++micro_batch)
    for (int64_t rank = 0; rank < ranks; ++rank)
      sum += all[static_cast<size_t>(rank * count + micro_batch)];
  return sum / static_cast<double>(count * ranks);
}

std::optional<Engine::Speculated> Engine::speculated() const {
  const Speculation* const speculation = state_->speculation.get();
  if (!speculation) return std::nullopt;
  return Speculated{speculation->redone(), speculation->redo_io()};
}

int64_t Engine::steps() const { return state_->taken + state_->skipped; }
int64_t Engine::skipped() const { return state_->skipped; }
int64_t Engine::micro_batches() const { return state_->micro_batches; }
const Config& Engine::config() const { return state_->config; }
const ParameterStore& Engine::store() const { return state_->store; }
const Device& Engine::device() const { return state_->device; }
Communicator& Engine::ranks() const { return state_->comm; }
Communicator& Engine::world() const { return state_->world; }
const Mesh* Engine::mesh() const { return state_->mesh; }
void Engine::set_observer(StepObserver* observer) { state_->observer = observer; }

Tensor Engine::origin(const Parameter& parameter) const {
  const Storage& storage = state_->storage_of(parameter);
  if (storage.rounds_at_use && is_updated(parameter)) return storage.masters;
  if (storage.stays_whole) return value(parameter);
  return is_updated(parameter) ? storage.trainable.shard : storage.frozen.shard;
}

const Optimizers& Engine::optimizers() const { return state_->optimizers; }

std::vector<State> Engine::states(const Parameter& parameter) const {
  std::vector<State> states = {State::master};
  if (is_updated(parameter))
    for (const Optimizer::State& state : optimizers().of(parameter).states)
      states.push_back({state.name});
  return states;
}

std::optional<Shape> Engine::shape_of(const Parameter& parameter, const State& state) const {
  if (is_updated(parameter))
    for (const Optimizer::State& other : optimizers().of(parameter).states)
      if (other.name == state.name && other.shape) return other.shape(parameter.shape);
  return std::nullopt;
}

Tensor EngineState::whole_of(const Engine& engine, const Parameter& parameter, const State& state) {
  const std::optional<Shape> shape = engine.shape_of(parameter, state);
  if (!shape) {
    const Tensor whole = whole_state(parameter, state);
    return whole ? whole.flat(begin_of(parameter), parameter.shape.numel()) : whole;
  }
  const Storage& storage = storage_of(parameter);
  const Tensor own = in_memory(shaped_state(storage, parameter, state));
  if (optimizers.arrays()[storage.index_of(parameter, state.name)].everywhere ||
      config.stage == 0 || comm.size() == 1)
    return own;
  const int owner = static_cast<int>(begin_of(parameter) / storage.trainable.flat.shard_numel());
  const PurposeScope purpose(device, Purpose::workspace);
  const Tensor all = Tensor::empty(*shape, DType::f32, device);
  if (own) copy(own, all, device.compute());
  comm.wait(comm.broadcast(all, owner, parameter.name + " " + state.name));
  return all;
}

std::vector<float> Engine::read(const Parameter& parameter, const State& state) const {
  std::vector<float> values;
  const Tensor whole = state_->whole_of(*this, parameter, state);
  if (!whole) return values;
  if (!state_->on_meta()) values.reserve(static_cast<size_t>(whole.numel()));
  read_floats(whole, [&](std::span<const float> chunk) {
    values.insert(values.end(), chunk.begin(), chunk.end());
  });
  return values;
}

Tensor Engine::tensor(const Parameter& parameter, const State& state) const {
  const Tensor whole = state_->whole_of(*this, parameter, state);
  if (!whole) return {};
  const PurposeScope purpose(device(), Purpose::workspace);
  const Tensor own =
      Tensor::empty(shape_of(parameter, state).value_or(parameter.shape), whole.dtype(), device());
  copy(whole.view(own.shape()), own, device().compute());
  return own;
}

Engine::Held Engine::held(const Parameter& parameter, const State& state) const {
  Storage& storage = state_->storage_of(parameter);
  if (shape_of(parameter, state)) {
    const Tensor shaped = shaped_state(storage, parameter, state);
    return {0, shaped ? shaped.numel() : 0};
  }
  const Local local = local_state(*state_, parameter, state);
  if (!local.tensor) return {};
  const bool whole = state == State::master && storage.stays_whole;
  const int64_t start = state_->begin_of(parameter);
  const int64_t begin = whole ? 0 : local.begin;
  const int64_t end = whole ? local.flat->padded : local.begin + local.tensor.numel();
  const Held held{std::max<int64_t>(begin - start, 0),
                  std::min(end - start, parameter.shape.numel())};
  return held.begin < held.end ? held : Held();
}

void Engine::write(const Parameter& parameter, const State& state, std::span<const float> values) {
  require_writable(parameter, state);
  const std::vector<State> all = states(parameter);
  const bool exists = std::ranges::find(all, state) != all.end();
  const Shape shape = shape_of(parameter, state).value_or(parameter.shape);
  const size_t numel = exists ? static_cast<size_t>(shape.numel()) : 0;
  if (values.size() != numel && !state_->on_meta())
    raise<ShapeError>("write: '{}' takes {} values, got {}", parameter.name, numel, values.size());
  const Held held = this->held(parameter, state);
  if (!state_->on_meta())
    values =
        values.subspan(static_cast<size_t>(held.begin), static_cast<size_t>(held.end - held.begin));
  write_held(parameter, state, values);
}

void Engine::write_held(const Parameter& parameter, const State& state,
                        std::span<const float> values) {
  write_held(parameter, state, this->held(parameter, state), values);
}

void Engine::write_held(const Parameter& parameter, const State& state, Held held,
                        std::span<const float> values) {
  require_writable(parameter, state);
  const Held all = this->held(parameter, state);
  if (held.begin < held.end && (held.begin < all.begin || held.end > all.end))
    raise<ShapeError>(
        "write: elements {} to {} of '{}' are not on this rank; expected some of {} to {}",
        held.begin, held.end, parameter.name, all.begin, all.end);
  if (const auto numel = static_cast<size_t>(held.end - held.begin);
      values.size() != numel && !state_->on_meta())
    raise<ShapeError>("write: '{}' takes {} values on this rank, got {}", parameter.name, numel,
                      values.size());
  Storage& storage = state_->storage_of(parameter);
  if (state_->snapshot) state_->snapshot->wait_until_read();
  if (state_->speculation) state_->speculation->cancel();
  const Tensor shaped = shaped_state(storage, parameter, state);
  const int64_t start = (shaped ? 0 : state_->begin_of(parameter)) + held.begin;
  // Stores the values in elements [begin, begin + tensor.numel()) of the storage's flat array, or
  // of a state with a shape of its own.
  const auto store = [&](const Tensor& tensor, int64_t begin) {
    if (!tensor) return;
    const int64_t first = std::max(start, begin);
    const int64_t last = std::min(start + held.end - held.begin, begin + tensor.numel());
    if (first >= last) return;
    write_floats(tensor.flat(first - begin, last - first), [&](int64_t at, std::span<float> chunk) {
      const auto from = values.begin() + (first - start + at);
      std::copy(from, from + std::ssize(chunk), chunk.begin());
    });
  };
  if (shaped) return store(shaped.flat(0, shaped.numel()), 0);
  const Local local = local_state(*state_, parameter, state);
  store(local.tensor, local.begin);
  if (state != State::master) return;
  const Values& own = is_updated(parameter) ? storage.trainable : storage.frozen;
  if (storage.stays_whole)
    store(own.whole, 0);
  else
    store(own.shard, own.flat.shard_begin(state_->comm.rank()));
}

double target_weight(const StepTargets& targets) {
  const auto& [own, all, micro_batches] = targets;
  if (own < 0 || own > all || micro_batches < 1)
    raise<ConfigError>(
        "target_weight: {} targets in a micro-batch, {} in its step of {} "
        "micro-batches; expected 0 to those of the step, and one micro-batch or more",
        own, all, micro_batches);
  if (own == 0) return 0.0;
  return static_cast<double>(micro_batches) * static_cast<double>(own) / static_cast<double>(all);
}

}  // namespace zg::zero
