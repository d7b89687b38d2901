#include "zero/streaming.h"

#include <algorithm>
#include <utility>

#include "runtime/error.h"
#include "zero/transfer.h"

namespace zg::zero {

Streaming::Streaming(std::vector<Part> parts, const Device& device)
    : device_(device), parts_(std::move(parts)) {
  if (parts_.empty()) return;
  for (size_t set = 0; set < std::min(buffers_.size(), parts_.size()); ++set) {
    Buffers& buffers = buffers_[set];
    buffers.resize(parts_[0].size());
    for (size_t lane = 0; lane < buffers.size(); ++lane) {
      Tensor widest;
      for (const Part& part : parts_)
        if (in_file(part[lane].tensor) && (!widest || part[lane].tensor.numel() > widest.numel()))
          widest = part[lane].tensor;
      if (widest)
        buffers[lane] = Tensor::empty({widest.numel()}, widest.dtype(), device, host_space(device));
    }
  }
  load(0);
}

std::vector<Tensor> Streaming::in_memory(size_t index) const {
  std::vector<Tensor> tensors;
  for (const Lane& lane : parts_[index])
    tensors.push_back(in_file(lane.tensor)
                          ? buffers_[index % 2][tensors.size()].flat(0, lane.tensor.numel())
                          : lane.tensor);
  return tensors;
}

void Streaming::load(size_t index) {
  if (index >= parts_.size()) return;
  const std::vector<Tensor> memory = in_memory(index);
  for (size_t lane = 0; lane < memory.size(); ++lane)
    if (const auto& [tensor, loads, saves] = parts_[index][lane]; in_file(tensor) && loads)
      ready_[index % 2] = start_swap(tensor, memory[lane]);
}

Streaming::~Streaming() {
  for (const SwapTicket ticket : {ready_[0], ready_[1], last_}) {
    try {
      wait_for_swap(device_, ticket);
    } catch (const Error&) {  // whoever waited for it has it
    }
  }
}

const std::vector<Tensor>& Streaming::next() {
  load(next_ + 1);
  wait_for_swap(device_, ready_[next_ % 2]);
  return current_ = in_memory(next_);
}

void Streaming::keep() {
  for (size_t lane = 0; lane < current_.size(); ++lane)
    if (const auto& [tensor, loads, saves] = parts_[next_][lane]; in_file(tensor) && saves)
      last_ = ready_[next_ % 2] = start_swap(current_[lane], tensor);
  ++next_;
}

}  // namespace zg::zero
