#include "zerograd/zero/optimizer/lanes.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "zerograd/runtime/random.h"
#include "zerograd/zero/states/partition.h"

namespace zg::zero {
namespace {

/// Adjacent pieces with equal numbers, including the padding between and after them. The ends are
/// relative to `begin` of ranges_of(), and multiples of FlatUnit::alignment.
struct Range {
  int64_t begin, end;
  const Parameter* first;  // its numbers are those of all
};

std::vector<Range> ranges_of(const FlatUnit& flat, int64_t begin, int64_t end,
                             const UpdateOptions& options) {
  std::vector<Range> merged;
  std::optional<UpdateNumbers> last;
  for (const FlatUnit::Piece& piece : flat.within(begin, end)) {
    const UpdateNumbers numbers = numbers_of(options, *piece.parameter);
    const int64_t aligned = FlatUnit::aligned(piece.end);
    if (last == numbers)
      merged.back().end = aligned;
    else
      merged.push_back({piece.begin, aligned, piece.parameter});
    last = numbers;
  }
  return merged;
}

}  // namespace

StateTensors states_of(const Storage& storage) {
  StateTensors tensors = {storage.masters};
  for (const Storage::State& state : storage.states) tensors.push_back(state.tensor);
  tensors.push_back(storage.low_precision(storage.state_begin, storage.state_numel));
  const bool own = storage.trainable.flat.shard_numel() == storage.state_numel;
  tensors.push_back(own ? storage.sums : Tensor());
  return tensors;
}

Tensor part_of(const Storage& storage, const StateTensors& states, size_t lane, int64_t begin,
               int64_t numel) {
  if (!states[lane]) return {};
  if (lane >= first_state_lane && lane < values_lane(storage)) {
    const Storage::State& state = storage.states[lane - first_state_lane];
    begin -= state.begin - storage.state_begin;
    if (!state.parts.empty() || begin < 0 || begin + numel > state.tensor.numel()) return {};
  }
  return states[lane].flat(begin, numel);
}

int64_t whole_in(const Storage& storage) {
  return std::clamp<int64_t>(storage.trainable.flat.whole_end - storage.state_begin, 0,
                             storage.state_numel);
}

bool is_offloaded(const Storage& storage) {
  Tensor state = storage.values_are_masters ? Tensor() : storage.masters;
  for (size_t i = 0; i < storage.states.size(); ++i)
    if (storage.states[i].tensor && !storage.optimizers->arrays()[i].everywhere)
      state = storage.states[i].tensor;
  return state && state.buffer()->space() != Space::device;
}

bool is_updated_by_host(const Storage& storage) {
  return is_offloaded(storage) && storage.device.traits().backend != Device::Type::cpu;
}

Streaming::Lane lane_of(const Storage& storage, const StateTensors& states, size_t lane) {
  const size_t values = values_lane(storage);
  return {.tensor = states[lane],
          .loads = lane != values && !storage.updated,
          .saves = lane != sums_lane(storage) && !storage.updated,
          .ahead = lane == values || (lane == masters_lane && storage.values_are_masters),
          .to_host = is_updated_by_host(storage),
          .unit = storage.name,
          .state = lane == masters_lane ? "masters"
                   : lane < values      ? std::string_view(storage.states[lane - 1].name)
                   : lane == values     ? "values"
                                        : "gradients"};
}

int64_t step_of(int64_t numel, bool streams, const Config& config) {
  return streams ? std::min(FlatUnit::aligned(config.offload.sub_group_size), numel) : numel;
}

bool streams(const Storage& storage) {
  const StateTensors states = states_of(storage);
  bool moves = false;
  for (size_t i = 0; i < states.size(); ++i) {
    const bool is_state = i >= first_state_lane && i < values_lane(storage);
    if (is_state && storage.optimizers->arrays()[i - first_state_lane].everywhere) continue;
    moves |= lane_of(storage, states, i).moves();
  }
  return moves;
}

int64_t step_of(const Storage& storage, const Config& config) {
  return step_of(storage.state_numel, streams(storage), config);
}

std::vector<Chunk> chunks_of(const Storage& storage, const Config& config) {
  const FlatUnit& flat = storage.trainable.flat;
  const int64_t step = step_of(storage, config), end = storage.state_begin + storage.state_numel;
  std::vector<Chunk> chunks;
  const auto add = [&](int64_t from, int64_t to, size_t optimizer, const Parameter* whole) {
    chunks.push_back({from - storage.state_begin, to - from, optimizer, whole});
  };
  for (const FlatUnit::Section& section : flat.sections) {
    const int64_t first = std::max(section.begin, storage.state_begin + whole_in(storage));
    const int64_t last = std::min(section.end, end);
    if (storage.optimizers->all()[section.optimizer].owns_parameters()) {
      for (const FlatUnit::Piece& piece : flat.within(first, last))
        add(first + piece.begin, first + FlatUnit::aligned(piece.end), section.optimizer,
            piece.parameter);
      continue;
    }
    for (int64_t begin = first; begin < last; begin += step)
      add(begin, std::min(begin + step, last), section.optimizer, nullptr);
  }
  return chunks;
}

Streaming::Part part_of(const Storage& storage, const StateTensors& states, const Chunk& chunk) {
  Streaming::Part part;
  for (size_t i = 0; i < states.size(); ++i) {
    part.push_back(lane_of(storage, states, i));
    part.back().tensor = part_of(storage, states, i, chunk.begin, chunk.numel);
    if (const bool is_state = i >= first_state_lane && i < values_lane(storage);
        is_state && chunk.whole && !part.back().tensor)
      part.back().tensor = storage.shaped(i - first_state_lane, *chunk.whole);
  }
  return part;
}

void append(const Storage& storage, const Chunk& chunk, const Tensor& gradients,
            std::span<const Tensor> states, const UpdateOptions& options,
            std::vector<OptimizerRange>& to) {
  const int64_t begin = storage.state_begin + chunk.begin, end = begin + chunk.numel;
  const auto append_part = [&](int64_t first, int64_t numel, const Parameter& parameter) {
    const Optimizers::Entry& entry = storage.optimizers->of(parameter);
    const auto part = [&](const Tensor& tensor) {
      if (!tensor) return Tensor();
      const Tensor flat = tensor.flat(first, numel);
      return chunk.whole ? flat.view(parameter.shape) : flat;
    };
    const UpdateNumbers numbers = numbers_of(options, parameter);
    OptimizerRange& range = to.emplace_back();
    range.master = part(states[masters_lane]);
    range.gradient = part(gradients);
    range.value = part(states[values_lane(storage)]);
    range.rate_factor = numbers.rate_factor;
    range.weight_decay = numbers.weight_decay;
    range.declared = entry.states;
    for (size_t i = 0; i < entry.states.size(); ++i) {
      const Tensor& state = states[first_state_lane + entry.arrays[i]];
      range.states.push_back(entry.states[i].shape && state
                                 ? state.view(entry.states[i].shape(parameter.shape))
                                 : part(state));
    }
    return &range;
  };
  const FlatUnit& flat = storage.trainable.flat;
  if (!chunk.whole && !options.stochastic_rounding) {
    for (const Range& range : ranges_of(flat, begin, end, options))
      append_part(range.begin, range.end - range.begin, *range.first);
    return;
  }
  // The random bits depend on the element's index in the whole parameter.
  for (const FlatUnit::Piece& piece : flat.within(begin, end)) {
    const Slice& slice = piece.parameter->slice;
    for (int64_t done = 0; done < piece.numel();) {
      const int64_t element = piece.offset + done, left = piece.numel() - done;
      const int64_t run = slice.is_whole() ? left : std::min(left, slice.run_left(element));
      OptimizerRange* const range = append_part(piece.begin + done, run, *piece.parameter);
      range->name = hash_name(piece.parameter->name.c_str());
      range->first = slice.whole_index(element);
      done += run;
    }
  }
}

void HostStream::copy(void* to, const void* from, size_t bytes) {
  if (type() != Device::Type::meta) std::memmove(to, from, bytes);
}
void HostStream::fill_zero(void* to, size_t bytes) {
  if (type() != Device::Type::meta) std::memset(to, 0, bytes);
}

}  // namespace zg::zero
