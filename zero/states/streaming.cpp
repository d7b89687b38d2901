#include "zerograd/zero/states/streaming.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {

bool Streaming::Lane::moves() const {
  return tensor && (in_file(tensor) || (to_host && !host_reaches(tensor)));
}

Streaming::Streaming(std::vector<Part> parts, const Device& device)
    : device_(device), parts_(std::move(parts)) {
  if (parts_.empty()) return;
  for (size_t set = 0; set < std::min(buffers_.size(), parts_.size()); ++set) {
    Buffers& buffers = buffers_[set];
    buffers.resize(parts_[0].size());
    for (size_t lane = 0; lane < buffers.size(); ++lane) {
      Tensor widest;
      for (const Part& part : parts_)
        if (part[lane].moves() && (!widest || part[lane].tensor.numel() > widest.numel()))
          widest = part[lane].tensor;
      if (widest)
        buffers[lane] = Tensor::empty({widest.numel()}, widest.dtype(), device, host_space(device));
    }
  }
  for (const Part& part : parts_)
    for (const Lane& lane : part)
      if (lane.moves() && !in_file(lane.tensor) && !copies_)
        copies_ = device.make_stream("offload");
  load(0, /*from_file=*/true);
  load(0, /*from_file=*/false);
}

std::vector<Tensor> Streaming::in_memory(size_t index) const {
  std::vector<Tensor> tensors;
  for (const Lane& lane : parts_[index])
    tensors.push_back(lane.moves()
                          ? buffers_[index % 2][tensors.size()].flat(0, lane.tensor.numel())
                          : lane.tensor);
  return tensors;
}

void Streaming::load(size_t index, bool from_file) {
  if (index >= parts_.size()) return;
  const std::vector<Tensor> memory = in_memory(index);
  for (size_t lane = 0; lane < memory.size(); ++lane)
    if (const Lane& from = parts_[index][lane];
        from.moves() && from.loads && in_file(from.tensor) == from_file) {
      if (from_file) {
        ready_[index % 2] = start_swap(from.tensor, memory[lane], {from.unit, " ", from.state});
      } else {
        wait_for_swap(device_, written_[index % 2]);  // the drive may still read this set
        queue_copy(from.tensor, memory[lane], from);
      }
    }
}

void Streaming::queue_copy(const Tensor& from, const Tensor& to, const Lane& lane) {
  if (Trace* trace = device_.trace()) {
    if (queued_.bytes == 0) queued_.begin_ns = trace->now_ns();
    queued_.bytes += from.bytes();
    queued_.names += (queued_.names.empty() ? "" : ", ") + std::string(lane.unit) + " " +
                     std::string(lane.state);
  }
  copy(from, to, *copies_);
}

// Nobody knows before when they ended: one span has all of them.
void Streaming::await_copies() {
  if (!copies_) return;
  Trace* trace = device_.trace();
  const Queued done = std::exchange(queued_, {});
  {
    std::optional<TraceSpan> span;
    if (done.bytes > 0) span.emplace(device_.compute(), "wait for copies", Trace::Kind::wait);
    copies_->synchronize();
  }
  if (!trace || done.bytes == 0) return;
  trace->span({.rank = device_.trace_rank(),
               .track = "copies",
               .kind = Trace::Kind::copy,
               .name = done.names,
               .begin_ns = done.begin_ns,
               .end_ns = trace->now_ns(),
               .arguments = {{"bytes", done.bytes}}});
}

Streaming::~Streaming() {
  for (const SwapTicket ticket : {ready_[0], ready_[1], last_}) {
    try {
      wait_for_swap(device_, ticket);
    } catch (const Error&) {  // the caller that waited for this ticket got the error already
    }
  }
}

const std::vector<Tensor>& Streaming::next() {
  // This set's copies have come and the other's have left, which the drive fills next.
  await_copies();
  load(next_ + 1, /*from_file=*/true);
  wait_for_swap(device_, ready_[next_ % 2]);
  load(next_ + 1, /*from_file=*/false);
  return current_ = in_memory(next_);
}

void Streaming::keep() {
  for (size_t lane = 0; lane < current_.size(); ++lane)
    if (const Lane& to = parts_[next_][lane]; to.moves() && to.saves) {
      if (in_file(to.tensor))
        last_ = written_[next_ % 2] = ready_[next_ % 2] =
            start_swap(current_[lane], to.tensor, {to.unit, " ", to.state});
      else
        queue_copy(current_[lane], to.tensor, to);
    }
  ++next_;
}

void Streaming::finish() {
  wait_for_swap(device_, last_);
  await_copies();
}

}  // namespace zg::zero
