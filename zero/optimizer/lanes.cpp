#include "zerograd/zero/optimizer/lanes.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "zerograd/runtime/random.h"
#include "zerograd/zero/states/partition.h"

namespace zg::zero {
namespace {

constexpr std::string_view state_names[] = {"masters", "moment1", "moment2", "values", "gradients"};

/// Adjacent pieces with equal numbers, including the padding between and after them. The ends are
/// relative to `begin` of ranges_of(), and multiples of FlatUnit::alignment.
struct Range {
  int64_t begin, end;
  UpdateNumbers numbers;
};

std::vector<Range> ranges_of(const FlatUnit& flat, int64_t begin, int64_t end,
                             const UpdateOptions& options) {
  std::vector<Range> merged;
  for (const FlatUnit::Piece& piece : flat.within(begin, end)) {
    const Range range = {piece.begin, FlatUnit::aligned(piece.end),
                         numbers_of(options, *piece.parameter)};
    if (!merged.empty() && merged.back().numbers == range.numbers)
      merged.back().end = range.end;
    else
      merged.push_back(range);
  }
  return merged;
}

}  // namespace

StateTensors states_of(const Storage& storage) {
  const bool own = storage.sums.numel() == storage.state_numel;
  return {storage.masters, storage.moment1, storage.moment2,
          storage.low_precision(storage.state_begin, storage.state_numel),
          own ? storage.sums : Tensor()};
}

Tensor part_of(const Storage& storage, const StateTensors& states, size_t state, int64_t begin,
               int64_t numel) {
  if (!states[state]) return {};
  return states[state].flat(
      state == moment2 ? begin - (storage.moment2_begin - storage.state_begin) : begin, numel);
}

int64_t whole_in(const Storage& storage) {
  return std::clamp<int64_t>(storage.trainable.flat.whole_end - storage.state_begin, 0,
                             storage.state_numel);
}

bool is_updated_by_host(const Storage& storage) {
  if (!storage.moment1 && storage.values_are_masters) return false;  // no states
  const Tensor& state = storage.moment1 ? storage.moment1 : storage.masters;
  return state && state.buffer()->space() != Space::device &&
         state.device().traits().backend != Device::Type::cpu;
}

Streaming::Lane lane_of(const Storage& storage, const StateTensors& states, size_t state) {
  return {.tensor = states[state],
          .loads = state != low_precision,
          .saves = state != sums,
          .to_host = is_updated_by_host(storage),
          .unit = storage.name,
          .state = state_names[state]};
}

int64_t step_of(int64_t numel, bool streams, const Config& config) {
  return streams ? std::min(FlatUnit::aligned(config.offload.sub_group_size), numel) : numel;
}

bool streams(const Storage& storage) {
  const StateTensors states = states_of(storage);
  bool moves = false;
  for (size_t i = 0; i < states.size(); ++i) moves |= lane_of(storage, states, i).moves();
  return moves;
}

int64_t step_of(const Storage& storage, const Config& config) {
  return step_of(storage.state_numel, streams(storage), config);
}

void append(const Storage& storage, int64_t begin, const Tensor& gradients,
            std::span<const Tensor> states, const UpdateOptions& options,
            std::vector<OptimizerTensor>& to) {
  const int64_t end = begin + gradients.numel();
  const auto append_part = [&](int64_t first, int64_t numel, const UpdateNumbers& numbers) {
    const auto part = [&](const Tensor& tensor) {
      return tensor ? tensor.flat(first, numel) : Tensor();
    };
    to.push_back({.parameter = part(states[masters]),
                  .gradient = part(gradients),
                  .moment1 = part(states[moment1]),
                  .moment2 = part(states[moment2]),
                  .low_precision = part(states[low_precision]),
                  .weight_decay = numbers.weight_decay,
                  .rate_factor = numbers.rate_factor});
  };
  const FlatUnit& flat = storage.trainable.flat;
  if (!options.stochastic_rounding) {
    for (const Range& range : ranges_of(flat, begin, end, options))
      append_part(range.begin, range.end - range.begin, range.numbers);
    return;
  }
  // The random bits depend on the element's index in the whole parameter.
  for (const FlatUnit::Piece& piece : flat.within(begin, end)) {
    const Slice& slice = piece.parameter->slice;
    for (int64_t done = 0; done < piece.numel();) {
      const int64_t element = piece.offset + done, left = piece.numel() - done;
      const int64_t run = slice.is_whole() ? left : std::min(left, slice.run_left(element));
      append_part(piece.begin + done, run, numbers_of(options, *piece.parameter));
      to.back().name = hash_name(piece.parameter->name.c_str());
      to.back().first = slice.whole_index(element);
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
