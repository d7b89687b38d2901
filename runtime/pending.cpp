#include "zerograd/runtime/pending.h"

#include <cstring>
#include <string>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/visit_type.h"

// How values reach the host: at once, by functions of Tensor, or later, by PendingItem.
namespace zg {
namespace {

double element(const std::byte* raw, DType dtype, int64_t i) {
  if (dtype == DType::boolean) dtype = DType::u8;
  return visit_type(
      dtype, [&]<class T>() { return static_cast<double>(reinterpret_cast<const T*>(raw)[i]); });
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

/// Checks that the tensor is present and reports the read to the device's observer.
void note_read_of(const Tensor& tensor, const char* what) {
  if (!tensor) throw ShapeError(std::string(what) + ": the tensor is absent");
  if (DeviceObserver* observer = DeviceState::of(tensor.device()).ledger.observer())
    observer->note_read();
}

void check_one_element(const Tensor& tensor) {
  if (tensor.numel() != 1)
    throw ShapeError("item: expected a tensor of one element, got " + tensor.shape().str());
}

}  // namespace

void Tensor::copy_to_host(void* values) const {
  note_read_of(*this, "to_host");
  if (const auto size = static_cast<size_t>(bytes())) {  // else `values` may be null
    if (device().type() == Device::Type::meta) std::memset(values, 0, size);
    device().compute().copy(values, raw(), size);
  }
  device().compute().synchronize();
}

template <>
std::vector<bool> Tensor::to_host<bool>() const {
  check_dtype(DType::boolean);
  note_read_of(*this, "to_host");
  std::vector<bool> values(static_cast<size_t>(numel()));
  const HostView view(*this);
  for (size_t i = 0; i < values.size(); ++i) values[i] = view.raw()[i] != std::byte{0};
  return values;
}

std::vector<double> Tensor::to_doubles() const {
  note_read_of(*this, "to_doubles");
  std::vector<double> values(static_cast<size_t>(numel()));
  const HostView view(*this);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = element(view.raw(), dtype_, static_cast<int64_t>(i));
  return values;
}

double Tensor::item() const {
  check_one_element(*this);
  note_read_of(*this, "item");
  return element(HostView(*this).raw(), dtype_, 0);
}

PendingItem::PendingItem(const Tensor& tensor) : dtype_(tensor.dtype()) {
  check_one_element(tensor);
  note_read_of(tensor, "item");
  const auto bytes = static_cast<size_t>(tensor.bytes());
  Stream& stream = tensor.device().compute();
  const Backend* const backend = backend_of(stream.type());
  if (backend && backend->fetch) {
    bytes_ = backend->fetch(stream, tensor.raw(), bytes);
    return;
  }
  const auto copied = std::make_shared<std::vector<std::byte>>(bytes);
  stream.copy(copied->data(), tensor.raw(), bytes);
  // Without this wait the queued copy could write after the bytes were freed.
  if (backend) stream.synchronize();
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

}  // namespace zg
