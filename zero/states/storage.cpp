#include "zerograd/zero/states/storage.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

Tensor zeros(int64_t numel, DType dtype, const Device& device, Purpose purpose, Space space) {
  const PurposeScope scope(device, purpose);
  const Tensor tensor =
      Tensor::empty({numel}, dtype, device, space == Space::host ? host_space(device) : space);
  fill_zero(tensor, device.compute());
  return tensor;
}

Values make_values(std::span<const Parameter* const> parameters, FlatUnit::Part part,
                   const Storage::Placement& place) {
  Values values{.flat = FlatUnit::of(parameters, part, place.world, place.optimizers,
                                     place.config.stage > 0)};
  if (values.empty() || (place.rounds_at_use && part == FlatUnit::Part::trainable)) return values;
  const int64_t shard = values.flat.shard_numel();
  const DType dtype = place.config.compute;
  if (place.stays_whole) {
    values.whole =
        zeros(values.flat.padded, dtype, place.device, Purpose::parameter, Space::device);
    values.shard = values.whole.flat(values.flat.shard_begin(place.rank), shard);
  } else {
    values.shard = zeros(shard, dtype, place.device, Purpose::parameter, place.parameter);
  }
  return values;
}

// Elements per task: an element takes tens of nanoseconds, so starting a task costs little.
constexpr int64_t initialise_grain = 1 << 14;

void initialise_pieces(std::span<const FlatUnit::Piece> pieces, const Tensor& flat, uint64_t seed,
                       DType load) {
  const int threads = flat.device().traits().threads;
  for (const FlatUnit::Piece& piece : pieces) {
    const Parameter& parameter = *piece.parameter;
    Init init = parameter.init;
    write_floats(
        flat.flat(piece.begin, piece.numel()), [&](int64_t first, std::span<float> values) {
          init = prepared(init, seed, parameter.name);
          cpu::parallel_for(
              threads, std::ssize(values), initialise_grain, [&](int64_t begin, int64_t end) {
                const std::span<float> part =
                    values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
                zg::initialise(init, seed, parameter.name, parameter.slice,
                               piece.offset + first + begin, part);
                if (load == DType::bf16) round_to_bf16(part);
              });
        });
  }
}

}  // namespace

Storage::Storage(std::string name, std::span<const Parameter* const> parameters,
                 const Placement& place)
    : name(std::move(name)),
      device(place.device),
      compute(place.config.compute),
      rank(place.rank),
      stays_whole(place.stays_whole),
      rounds_at_use(place.rounds_at_use),
      values_are_masters(place.config.compute == place.config.optimizer),
      trainable(make_values(parameters, FlatUnit::Part::trainable, place)),
      frozen(make_values(parameters, FlatUnit::Part::frozen, place)),
      sums_dtype(place.config.grad_accum),
      sums_space(place.config.offload.gradient),
      pieces(trainable.flat.shard(place.rank)),
      optimizers(&place.optimizers),
      lent(pieces.size()) {
  clear();
  for (const Optimizers::Array& array : optimizers->arrays()) states.push_back({array.name});
  if (trainable.empty()) return;
  const FlatUnit& flat = trainable.flat;
  const Config& config = place.config;
  sums_begin = flat.shard_begin(place.rank);
  state_begin = config.stage == 0 ? 0 : sums_begin;
  state_numel = config.stage == 0 ? flat.padded : flat.shard_numel();
  const auto gradients = [&](int64_t numel, DType dtype) {
    return zeros(numel, dtype, place.device, Purpose::gradient, config.offload.gradient);
  };
  if (sums_space != Space::device) sums = gradients(flat.shard_numel(), sums_dtype);
  if (config.reduce_at_boundary) local_sums = gradients(flat.padded, DType::f32);
  const auto state = [&](int64_t numel, DType dtype) {
    return zeros(numel, dtype, place.device, Purpose::optimizer, place.optimizer);
  };
  masters = !values_are_masters ? state(state_numel, config.optimizer)
            : config.stage == 0 ? trainable.whole
                                : trainable.shard;
  for (size_t i = 0; i < states.size(); ++i) {
    const Optimizers::Array& array = optimizers->arrays()[i];
    const auto is_of = [&](size_t optimizer) {
      const std::vector<size_t>& arrays = optimizers->all()[optimizer].arrays;
      return std::find(arrays.begin(), arrays.end(), i) != arrays.end();
    };
    if (array.shaped) {
      add_shaped(states[i], i, place);
      continue;
    }
    int64_t first = flat.padded, last = 0;
    const int64_t state_end = state_begin + state_numel;
    for (const FlatUnit::Section& section : flat.sections) {
      const bool is_here = section.begin < state_end && section.end > state_begin;
      if (!is_of(section.optimizer) || (flat.is_owned && !is_here)) continue;
      first = std::min(first, section.begin);
      last = section.end;
    }
    states[i].is_whole = first == 0 && last == flat.padded;
    states[i].begin = std::clamp(first, state_begin, state_end);
    last = std::clamp(last, states[i].begin, state_end);
    if (states[i].begin < last)
      states[i].tensor = state(last - states[i].begin, array.dtype.value_or(config.optimizer));
  }
}

void Storage::add_shaped(State& state, size_t index, const Placement& place) {
  const bool everywhere = optimizers->arrays()[index].everywhere;
  int64_t length = 0;
  for (const FlatUnit::Piece& piece : trainable.flat.pieces) {
    const Optimizers::Entry& entry = optimizers->of(*piece.parameter);
    const auto found = std::find(entry.arrays.begin(), entry.arrays.end(), index);
    const bool is_own = piece.begin >= state_begin && piece.end <= state_begin + state_numel;
    if (found == entry.arrays.end() || !(everywhere || is_own)) continue;
    const Shape shape = entry.states[static_cast<size_t>(found - entry.arrays.begin())].shape(
        piece.parameter->shape);
    state.parts.emplace(piece.parameter, State::Part{length, shape});
    length += FlatUnit::aligned(shape.numel());
  }
  if (length > 0)
    state.tensor = zeros(length, DType::f32, place.device, Purpose::optimizer,
                         everywhere ? Space::device : place.optimizer);
}

void Storage::initialise(uint64_t seed, DType load) {
  const auto fill = [&](const Values& values) {
    if (values.empty()) return;
    if (values.whole)
      initialise_pieces(values.flat.pieces, values.whole, seed, load);
    else if (values.shard)
      initialise_pieces(values.flat.shard(rank), values.shard, seed, load);
  };
  fill(frozen);
  fill(trainable);
  if (!masters || values_are_masters) return;
  initialise_pieces(trainable.flat.within(state_begin, state_begin + state_numel), masters, seed,
                    load);
  round_masters(state_begin, state_begin + state_numel);
}

Tensor Storage::shaped(size_t state, const Parameter& parameter) const {
  const auto part = states[state].parts.find(&parameter);
  if (part == states[state].parts.end()) return {};
  const auto& [begin, shape] = part->second;
  return states[state].tensor.flat(begin, shape.numel()).view(shape);
}

size_t Storage::index_of(const Parameter& parameter, std::string_view state) const {
  const Optimizers::Entry& entry = optimizers->of(parameter);
  for (size_t i = 0; i < entry.states.size(); ++i)
    if (entry.states[i].name == state) return entry.arrays[i];
  return states.size();
}

void Storage::open_sums() {
  if (sums || trainable.empty()) return;
  const PurposeScope purpose(device, Purpose::gradient);
  const NameScope name_of_sums(device, name + " sums");
  const int64_t numel = trainable.flat.shard_numel();
  sums = Tensor::empty({numel}, sums_dtype, device);
  int64_t end = 0;
  const auto zero_until = [&](int64_t begin) {
    if (end < begin) fill_zero(sums.flat(end, begin - end), device.compute());
  };
  for (const FlatUnit::Piece& piece : pieces) {
    zero_until(piece.begin);
    end = piece.end;
  }
  zero_until(numel);
}

void Storage::release_sums() {
  const auto in_use = [&](size_t piece) { return folded[piece] || is_lent(piece); };
  if (sums_space == Space::device &&
      std::ranges::none_of(std::views::iota(size_t{0}, pieces.size()), in_use))
    sums = {};
}

void Storage::zero_unfolded(Stream& stream) {
  open_sums();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (folded[i]) continue;
    if (is_lent(i)) leave_lent(stream);
    fill_zero(sums.flat(pieces[i].begin, pieces[i].numel()), stream);
  }
}

Tensor Storage::lend_sum(size_t piece) {
  if (folded[piece] || is_lent(piece) || sums_dtype != DType::f32 || sums_space != Space::device)
    return {};
  open_sums();
  return lend(sums.flat(pieces[piece].begin, pieces[piece].numel()), pieces[piece].parameter->shape,
              lent[piece]);
}

void Storage::leave_lent(Stream& stream) {
  const PurposeScope purpose(sums.device(), Purpose::gradient);
  const NameScope name_of_sums(sums.device(), name + " sums");
  const Tensor elsewhere = Tensor::empty(sums.shape(), sums.dtype(), sums.device());
  copy(sums, elsewhere, stream);
  sums = elsewhere;
  lent.assign(lent.size(), {});
}

void Storage::open_values() {
  if (!rounds_at_use || trainable.empty() || trainable.whole) return;
  const PurposeScope purpose(device, Purpose::parameter);
  const NameScope name_of_values(device, name + " values");
  trainable.whole = Tensor::empty({trainable.flat.padded}, compute, device);
  trainable.shard = trainable.whole;
  kernels::cast({.x = masters, .y = trainable.whole}, device.compute());
}

void Storage::free_values() {
  if (rounds_at_use) trainable.whole = trainable.shard = {};
}

void Storage::round_masters(int64_t begin, int64_t end) {
  if (const Tensor values = low_precision(begin, end - begin))
    convert(masters.flat(begin - state_begin, end - begin), values);
}

Tensor Storage::low_precision(int64_t begin, int64_t numel) const {
  if (values_are_masters || !trainable.shard) return {};
  return trainable.whole && stays_whole ? trainable.whole.flat(begin, numel)
                                        : trainable.shard.flat(begin - sums_begin, numel);
}

Tensor lend(const Tensor& place, const Shape& shape, std::weak_ptr<Buffer>& borrowed) {
  std::shared_ptr<Buffer> buffer(place.buffer().get(),
                                 [owner = place.buffer()](Buffer*) mutable { owner.reset(); });
  borrowed = buffer;
  return Tensor::of(std::move(buffer), place.byte_offset(), shape, place.dtype());
}

Placements::Placements(const OffloadOptions& offload, const ParameterStore& store, int world)
    : offload_(offload), world_(world), host_left_(offload.parameters_on_host) {
  int64_t trainable = 0;
  for (const auto& parameter : store.parameters())
    if (is_updated(*parameter)) trainable += parameter->shape.numel();
  states_left_ = offload.optimizer_ratio * static_cast<double>(trainable);
}

Placements::Placement Placements::next(std::span<const Parameter* const> parameters,
                                       bool stays_whole) {
  Placement place{.parameter = offload_.parameter, .optimizer = offload_.optimizer};
  int64_t all = 0, trainable = 0;
  for (const Parameter* parameter : parameters) {
    all += parameter->shape.numel();
    if (is_updated(*parameter)) trainable += parameter->shape.numel();
  }
  if (states_left_ <= 0.0) place.optimizer = Space::device;
  states_left_ -= static_cast<double>(trainable);
  if (const int64_t shard = (all + world_ - 1) / world_;
      place.parameter == Space::file && !stays_whole && shard <= host_left_) {
    place.parameter = Space::host;
    host_left_ -= shard;
  }
  return place;
}

}  // namespace zg::zero
