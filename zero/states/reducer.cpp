#include "zerograd/zero/states/reducer.h"

#include <algorithm>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::zero {
namespace {

Tensor empty_leaf(const FlatUnit& flat, const std::string& name, DType dtype,
                  const Device& device) {
  const PurposeScope purpose(device, Purpose::gradient);
  const NameScope name_of_leaf(device, name);
  return Tensor::empty({flat.padded}, dtype, device);
}

// Runs on the communication worker, on a peer's memory. The arguments were checked before, so this
// launches the kernel without checks and without scratch.
void fold_piece(const Tensor& piece, const Tensor& sums, bool first, Stream& stream) {
  const FoldGradient args{.parts = {{.leaf = piece, .sum = sums, .first = first}},
                          .rounding = piece.dtype()};
  kernels::fold_gradient[stream.type()].function(args, {}, stream);
}

/// Adds the leaves to their sums, one launch for all leaves of one dtype.
void fold_all(const std::vector<FoldGradient::Part>& parts, DType rounding, Stream& stream) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    FoldGradient args{.parts = {}, .rounding = rounding};
    for (const FoldGradient::Part& part : parts)
      if (part.leaf.dtype() == dtype) args.parts.push_back(part);
    if (!args.parts.empty()) kernels::fold_gradient(args, stream);
  }
}

// Whether no gradient was added to the accumulators since the last step.
bool is_fresh(const Storage& storage) { return storage.folded.empty() || !storage.folded[0]; }

}  // namespace

GradientLeaf::GradientLeaf(const Storage& storage, const Device& device)
    : device_(device),
      name_(storage.name + " gradients"),
      flat_unit_(&storage.trainable.flat),
      index_of_(&storage.index_in_flat),
      flat_(empty_leaf(*flat_unit_, name_, storage.compute, device)),
      filled_(flat_unit_->pieces.size()),
      lent_(filled_.size()),
      missing_(filled_.size()) {}

Tensor GradientLeaf::part(size_t index) const {
  const FlatUnit::Piece& piece = flat_unit_->pieces[index];
  return flat_.flat(piece.begin, piece.numel());
}

Tensor GradientLeaf::lend(const Parameter& parameter) {
  const size_t index = (*index_of_)(parameter);
  if (index == filled_.size() || filled_[index] || !lent_[index].expired()) return {};
  return zero::lend(part(index), parameter.shape, lent_[index]);
}

bool GradientLeaf::is_lent() const {
  return std::any_of(lent_.begin(), lent_.end(),
                     [](const auto& borrowed) { return !borrowed.expired(); });
}

void GradientLeaf::move() {
  const Tensor elsewhere = empty_leaf(*flat_unit_, name_, flat_.dtype(), device_);
  copy(flat_, elsewhere, device_.compute());
  flat_ = elsewhere;
  lent_.assign(lent_.size(), {});
}

void GradientLeaf::fill(const Parameter& parameter, const Tensor& gradient) {
  const size_t index = (*index_of_)(parameter);
  const bool in_place = gradient && gradient.buffer().get() == flat_.buffer().get() &&
                        gradient.byte_offset() == part(index).byte_offset();
  if (!in_place && !lent_[index].expired()) move();  // the memory has the gradient of another tape
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

Reducer::Reducer(Communicator& comm, const Device& device, const Config& config)
    : comm_(comm), device_(device), config_(config) {}

void Reducer::reduce(Storage& storage, std::span<const Parameter* const> parameters,
                     std::span<Tensor> gradients) {
  if (storage.trainable.empty()) return;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (gradients[i])
      check_shape("reduce", parameters[i]->name.c_str(), gradients[i], parameters[i]->shape);
  if (comm_.size() == 1 || config_.reduce_at_boundary)
    return fold_here(storage, parameters, gradients);
  Leaf& leaf = leaf_of(storage);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (is_updated(*parameters[i]))
      leaf.gradients.fill(*parameters[i], std::exchange(gradients[i], Tensor()));
  if (leaf.gradients.is_full()) send(leaf);
}

Tensor Reducer::place_of(Storage& storage, const Parameter& parameter) {
  if (in_file(storage.sums) || accumulator(storage.compute) != storage.compute) return {};
  return leaf_of(storage).gradients.lend(parameter);
}

void Reducer::fold_here(Storage& storage, std::span<const Parameter* const> parameters,
                        std::span<Tensor> gradients) {
  const bool local = config_.reduce_at_boundary;
  if (!local) storage.open_sums();
  const Tensor& sums = local ? storage.local_sums : storage.sums;
  std::vector<FoldGradient::Part> folds;  // additions to accumulators that are in a file
  std::vector<Streaming::Part> parts;
  std::vector<FoldGradient::Part> here;  // the others: one launch
  size_t filled = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = std::exchange(gradients[i], Tensor());
    if (!gradient || gradient.numel() == 0) continue;
    ++filled;
    const FlatUnit::Piece& piece =
        storage.trainable.flat.pieces[storage.index_in_flat(*parameters[i])];
    // Used without local sums: a single rank, which has the whole array in its shard.
    const size_t index = storage.index_in_shard(*parameters[i]);
    const bool in_place = gradient.buffer().get() == sums.buffer().get();
    if (!local && !in_place && storage.is_lent(index)) {
      fold_all(here, storage.compute, device_.compute());  // before the sums move elsewhere
      here.clear();
      storage.leave_lent(device_.compute());
    }
    const bool first = !local && !storage.folded[index];
    if (!local) storage.folded[index] = true;
    const int64_t step = in_file(sums) ? config_.offload.sub_group_size : piece.numel();
    for (int64_t begin = 0; begin < piece.numel(); begin += step) {
      const int64_t count = std::min(step, piece.numel() - begin);
      const Tensor sum = sums.flat(piece.begin + begin, count);
      const FoldGradient::Part part{
          .leaf = gradient.flat(begin, count), .sum = sum, .first = first};
      if (!in_file(sums)) {
        here.push_back(part);
        continue;
      }
      folds.push_back(part);
      parts.push_back(
          {{.tensor = sum, .loads = !first, .unit = storage.name, .state = "gradients"}});
    }
  }
  fold_all(here, storage.compute, device_.compute());
  here.clear();
  storage.summed = filled == storage.pieces.size();
  if (folds.empty()) return;
  std::unique_ptr<Streaming> streaming = stream(std::move(parts));
  for (FoldGradient::Part& part : folds) {
    part.sum = streaming->next()[0];
    fold_all({part}, storage.compute, device_.compute());
    streaming->keep();
  }
  leave(std::move(streaming));
}

std::unique_ptr<Streaming> Reducer::stream(std::vector<Streaming::Part> parts) const {
  const PurposeScope purpose(device_, Purpose::gradient);
  const NameScope name(device_, "sums of gradients on their way");
  return std::make_unique<Streaming>(std::move(parts), device_);
}

void Reducer::leave(std::unique_ptr<Streaming> sums) {
  if (leaving_) leaving_->finish();
  leaving_ = std::move(sums);
}

Reducer::Leaf& Reducer::leaf_of(Storage& storage) {
  for (Leaf& leaf : filling_)
    if (leaf.storage == &storage) return leaf;
  wait_for(1);  // one leaf is being sent while the next is filled
  filling_.push_back({&storage, {storage, device_}, -1, nullptr});
  if (in_file(storage.sums))
    filling_.back().sums = stream({{{.tensor = storage.sums,
                                     .loads = !is_fresh(storage),
                                     .unit = storage.name,
                                     .state = "gradients"}}});
  return filling_.back();
}

void Reducer::send(Leaf& leaf) {
  const Leaf* const place = &leaf;
  Leaf sent = std::move(leaf);
  std::erase_if(filling_, [place](const Leaf& other) { return &other == place; });
  Storage& storage = *sent.storage;
  const bool fresh = is_fresh(storage);
  storage.folded.assign(storage.folded.size(), true);
  storage.open_sums();
  sent.place = sent.sums ? sent.sums->next()[0] : storage.sums;
  const Tensor& whole = sent.gradients.complete();
  {
    const PurposeScope purpose(device_, Purpose::gradient);
    const NameScope name(device_, storage.name + " sums");
    sent.near = near_kernels(sent.place);
  }
  sent.last = scatter(whole, sent.near, storage, fresh);
  in_flight_.push_back(std::move(sent));
  if (!config_.overlap_comm) wait_for(0);
}

Communicator::Ticket Reducer::scatter(const Tensor& whole, const Tensor& sums,
                                      const Storage& storage, bool fresh) {
  const int64_t step = std::max<int64_t>(1, config_.reduce_bucket_size / comm_.size());
  const int64_t numel = sums.numel();
  Communicator::Ticket last = -1;
  for (int64_t begin = 0; begin < numel; begin += step)
    last = comm_.reduce_scatter(whole, sums, fresh, fold_piece, storage.name + " gradients",
                                {begin, std::min(step, numel - begin)});
  return last;
}

void Reducer::note_sums() {
  for (const Leaf& leaf : in_flight_)
    if (comm_.is_done(leaf.last) && !leaf.sums) leaf.storage->summed = true;
}

void Reducer::wait_for(size_t in_flight) {
  while (in_flight_.size() > in_flight) {
    Leaf& first = in_flight_.front();
    first.sums ? comm_.wait(first.last) : comm_.wait_on_device(first.last);
    if (first.near.raw() != first.place.raw()) copy(first.near, first.place, device_.compute());
    first.storage->summed = true;
    if (first.sums) {
      if (!kernels_reach(first.place)) device_.compute().synchronize();  // the disk reads it
      first.sums->keep();
      leave(std::move(first.sums));
    }
    in_flight_.pop_front();
  }
}

void Reducer::finish() {
  // A leaf without gradients whose memory is lent belongs to another tape, which has not run
  // backward yet.
  std::erase_if(filling_, [](const Leaf& leaf) {
    return leaf.gradients.is_empty() && !leaf.gradients.is_lent();
  });
  for (size_t i = filling_.size(); i-- > 0;)
    if (!filling_[i].gradients.is_empty()) send(filling_[i]);
  wait_for(0);
  leave(nullptr);
}

void Reducer::reduce_local_sums(Storage& storage) {
  if (!storage.local_sums) return;
  storage.open_sums();
  const std::unique_ptr<Streaming> sums = stream(
      {{{.tensor = storage.sums, .loads = false, .unit = storage.name, .state = "gradients"}}});
  const Tensor place = sums->next()[0], near = near_kernels(place);
  comm_.wait(scatter(near_kernels(in_memory(storage.local_sums)), near, storage, /*fresh=*/true));
  if (near.raw() != place.raw()) {
    copy(near, place, device_.compute());
    device_.compute().synchronize();  // the disk may read it
  }
  sums->keep();
  sums->finish();
  storage.folded.assign(storage.folded.size(), true);
  fill_zero(storage.local_sums, device_.compute());
}

}  // namespace zg::zero
