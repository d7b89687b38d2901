#include "zerograd/runtime/tensor.h"

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/visit_type.h"

namespace zg {
namespace {

template <class T>
T converted(double value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
void fill(std::byte* raw, int64_t count, double value) {
  T* data = reinterpret_cast<T*>(raw);
  for (int64_t i = 0; i < count; ++i) data[i] = converted<T>(value);
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, const Device& device, Space space) {
  if (dtype == DType::f64 && device.type() != Device::Type::cpu &&
      device.type() != Device::Type::meta)
    raise<Unsupported>("tensor: f64 exists on cpu devices only, got {}", device.name());
  Tensor tensor;
  tensor.buffer_ = Buffer::allocate(device, shape.numel() * size_of(dtype), space);
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, const Device& device) {
  Tensor tensor = empty(shape, dtype, device);
  fill_zero(tensor, device.compute());
  return tensor;
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, const Device& device) {
  if (!holds(dtype, value))
    raise<DTypeError>(
        "full: got the number {} for {} {}; expected a whole number that the dtype holds; try a "
        "floating dtype",
        value, dtype, shape);
  Tensor tensor = empty(shape, dtype, device);
  if (!tensor.raw() || tensor.numel() == 0) return tensor;
  if (device.type() == Device::Type::meta) {  // counts the copy
    if (!host_reaches(tensor))
      device.compute().copy(tensor.raw(), nullptr, static_cast<size_t>(tensor.bytes()));
    return tensor;
  }
  const int64_t count = tensor.numel();
  std::vector<std::byte> staged(host_reaches(tensor) ? 0 : static_cast<size_t>(tensor.bytes()));
  std::byte* raw = staged.empty() ? tensor.raw() : staged.data();
  visit_type(dtype, [&]<class T>() { fill<T>(raw, count, value); });
  if (!staged.empty()) device.compute().copy(tensor.raw(), staged.data(), staged.size());
  return tensor;
}

const Device& Tensor::device() const {
  if (!buffer_) throw ShapeError("tensor: absent (default constructed), so it has no device");
  return buffer_->device();
}

Tensor Tensor::view(const Shape& shape) const {
  if (shape.numel() != numel())
    raise<ShapeError>("view: {} has {} elements, expected the same of {}, got {}", shape_, numel(),
                      shape, shape.numel());
  Tensor tensor = *this;
  tensor.shape_ = shape;
  return tensor;
}

Tensor Tensor::view(std::initializer_list<int64_t> extents) const {
  return view(Shape::with_inferred(extents, numel(), "view"));
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  if (shape_.rank() == 0 || begin < 0 || end < begin || end > shape_[0])
    raise<ShapeError>("slice: range {} to {} is outside axis 0 of {}", begin, end, shape_);
  const int64_t row = shape_[0] == 0 ? 0 : numel() / shape_[0];
  Tensor tensor = *this;
  tensor.shape_ = shape_.with(0, end - begin);
  tensor.offset_ += begin * row * size_of(dtype_);
  return tensor;
}

Tensor Tensor::flat(int64_t begin, int64_t count) const {
  if (begin < 0 || count < 0 || begin > numel() || count > numel() - begin)
    raise<ShapeError>("flat: range of {} from {} is outside the {} elements of {}", count, begin,
                      numel(), shape_);
  Tensor tensor = *this;
  tensor.shape_ = Shape{count};
  tensor.offset_ += begin * size_of(dtype_);
  return tensor;
}

Tensor Tensor::alias(int64_t byte_offset, const Shape& shape, DType dtype) const {
  return of(buffer_, byte_offset, shape, dtype);
}

Tensor Tensor::of(std::shared_ptr<Buffer> buffer, int64_t byte_offset, const Shape& shape,
                  DType dtype) {
  if (!buffer || byte_offset < 0 || byte_offset > buffer->bytes() ||
      shape.numel() > (buffer->bytes() - byte_offset) / size_of(dtype))
    raise<ShapeError>("alias: {} of {} at byte {} is outside a buffer of {} bytes", shape, dtype,
                      byte_offset, buffer ? buffer->bytes() : 0);
  Tensor tensor;
  tensor.buffer_ = std::move(buffer);
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.offset_ = byte_offset;
  return tensor;
}

void Tensor::check_dtype(DType asked) const {
  if (asked != dtype_)
    raise<DTypeError>("data: the tensor {} holds {}, asked for {}", shape_, dtype_, asked);
}

void Tensor::throw_no_data() const {
  raise<Unsupported>(
      "data: {} on {} has no memory, as this is a plan; expected values that come by "
      "Tensor::from(values, shape, device) and are read by to_host() or item(), which work on "
      "every device",
      shape_, device());
}

void Tensor::copy_from_host(const void* values, int64_t count, DType dtype) {
  if (count != numel())
    raise<ShapeError>("from: expected {} values for {}, got {}", numel(), shape_, count);
  check_dtype(dtype);
  if (raw() && count > 0) device().compute().copy(raw(), values, static_cast<size_t>(bytes()));
}

bool host_reaches(const Tensor& tensor) {
  const Space space = tensor.buffer()->space();
  return space != Space::file &&
         (space != Space::device || tensor.device().traits().backend == Device::Type::cpu);
}

}  // namespace zg
