#include "zerograd/zero/states/transfer.h"

#include <algorithm>
#include <vector>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/trace.h"

namespace zg::zero {
namespace {

constexpr int64_t chunk_elements = int64_t{1} << 20;

template <class F>
void for_each_chunk(const Tensor& tensor, const F& f) {
  const PurposeScope purpose(tensor.device(), Purpose::workspace);
  for (int64_t begin = 0; begin < tensor.numel(); begin += chunk_elements) {
    const int64_t count = std::min(chunk_elements, tensor.numel() - begin);
    f(begin, tensor.flat(begin, count));
  }
}

// Rounds what is in memory to where `to` is.
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
  stream.synchronize();  // so that the span ends with the copy
  span.add("bytes", from.bytes());
  span.add("from", name_of(from.buffer()->space()));
  span.add("to", name_of(to.buffer()->space()));
}

void convert(const Tensor& from, const Tensor& to) {
  for_each_chunk(to, [&](int64_t begin, const Tensor& chunk) {
    store(in_memory(from.flat(begin, chunk.numel())), chunk);
  });
}

void write_floats(const Tensor& to,
                  const std::function<void(int64_t begin, std::span<float>)>& produce) {
  const Device device = to.device();
  const Space space =
      device.traits().backend == Device::Type::cpu ? Space::device : host_space(device);
  for_each_chunk(to, [&](int64_t begin, const Tensor& chunk) {
    const Tensor staging = Tensor::empty(chunk.shape(), DType::f32, device, space);
    device.compute().synchronize();  // the chunk before may still be read
    if (staging.raw()) produce(begin, {staging.data<float>(), static_cast<size_t>(chunk.numel())});
    store(staging, chunk);
  });
}

void round_to_bf16(std::span<float> values) {
  for (float& value : values) value = static_cast<float>(bf16(value));
}

void read_floats(const Tensor& from, const std::function<void(std::span<const float>)>& consume) {
  for_each_chunk(from, [&](int64_t, Tensor chunk) {
    chunk = in_memory(chunk);
    if (chunk.dtype() != DType::f32) {
      const Tensor wide = Tensor::empty(chunk.shape(), DType::f32, chunk.device());
      kernels::cast({.x = chunk, .y = wide}, chunk.device().compute());
      chunk = wide;
    }
    if (chunk.device().type() != Device::Type::meta) consume(chunk.to_host<float>());
  });
}

}  // namespace zg::zero
