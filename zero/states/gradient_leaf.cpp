#include "zerograd/zero/states/gradient_leaf.h"

#include <algorithm>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/zero/states/loan.h"

namespace zg::zero {
namespace {

Tensor empty_leaf(const FlatUnit& flat, const std::string& name, DType dtype,
                  const Device& device) {
  const PurposeScope purpose(device, Purpose::gradient);
  const NameScope name_of_leaf(device, name);
  return Tensor::empty({flat.padded}, dtype, device);
}

}  // namespace

GradientLeaf::GradientLeaf(const Storage& storage, const Device& device)
    : device_(device),
      name_(storage.name + " gradients"),
      flat_unit_(&storage.trainable.flat),
      flat_(empty_leaf(*flat_unit_, name_, storage.compute, device)),
      filled_(flat_unit_->pieces.size()),
      lent_(filled_.size()),
      missing_(filled_.size()) {}

size_t GradientLeaf::index_of(const Parameter& parameter) const {
  const std::vector<FlatUnit::Piece>& pieces = flat_unit_->pieces;
  return static_cast<size_t>(
      std::find_if(pieces.begin(), pieces.end(),
                   [&](const FlatUnit::Piece& piece) { return piece.parameter == &parameter; }) -
      pieces.begin());
}

Tensor GradientLeaf::part(size_t index) const {
  const FlatUnit::Piece& piece = flat_unit_->pieces[index];
  return flat_.flat(piece.begin, piece.numel());
}

Tensor GradientLeaf::lend(const Parameter& parameter) {
  const size_t index = index_of(parameter);
  if (index == filled_.size() || filled_[index] || !lent_[index].expired()) return {};
  return zero::lend(part(index), parameter.shape, lent_[index]);
}

bool GradientLeaf::is_lent() const {
  return std::any_of(lent_.begin(), lent_.end(), [](const auto& loan) { return !loan.expired(); });
}

void GradientLeaf::move() {
  const Tensor elsewhere = empty_leaf(*flat_unit_, name_, flat_.dtype(), device_);
  copy(flat_, elsewhere, device_.compute());
  flat_ = elsewhere;
  lent_.assign(lent_.size(), {});
}

void GradientLeaf::fill(const Parameter& parameter, const Tensor& gradient) {
  const size_t index = index_of(parameter);
  const bool in_place = gradient && gradient.buffer().get() == flat_.buffer().get() &&
                        gradient.byte_offset() == part(index).byte_offset();
  if (!in_place && !lent_[index].expired()) move();  // another tape's gradient is there
  if (!gradient)
    fill_zero(part(index), device_.compute());
  else if (!in_place)
    kernels::cast({.x = gradient.flat(0, gradient.numel()), .y = part(index)}, device_.compute());
  if (!filled_[index]) --missing_;
  filled_[index] = true;
}

const Tensor& GradientLeaf::complete() {
  if (is_lent()) move();
  for (size_t i = 0; i < filled_.size(); ++i) {
    if (!filled_[i]) fill_zero(part(i), device_.compute());
    const int64_t end = flat_unit_->pieces[i].end;
    const int64_t next =
        i + 1 < filled_.size() ? flat_unit_->pieces[i + 1].begin : flat_unit_->padded;
    if (end < next) fill_zero(flat_.flat(end, next - end), device_.compute());
  }
  return flat_;
}

}  // namespace zg::zero
