#include "zero/unit_storage.h"

#include <utility>

#include "kernels/check.h"
#include "kernels/elementwise.h"
#include "kernels/fold_gradient.h"
#include "runtime/cpu/team.h"
#include "zero/transfer.h"

namespace zg::zero {
namespace {

Tensor zeros(int64_t numel, DType dtype, const Device& device, Purpose purpose) {
  const PurposeScope scope(device, purpose);
  return Tensor::zeros({numel}, dtype, device);
}

// Long enough to hide its hand-out: an element costs tens of nanoseconds.
constexpr int64_t initialise_grain = 1 << 14;

void initialise_piece(const FlatUnit::Piece& piece, const Tensor& flat, uint64_t seed) {
  const Parameter& parameter = *piece.parameter;
  const int threads = flat.device().traits().threads;
  write_floats(flat.flat(piece.begin, piece.numel()), [&](int64_t first, std::span<float> values) {
    cpu::parallel_for(
        threads, static_cast<int64_t>(values.size()), initialise_grain,
        [&](int64_t begin, int64_t end) {
          zg::initialise(
              parameter.init, seed, parameter.name, piece.offset + first + begin,
              values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
        });
  });
}

}  // namespace

UnitStorage::UnitStorage(const Unit& unit, const Device& device, DType compute)
    : unit(&unit),
      compute(compute),
      trainable(FlatUnit::of(unit, FlatUnit::Part::trainable)),
      frozen(FlatUnit::of(unit, FlatUnit::Part::frozen)),
      pieces(trainable.shard(0)) {
  clear();
  if (!frozen.pieces.empty())
    frozen_values = zeros(frozen.padded, compute, device, Purpose::parameter);
  if (trainable.pieces.empty()) return;
  const int64_t shard = trainable.shard_numel();
  values = zeros(trainable.padded, compute, device, Purpose::parameter);
  sums = zeros(shard, DType::f32, device, Purpose::gradient);
  masters = compute == DType::f32 ? values.flat(shard_begin, shard)
                                  : zeros(shard, DType::f32, device, Purpose::optimizer);
  moment1 = zeros(shard, DType::f32, device, Purpose::optimizer);
  moment2 = zeros(shard, DType::f32, device, Purpose::optimizer);
}

void UnitStorage::initialise(uint64_t seed, Stream& stream) {
  for (const FlatUnit::Piece& piece : frozen.pieces) initialise_piece(piece, frozen_values, seed);
  for (const FlatUnit::Piece& piece : pieces) initialise_piece(piece, masters, seed);
  if (masters) round_masters(0, masters.numel(), stream);
}

Tensor UnitStorage::value(const Parameter& parameter, int64_t begin) const {
  const Tensor& flat = parameter.trainable ? values : frozen_values;
  return flat.alias(begin * size_of(compute), parameter.shape, compute);
}

void UnitStorage::fold(std::span<Tensor> gradients, Stream& stream) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FlatUnit::Piece& piece = pieces[i];
    const Tensor gradient = std::exchange(gradients[piece.position], Tensor());
    if (!gradient) continue;
    check_shape("reduce", piece.parameter->name.c_str(), gradient, piece.parameter->shape);
    kernels::fold_gradient({.leaf = gradient.flat(piece.offset, piece.numel()),
                            .sum = sums.flat(piece.begin, piece.numel()),
                            .rounding = compute,
                            .first = !folded[i]},
                           stream);
    folded[i] = true;
  }
}

void UnitStorage::zero_unfolded(Stream& stream) {
  for (size_t i = 0; i < pieces.size(); ++i)
    if (!folded[i]) fill_zero(sums.flat(pieces[i].begin, pieces[i].numel()), stream);
}

void UnitStorage::round_masters(int64_t begin, int64_t end, Stream& stream) {
  if (compute == DType::f32) return;
  kernels::cast(
      {.x = masters.flat(begin, end - begin), .y = values.flat(shard_begin + begin, end - begin)},
      stream);
}

Tensor UnitStorage::low_precision(const FlatUnit::Range& range) const {
  return compute == DType::f32 ? Tensor() : values.flat(shard_begin + range.begin, range.numel());
}

}  // namespace zg::zero
