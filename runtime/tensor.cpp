#include "zerograd/runtime/tensor.h"

#include <cstring>
#include <string>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/pending.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/text/format.h"

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

template <class T>
double element(const std::byte* raw, int64_t i) {
  return static_cast<double>(reinterpret_cast<const T*>(raw)[i]);
}

double element(const std::byte* raw, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f64:
      return element<double>(raw, i);
    case DType::f32:
      return element<float>(raw, i);
    case DType::bf16:
      return element<bf16>(raw, i);
    case DType::f16:
      return element<f16>(raw, i);
    case DType::i32:
      return element<int32_t>(raw, i);
    case DType::i64:
      return element<int64_t>(raw, i);
    case DType::u8:
    case DType::boolean:
      return element<uint8_t>(raw, i);
  }
  return 0;
}

/// The elements as the host sees them: in place, a copy, or zeros on a meta device. Waits once for
/// queued work.
class HostView {
 public:
  explicit HostView(const Tensor& tensor) : raw_(tensor.raw()) {
    Stream& stream = tensor.device().compute();
    const bool is_meta = tensor.device().type() == Device::Type::meta;
    const bool in_place = tensor.numel() == 0 || host_reaches(tensor);
    if (!in_place || is_meta) {
      copy_.resize(static_cast<size_t>(tensor.bytes()));
      raw_ = copy_.data();
    }
    if (!in_place) stream.copy(copy_.data(), tensor.raw(), copy_.size());
    stream.synchronize();
  }
  const std::byte* raw() const { return raw_; }

 private:
  const std::byte* raw_;
  std::vector<std::byte> copy_;
};

/// Called before the host reads values: counts the read.
void begin_read(const Tensor& tensor, const char* what) {
  if (!tensor) throw ShapeError(std::string(what) + ": the tensor is absent");
  if (Recorder* recorder = DeviceState::of(tensor.device()).ledger.recorder())
    recorder->note_read();
}

void check_one_element(const Tensor& tensor) {
  if (tensor.numel() != 1)
    throw ShapeError("item: expected a tensor of one element, got " + tensor.shape().str());
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, const Device& device, Space space) {
  if (dtype == DType::f64 && device.type() != Device::Type::cpu &&
      device.type() != Device::Type::meta)
    throw Unsupported("tensor: f64 exists on cpu devices only, got " + device.name());
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
  switch (dtype) {
    case DType::f64:
      fill<double>(raw, count, value);
      break;
    case DType::f32:
      fill<float>(raw, count, value);
      break;
    case DType::bf16:
      fill<bf16>(raw, count, value);
      break;
    case DType::f16:
      fill<f16>(raw, count, value);
      break;
    case DType::i32:
      fill<int32_t>(raw, count, value);
      break;
    case DType::i64:
      fill<int64_t>(raw, count, value);
      break;
    case DType::u8:
      fill<uint8_t>(raw, count, value);
      break;
    case DType::boolean:
      fill<uint8_t>(raw, count, value != 0);
      break;
  }
  if (!staged.empty()) device.compute().copy(tensor.raw(), staged.data(), staged.size());
  return tensor;
}

const Device& Tensor::device() const {
  if (!buffer_) throw ShapeError("tensor: absent (default constructed), so it has no device");
  return buffer_->device();
}

Tensor Tensor::view(const Shape& shape) const {
  if (shape.numel() != numel())
    throw ShapeError(fmt::format("view: {} has {} elements, expected the same of {}, got {}",
                                 shape_, numel(), shape, shape.numel()));
  Tensor tensor = *this;
  tensor.shape_ = shape;
  return tensor;
}

Tensor Tensor::view(std::initializer_list<int64_t> extents) const {
  return view(Shape::filled(extents, numel(), "view"));
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  if (shape_.rank() == 0 || begin < 0 || end < begin || end > shape_[0])
    throw ShapeError(
        fmt::format("slice: range {} to {} is outside axis 0 of {}", begin, end, shape_));
  const int64_t row = shape_[0] == 0 ? 0 : numel() / shape_[0];
  Tensor tensor = *this;
  tensor.shape_ = shape_.with(0, end - begin);
  tensor.offset_ += begin * row * size_of(dtype_);
  return tensor;
}

Tensor Tensor::flat(int64_t begin, int64_t count) const {
  if (begin < 0 || count < 0 || begin > numel() || count > numel() - begin)
    throw ShapeError(fmt::format("flat: range of {} from {} is outside the {} elements of {}",
                                 count, begin, numel(), shape_));
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
    throw ShapeError(fmt::format("alias: {} of {} at byte {} is outside a buffer of {} bytes",
                                 shape, dtype, byte_offset, buffer ? buffer->bytes() : 0));
  Tensor tensor;
  tensor.buffer_ = std::move(buffer);
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.offset_ = byte_offset;
  return tensor;
}

void Tensor::check_dtype(DType asked) const {
  if (asked != dtype_)
    throw DTypeError(
        fmt::format("data: the tensor {} holds {}, asked for {}", shape_, dtype_, asked));
}

void Tensor::throw_no_data() const {
  throw Unsupported(
      fmt::format("data: {} on {} has no memory, as this is a plan; expected values that come by "
                  "Tensor::from(values, shape, device) and are read by to_host() or item(), which "
                  "work on every device",
                  shape_, device()));
}

void Tensor::copy_from_host(const void* values, int64_t count, DType dtype) {
  if (count != numel())
    throw ShapeError(
        fmt::format("from: expected {} values for {}, got {}", numel(), shape_, count));
  check_dtype(dtype);
  if (raw() && count > 0) device().compute().copy(raw(), values, static_cast<size_t>(bytes()));
}

void Tensor::copy_to_host(void* values) const {
  begin_read(*this, "to_host");
  if (device().type() == Device::Type::meta) std::memset(values, 0, static_cast<size_t>(bytes()));
  if (numel() > 0) device().compute().copy(values, raw(), static_cast<size_t>(bytes()));
  device().compute().synchronize();
}

template <>
std::vector<bool> Tensor::to_host<bool>() const {
  check_dtype(DType::boolean);
  begin_read(*this, "to_host");
  std::vector<bool> values(static_cast<size_t>(numel()));
  const HostView view(*this);
  for (size_t i = 0; i < values.size(); ++i) values[i] = view.raw()[i] != std::byte{0};
  return values;
}

std::vector<double> Tensor::to_doubles() const {
  begin_read(*this, "to_doubles");
  std::vector<double> values(static_cast<size_t>(numel()));
  const HostView view(*this);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = element(view.raw(), dtype_, static_cast<int64_t>(i));
  return values;
}

double Tensor::item() const {
  check_one_element(*this);
  begin_read(*this, "item");
  return element(HostView(*this).raw(), dtype_, 0);
}

PendingItem::PendingItem(const Tensor& tensor) : dtype_(tensor.dtype()) {
  check_one_element(tensor);
  begin_read(tensor, "item");
  const auto bytes = static_cast<size_t>(tensor.bytes());
  Stream& stream = tensor.device().compute();
  const Backend* const backend = backend_of(stream.type());
  if (backend && backend->fetch) {
    bytes_ = backend->fetch(stream, tensor.raw(), bytes);
    return;
  }
  const auto copied = std::make_shared<std::vector<std::byte>>(bytes);
  stream.copy(copied->data(), tensor.raw(), bytes);
  if (backend) stream.synchronize();  // it may write late, when nobody keeps the bytes any more
  bytes_ = copied;
}

double PendingItem::value() const { return element(bytes_->data(), dtype_, 0); }

std::unique_ptr<StreamMark> mark_compute(const Device& device) {
  if (device.type() == Device::Type::meta) return nullptr;
  const Backend* const backend = backend_of(device.type());
  if (backend && backend->mark) return backend->mark(device.compute());
  device.compute().synchronize();
  return nullptr;
}

bool host_reaches(const Tensor& tensor) {
  const Space space = tensor.buffer()->space();
  return space != Space::file &&
         (space != Space::device || tensor.device().traits().backend == Device::Type::cpu);
}

namespace {

constexpr int64_t file_chunk = 1 << 20;  // elements that are copied to or from a file at a time

/// Calls f(begin, elements on the host) for n elements, a chunk at a time.
template <class F>
void through_host(int64_t n, DType dtype, const Device& device, const F& f) {
  const PurposeScope purpose(device, Purpose::workspace);
  const int64_t chunk_numel = std::min(n, file_chunk);
  const Tensor chunk = Tensor::empty({chunk_numel}, dtype, device, host_space(device));
  for (int64_t begin = 0; begin < n; begin += chunk_numel)
    f(begin, chunk.flat(0, std::min(chunk_numel, n - begin)));
}

}  // namespace

void copy(const Tensor& src, const Tensor& dst, Stream& stream) {
  if (!src || !dst || src.numel() != dst.numel() || src.dtype() != dst.dtype())
    throw ShapeError(fmt::format("copy: expected equal sizes and element types, got {} {} to {} {}",
                                 src.shape(), src.dtype(), dst.shape(), dst.dtype()));
  dst.buffer()->note_write();
  const bool from_file = src.buffer()->space() == Space::file;
  if (from_file || dst.buffer()->space() == Space::file) {
    if (host_reaches(from_file ? dst : src))
      return wait_for_swap(src.device(), start_swap(src, dst));
    return through_host(src.numel(), src.dtype(), src.device(),
                        [&](int64_t begin, const Tensor& chunk) {
                          copy(src.flat(begin, chunk.numel()), chunk, stream);
                          copy(chunk, dst.flat(begin, chunk.numel()), stream);
                        });
  }
  if (src.raw() && dst.raw() && src.numel() > 0)
    stream.copy(dst.raw(), src.raw(), static_cast<size_t>(src.bytes()));
}

namespace {

void fill_zero_in_file(const Tensor& dst) {
  Stream& stream = dst.device().compute();
  through_host(dst.numel(), dst.dtype(), dst.device(), [&](int64_t begin, const Tensor& zeros) {
    if (begin == 0) fill_zero(zeros, stream);
    copy(zeros, dst.flat(begin, zeros.numel()), stream);
  });
}

}  // namespace

void fill_zero(const Tensor& dst, Stream& stream) {
  if (dst) dst.buffer()->note_write();
  if (dst && dst.buffer()->space() == Space::file) return fill_zero_in_file(dst);
  if (dst.raw() && dst.numel() > 0) stream.fill_zero(dst.raw(), static_cast<size_t>(dst.bytes()));
}

}  // namespace zg
