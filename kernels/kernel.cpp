#include "zerograd/kernels/kernel.h"

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

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

void throw_no_slot(const char* op, Device::Type backend) {
  throw Unsupported(
      fmt::format("{}: slot: expected cpu, cuda or hpu, got {}; a meta device stands for the "
                  "backend in its traits().backend",
                  op, backend));
}

namespace {

std::string subject(const char* op, const char* name) { return std::string(op) + ": " + name; }

}  // namespace

void check_present(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor) throw ShapeError(subject(op, name) + " is absent; expected a tensor");
}

void check_shape(const char* op, const char* name, const Tensor& tensor, const Shape& expected) {
  check_present(op, name, tensor);
  if (tensor.shape() != expected)
    throw ShapeError(
        fmt::format("{} has shape {}; expected {}", subject(op, name), tensor.shape(), expected));
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
  throw DTypeError(
      fmt::format("{} holds {}; expected {}", subject(op, name), tensor.dtype(), names));
}

void check_device(const char* op, std::initializer_list<const Tensor*> tensors) {
  const Tensor* reference = nullptr;
  for (const Tensor* tensor : tensors) {
    if (!*tensor) continue;
    if (!reference) reference = tensor;
    if (!(tensor->device() == reference->device()))
      throw DeviceError(
          fmt::format("{}: tensors on {}", op, difference(reference->device(), tensor->device())));
  }
}

}  // namespace zg
