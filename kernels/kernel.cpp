#include "zerograd/kernels/kernel.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/trace.h"

namespace zg {

std::string text_of(const std::vector<Operand>& operands) {
  constexpr size_t max_shown = 16;
  std::string text;
  size_t present = 0;
  for (const auto& [name, tensor, is_written] : operands) {
    if (!tensor || ++present > max_shown) continue;
    text +=
        fmt::format("{}{} {} {}", text.empty() ? "" : ", ", name, tensor.dtype(), tensor.shape());
  }
  if (present > max_shown) text += fmt::format(" and {} more", present - max_shown);
  return text;
}

OpCount count_of(const std::vector<Operand>& operands) {
  struct Range {
    const std::byte* data;
    int64_t bytes;
    bool is_read, is_written;
  };
  std::vector<Range> ranges;
  OpCount count;
  bool has_dtype = false;
  for (const auto& [name, tensor, is_written] : operands) {
    if (!tensor) continue;
    if (!has_dtype && is_floating(tensor.dtype())) {
      count.dtype = tensor.dtype();
      has_dtype = true;
    }
    count.operations = std::max(count.operations, tensor.numel());
    const auto same = std::ranges::find_if(ranges, [&](const Range& range) {
      return range.data == tensor.raw() && range.bytes == tensor.bytes();
    });
    Range& range = same == ranges.end()
                       ? ranges.emplace_back(Range{tensor.raw(), tensor.bytes(), false, false})
                       : *same;
    (is_written ? range.is_written : range.is_read) = true;
  }
  for (const Range& range : ranges)
    count.bytes += range.bytes * ((range.is_read ? 1 : 0) + (range.is_written ? 1 : 0));
  return count;
}

namespace {
thread_local const OpCount* current_call = nullptr;
thread_local const char* current_op = "";
thread_local bool has_launched = false;  // within current_call
}  // namespace

CountedCall::CountedCall(const char* op, const OpCount& count, LaunchCounter& counter,
                         Device::Type backend)
    : count_(count), outer_(std::exchange(current_call, &count_)) {
  current_op = op;
  has_launched = false;
  if (backend != Device::Type::cpu || outer_) return;
  counter.add({.op = op,
               .kernel = op,
               .launches = 1,
               .bytes = count.bytes,
               .operations = count.operations,
               .dtype = count.dtype,
               .kind = count.kind});
}

CountedCall::~CountedCall() { current_call = outer_; }

const OpCount* CountedCall::current() { return current_call; }

void count_launch(const Stream& stream, const char* kernel, int64_t blocks) {
  LaunchCounter* const counter = stream.launches();
  if (!counter || blocks == 0) return;
  LaunchRow row{.op = kernel, .kernel = kernel, .launches = 1, .blocks = blocks};
  if (current_call) {
    row.op = current_op;
    row.dtype = current_call->dtype;
    row.kind = current_call->kind;
    if (!std::exchange(has_launched, true)) {
      row.bytes = current_call->bytes;
      row.operations = current_call->operations;
    }
  }
  counter->add(row);
}

Tensor scratch_of(const char* op, int64_t bytes, Device::Type backend, const Device& device) {
  const PurposeScope purpose(device, Purpose::workspace);
  const NameScope name(device, op);
  // The CPU may compute on host memory of an accelerator, whose own memory it cannot reach.
  const bool by_host = backend == Device::Type::cpu && device.traits().backend != Device::Type::cpu;
  return Tensor::empty({bytes}, DType::u8, device, by_host ? host_space(device) : Space::device);
}

std::shared_ptr<TraceSpan> span_of(const char* op, const std::vector<Operand>& operands,
                                   const std::string& sizes, const Stream& stream) {
  // Kernel drops the span when the work is done.
  const auto end = [op, &operands, &stream,
                    failures = std::uncaught_exceptions()](TraceSpan* ended) {
    delete ended;
    const Trace* const trace = stream.trace();
    if (!trace || !trace->is_watched() || std::uncaught_exceptions() > failures) return;
    std::vector<Trace::Call::Output> outputs;
    for (const auto& [name, tensor, is_written] : operands)
      // Several operands may be columns of one tensor.
      if (is_written && tensor &&
          std::ranges::none_of(outputs, [at = tensor.raw()](const Trace::Call::Output& other) {
            return other.tensor.raw() == at;
          }))
        outputs.push_back({name, tensor});
    trace->note({.stream = const_cast<Stream&>(stream),
                 .track = stream.name(),
                 .name = op,
                 .outputs = outputs});
  };
  const std::shared_ptr<TraceSpan> span(new TraceSpan(stream, op, Trace::Kind::kernel), end);
  if (!operands.empty()) span->add("operands", text_of(operands));
  if (!sizes.empty()) span->add("sizes", sizes);
  return span;
}

void throw_no_slot(const char* op, Device::Type backend) {
  raise<Unsupported>(
      "{}: slot: expected cpu, cuda or hpu, got {}; a meta device stands for the backend in its "
      "traits().backend",
      op, backend);
}

namespace {

std::string subject(const char* op, const char* name) { return std::string(op) + ": " + name; }

}  // namespace

void check_present(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor) raise<ShapeError>("{} is absent; expected a tensor", subject(op, name));
}

void check_shape(const char* op, const char* name, const Tensor& tensor, const Shape& expected) {
  check_present(op, name, tensor);
  if (tensor.shape() != expected)
    raise<ShapeError>("{} has shape {}; expected {}", subject(op, name), tensor.shape(), expected);
}

void check_dtype(const char* op, const char* name, const Tensor& tensor, DType expected) {
  check_dtype(op, name, tensor, {expected});
}

void check_dtype(const char* op, const char* name, const Tensor& tensor,
                 std::initializer_list<DType> allowed) {
  check_present(op, name, tensor);
  std::string names;
  for (DType dtype : allowed) {
    if (tensor.dtype() == dtype) return;
    names += (names.empty() ? "" : " or ") + std::string(name_of(dtype));
  }
  raise<DTypeError>("{} holds {}; expected {}", subject(op, name), tensor.dtype(), names);
}

void check_device(const char* op, std::initializer_list<const Tensor*> tensors) {
  std::vector<Operand> operands;
  for (const Tensor* tensor : tensors) operands.push_back({"", *tensor});
  check_device(op, operands);
}

void check_device(const char* op, const std::vector<Operand>& operands) {
  const Tensor* reference = nullptr;
  for (const Operand& operand : operands) {
    const Tensor& tensor = operand.tensor;
    if (!tensor) continue;
    if (!reference) reference = &tensor;
    if (!(tensor.device() == reference->device()))
      raise<DeviceError>("{}: tensors on {}", op, difference(reference->device(), tensor.device()));
  }
}

}  // namespace zg
