#include "zerograd/zero/states/transfer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/trace.h"

namespace zg::zero {
namespace {

template <class F>
void for_each_workspace_chunk(const Tensor& tensor, const F& f) {
  const PurposeScope purpose(tensor.device(), Purpose::workspace);
  for (int64_t begin = 0; begin < tensor.numel(); begin += chunk_elements) {
    const int64_t count = std::min(chunk_elements, tensor.numel() - begin);
    f(begin, tensor.flat(begin, count));
  }
}

// Writes a tensor in memory to `to`, rounded to its dtype.
void store(const Tensor& memory, const Tensor& to) {
  Stream& stream = to.device().compute();
  if (!in_file(to)) return kernels::cast({.x = memory, .y = to}, stream);
  if (memory.dtype() == to.dtype()) return copy(memory, to, stream);
  const Tensor rounded =
      Tensor::empty(to.shape(), to.dtype(), to.device(), host_space(to.device()));
  kernels::cast({.x = memory, .y = rounded}, stream);
  copy(rounded, to, stream);
}

}  // namespace

bool in_file(const Tensor& tensor) { return tensor && tensor.buffer()->space() == Space::file; }

bool kernels_reach(const Tensor& tensor) {
  const bool is_pinned = tensor.buffer()->space() == Space::pinned;
  return !in_file(tensor) && !(is_pinned && tensor.device().traits().backend == Device::Type::hpu);
}

Tensor near_kernels(const Tensor& tensor) {
  if (kernels_reach(tensor)) return tensor;
  const Tensor near = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device());
  traced_copy(tensor, near);
  return near;
}

Tensor in_memory(const Tensor& tensor) {
  if (!in_file(tensor)) return tensor;
  const Tensor memory =
      Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device(), host_space(tensor.device()));
  traced_copy(tensor, memory);
  return memory;
}

void traced_copy(const Tensor& from, const Tensor& to, std::string_view name,
                 std::string_view suffix) {
  Stream& stream = to.device().compute();
  if (!stream.trace()) return copy(from, to, stream);
  const std::string scope = name.empty() ? to.device().memory().name() : "";
  TraceSpan span(stream, {scope, name, suffix}, Trace::Kind::copy, "copies");
  copy(from, to, stream);
  stream.synchronize();  // the span must end with the copy
  span.add("bytes", from.bytes());
  span.add("from", name_of(from.buffer()->space()));
  span.add("to", name_of(to.buffer()->space()));
}

void convert(const Tensor& from, const Tensor& to) {
  for_each_workspace_chunk(to, [&](int64_t begin, const Tensor& chunk) {
    store(in_memory(from.flat(begin, chunk.numel())), chunk);
  });
}

void write_floats(const Tensor& to,
                  const std::function<void(int64_t begin, std::span<float>)>& produce) {
  const Device& device = to.device();
  const Space space =
      device.traits().backend == Device::Type::cpu ? Space::device : host_space(device);
  for_each_workspace_chunk(to, [&](int64_t begin, const Tensor& chunk) {
    const Tensor staging = Tensor::empty(chunk.shape(), DType::f32, device, space);
    device.compute().synchronize();  // the previous chunk may still be in use
    if (device.type() != Device::Type::meta)
      produce(begin, {staging.data<float>(), static_cast<size_t>(chunk.numel())});
    store(staging, chunk);
  });
}

void round_to_bf16(std::span<float> values) {
  for (float& value : values) value = static_cast<float>(bf16(value));
}

void read_floats(const Tensor& from, const std::function<void(std::span<const float>)>& consume) {
  for_each_workspace_chunk(from, [&](int64_t, Tensor chunk) {
    chunk = in_memory(chunk);
    if (chunk.dtype() != DType::f32) {
      const Tensor wide = Tensor::empty(chunk.shape(), DType::f32, chunk.device());
      kernels::cast({.x = chunk, .y = wide}, chunk.device().compute());
      chunk = wide;
    }
    if (chunk.device().type() != Device::Type::meta) consume(chunk.to_host<float>());
  });
}

// --- Streaming ---

bool Streaming::Lane::moves() const {
  return tensor && (in_file(tensor) || (to_host && !host_reaches(tensor)));
}

StreamingBuffers::~StreamingBuffers() {
  try {
    wait_for_swap(device, last);
  } catch (const Error&) {  // ignored: the next wait throws it again
  }
}

Streaming::Streaming(std::vector<Part> parts, const Device& device,
                     std::shared_ptr<StreamingBuffers> buffers)
    : device_(device),
      parts_(std::move(parts)),
      buffers_(buffers ? std::move(buffers) : std::make_shared<StreamingBuffers>(device)) {
  ready_.fill(buffers_->last);
  if (parts_.empty()) return;
  const auto fits = [](const Tensor& tensor, const Tensor& into) {
    return into && tensor.numel() <= into.numel();
  };
  for (size_t set = 0; set < std::min(buffers_->sets.size(), parts_.size()); ++set) {
    std::vector<Tensor>& buffers_of = buffers_->sets[set];
    buffers_of.resize(parts_[0].size());
    for (size_t lane = 0; lane < buffers_of.size(); ++lane) {
      Tensor& buffer = buffers_of[lane];
      Tensor largest = buffer;
      for (const Part& part : parts_)
        if (part[lane].moves() && !fits(part[lane].tensor, largest)) largest = part[lane].tensor;
      if (!largest || fits(largest, buffer)) continue;
      wait_for_swap(device, buffers_->last);  // the disk may still use the smaller one
      buffer = Tensor::empty({largest.numel()}, largest.dtype(), device, host_space(device));
    }
  }
  for (const Part& part : parts_)
    for (const Lane& lane : part)
      if (lane.moves() && !in_file(lane.tensor) && !copies_)
        copies_ = device.make_stream("offload");
  load(0, /*from_file=*/true);
  if (!copies_) load(1, /*from_file=*/true);
  load(0, /*from_file=*/false);
}

std::vector<Tensor> Streaming::in_memory(size_t index) const {
  std::vector<Tensor> tensors;
  for (const Lane& lane : parts_[index])
    tensors.push_back(lane.moves()
                          ? buffers_->sets[index % 2][tensors.size()].flat(0, lane.tensor.numel())
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
        ready_[index % 2].add(start_swap(from.tensor, memory[lane], {from.unit, " ", from.state}));
        buffers_->last.add(ready_[index % 2]);
      } else {
        wait_for_swap(device_, written_[index % 2]);  // the disk may still read this set
        queue_copy(from.tensor, memory[lane], from);
      }
    }
}

void Streaming::queue_copy(const Tensor& from, const Tensor& to, const Lane& lane) {
  if (Trace* trace = device_.trace()) {
    if (queued_.bytes == 0) queued_.begin_ns = trace->now_ns();
    queued_.bytes += from.bytes();
    queued_.names +=
        fmt::format("{}{} {}", queued_.names.empty() ? "" : ", ", lane.unit, lane.state);
  }
  copy(from, to, *copies_);
}

// The end of each single copy is not known, so one span covers all of them.
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

const std::vector<Tensor>& Streaming::next() {
  // The copies into this set and out of the other set are done; the disk can fill the other set.
  await_copies();
  if (copies_) load(next_ + 1, /*from_file=*/true);
  wait_for_swap(device_, ready_[next_ % 2]);
  load(next_ + 1, /*from_file=*/false);
  return current_ = in_memory(next_);
}

void Streaming::keep() {
  for (size_t lane = 0; lane < current_.size(); ++lane)
    if (const Lane& to = parts_[next_][lane]; to.moves() && to.saves) {
      if (in_file(to.tensor))
        last_.add(start_swap(current_[lane], to.to ? to.to : to.tensor, {to.unit, " ", to.state},
                             to.ahead));
      else
        queue_copy(current_[lane], to.tensor, to);
    }
  buffers_->last.add(last_);
  ready_[next_ % 2].add(last_);
  written_[next_ % 2] = last_;
  skip();
}

void Streaming::skip() {
  ++next_;
  if (!copies_) load(next_ + 1, /*from_file=*/true);  // after the set was written
}

void Streaming::finish() {
  wait_for_swap(device_, last_);
  await_copies();
}

// --- Activations ---

namespace {

/// The name of the current unit or op; empty without a trace.
std::string traced_name(const Stream& stream) {
  return stream.trace() ? stream.device().memory().name() : std::string();
}

}  // namespace

Tensor OffloadedActivations::keep(const Tensor& tensor, Stream& stream) {
  if (tensor.numel() == 0) return tensor;
  std::erase_if(copies_, [](const auto& entry) {
    return entry.second.from.expired() || entry.second.to.expired();
  });
  Copy& known = copies_[{tensor.buffer().get(), tensor.byte_offset(), tensor.bytes()}];
  if (std::shared_ptr<Buffer> shared = known.to.lock())
    return Tensor::of(std::move(shared), 0, tensor.shape(), tensor.dtype());
  const PurposeScope purpose(tensor.device(), Purpose::activation);
  const Space space = space_ == Space::host ? host_space(tensor.device()) : space_;
  Tensor kept = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device(), space);
  traced_copy(tensor, kept, "activation of ", traced_name(stream));
  known = {tensor.buffer(), kept.buffer()};
  return kept;
}

Tensor OffloadedActivations::fetch(const Tensor& kept, Stream& stream) {
  if (kept.numel() == 0) return kept;
  const PurposeScope purpose(kept.device(), Purpose::activation);
  const Tensor fetched = Tensor::empty(kept.shape(), kept.dtype(), kept.device());
  traced_copy(kept, fetched, "activation of ", traced_name(stream));
  return fetched;
}

}  // namespace zg::zero
