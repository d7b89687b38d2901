#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/runtime/shape.h"

namespace zg {

/// A contiguous, typed view of a Buffer. Copies share the bytes. A Tensor has no gradient: kernels,
/// communication and ZeRO use it without autograd.
class ZG_API Tensor {
 public:
  Tensor() = default;  ///< an absent tensor; false in a condition

  /// Uninitialised. Throws Unsupported for f64 on an accelerator.
  static Tensor empty(const Shape& shape, DType dtype, const Device& device,
                      Space space = Space::device);
  static Tensor zeros(const Shape& shape, DType dtype, const Device& device);
  static Tensor full(const Shape& shape, double value, DType dtype, const Device& device);

  /// A typed view of a buffer at a byte offset; throws ShapeError when out of range.
  static Tensor of(std::shared_ptr<Buffer> buffer, int64_t byte_offset, const Shape& shape,
                   DType dtype);

  /// Copies from host memory; throws ShapeError unless values.size() == shape.numel().
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, const Device& device) {
    Tensor tensor = empty(shape, dtype_of<T>, device);
    tensor.copy_from_host(values.data(), static_cast<int64_t>(values.size()), dtype_of<T>);
    return tensor;
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, const Device& device) {
    return from(std::span<const T>(values), shape, device);
  }

  const Shape& shape() const { return shape_; }
  int64_t extent(int axis) const { return shape_[axis]; }
  int64_t numel() const { return shape_.numel(); }
  DType dtype() const { return dtype_; }
  const Device& device() const;  ///< throws ShapeError on an absent tensor
  int64_t bytes() const { return numel() * size_of(dtype_); }
  explicit operator bool() const { return buffer_ != nullptr; }

  Tensor view(const Shape& shape) const;  ///< same numel, same bytes; throws ShapeError
  /// One extent may be -1 and is computed from the others.
  Tensor view(std::initializer_list<int64_t> extents) const;
  Tensor slice(int64_t begin, int64_t end) const;  ///< along axis 0, shares memory
  /// A range of the elements as a tensor with one axis; shares memory.
  Tensor flat(int64_t begin, int64_t numel) const;
  /// Another typed view at a byte offset of the same buffer; throws ShapeError when out of range.
  Tensor alias(int64_t byte_offset, const Shape& shape, DType dtype) const;

  /// The elements. Throws DTypeError when T is not the element type, Unsupported on a meta device.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    std::byte* bytes = raw();
    if (!bytes && buffer_ && buffer_->device().type() == Device::Type::meta) throw_no_data();
    return reinterpret_cast<T*>(bytes);
  }
  /// The same without a type check; null on a meta device (see Buffer::data()).
  std::byte* raw() const {
    return buffer_ && buffer_->data() ? buffer_->data() + offset_ : nullptr;
  }

  /// Waits for queued work and copies the elements to the host; zeros on a meta device. Throws
  /// DTypeError if T is not the element type.
  template <class T>
  std::vector<T> to_host() const {
    check_dtype(dtype_of<T>);
    std::vector<T> values(static_cast<size_t>(numel()));
    copy_to_host(values.data());
    return values;
  }
  /// The elements of a floating-point tensor as doubles.
  std::vector<double> to_doubles() const;
  double item() const;  ///< the value of a one-element tensor of any type

  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  int64_t byte_offset() const { return offset_; }

 private:
  void check_dtype(DType asked) const;
  [[noreturn]] void throw_no_data() const;
  void copy_from_host(const void* values, int64_t count, DType dtype);
  void copy_to_host(void* values) const;

  std::shared_ptr<Buffer> buffer_;
  Shape shape_;
  DType dtype_ = DType::f32;
  int64_t offset_ = 0;  ///< bytes into the buffer
};

/// to_host() of bool, whose std::vector has no data().
template <>
ZG_API std::vector<bool> Tensor::to_host<bool>() const;

/// Prints the elements as numpy does, the dtype and the shape: "[[0.  1.5]\n [nan inf]] f32 [2,
/// 2]". More than 1000 elements are summarised by three at both ends of each axis; only these are
/// read. Waits for queued work. On a meta device there are no values.
ZG_API std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// Whether the host can read and write the elements in place: false for an accelerator's
/// Space::device and for Space::file. If true, the host must still wait for queued work
/// (Stream::synchronize) before it reads or writes them.
ZG_API bool host_reaches(const Tensor& tensor);

/// dst = src. Equal numel and dtype; any two spaces of one device.
ZG_API void copy(const Tensor& src, const Tensor& dst, Stream& stream);
/// Sets every byte to 0.
ZG_API void fill_zero(const Tensor& dst, Stream& stream);

}  // namespace zg
