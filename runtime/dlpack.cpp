#include "zerograd/runtime/dlpack.h"

#include <limits>
#include <memory>

#include "zerograd/runtime/text/format.h"

// The declarations of DLPack's dlpack.h. Names and layout are the ABI of the protocol, the same in
// every version.
extern "C" {
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
}

namespace zg {
namespace {

enum DeviceCode : int32_t { on_cpu = 1, on_cuda = 2, on_cuda_host = 3, on_oneapi = 14 };
enum TypeCode : uint8_t { signed_int = 0, unsigned_int = 1, floating = 2, bfloat = 4, boolean = 6 };

constexpr struct {
  DType dtype;
  DLDataType type;
} types[] = {{DType::f64, {floating, 64, 1}},   {DType::f32, {floating, 32, 1}},
             {DType::f16, {floating, 16, 1}},   {DType::bf16, {bfloat, 16, 1}},
             {DType::i64, {signed_int, 64, 1}}, {DType::i32, {signed_int, 32, 1}},
             {DType::u8, {unsigned_int, 8, 1}}, {DType::boolean, {boolean, 8, 1}}};

DLDataType type_of(DType dtype) {
  for (const auto& row : types)
    if (row.dtype == dtype) return row.type;
  raise<DTypeError>("to_dlpack: DLPack has no {}", name_of(dtype));
}

DType dtype_of_type(const DLDataType& type) {
  for (const auto& row : types)
    if (row.type.code == type.code && row.type.bits == type.bits && row.type.lanes == type.lanes)
      return row.dtype;
  raise<DTypeError>(
      "from_dlpack: element type of code {}, {} bits, {} lanes; expected f64, f32, f16, bf16, i64, "
      "i32, u8 or bool",
      type.code, type.bits, type.lanes);
}

DLDevice device_code(const Tensor& tensor) {
  const Device& device = tensor.device();
  const Space space = tensor.buffer()->space();
  if (device.type() == Device::Type::meta || space == Space::file)
    raise<Unsupported>("to_dlpack: {} on {} ({}) has no memory to share; try a copy on the device",
                       tensor.shape(), device, space);
  if (space == Space::host || device.type() == Device::Type::cpu) return {on_cpu, 0};
  if (device.type() == Device::Type::hpu) return {on_oneapi, device.index()};
  return space == Space::pinned ? DLDevice{on_cuda_host, 0} : DLDevice{on_cuda, device.index()};
}

/// The space of memory that another program passed, seen from this device.
Space space_on(const Device& device, const DLDevice& there) {
  const bool is_cpu = device.type() == Device::Type::cpu;
  if (is_cpu && (there.device_type == on_cpu || there.device_type == on_cuda_host))
    return Space::device;
  const int32_t own = device.type() == Device::Type::cuda  ? on_cuda
                      : device.type() == Device::Type::hpu ? on_oneapi
                                                           : -1;
  if (there.device_type == own && there.device_id == device.index()) return Space::device;
  if (device.type() == Device::Type::cuda && there.device_type == on_cuda_host)
    return Space::pinned;
  raise<DeviceError>(
      "from_dlpack: memory of DLPack device type {}, index {}; expected memory of {}; try a copy "
      "to it in the other program",
      there.device_type, there.device_id, device);
}

bool is_contiguous(const DLTensor& tensor) {
  if (!tensor.strides) return true;
  int64_t stride = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return true;
}

/// The object behind the result of to_dlpack(). The other program frees it through the deleter.
struct Shared {
  DLManagedTensor managed;
  Tensor tensor;
  std::vector<int64_t> extents;
};

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  if (!tensor) throw ShapeError("to_dlpack: the tensor is absent");
  const DLDevice device = device_code(tensor);
  const DLDataType type = type_of(tensor.dtype());
  tensor.device().compute().synchronize();
  const auto extents = tensor.shape().extents();
  auto shared = std::make_unique<Shared>(
      Shared{{}, tensor, std::vector<int64_t>(extents.begin(), extents.end())});
  shared->managed.dl_tensor = {.data = tensor.raw(),
                               .device = device,
                               .ndim = tensor.shape().rank(),
                               .dtype = type,
                               .shape = shared->extents.data(),
                               .strides = nullptr,
                               .byte_offset = 0};
  shared->managed.manager_ctx = shared.get();
  shared->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Shared*>(self->manager_ctx);
  };
  return &shared.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed, const Device& device) {
  if (!managed) throw ShapeError("from_dlpack: the tensor is absent");
  const std::shared_ptr<DLManagedTensor> owner(managed, [](DLManagedTensor* tensor) {
    if (tensor->deleter) tensor->deleter(tensor);
  });
  const DLTensor& theirs = managed->dl_tensor;
  const DType dtype = dtype_of_type(theirs.dtype);
  const Space space = space_on(device, theirs.device);
  if (theirs.ndim < 0 || (theirs.ndim > 0 && !theirs.shape))
    raise<ShapeError>("from_dlpack: {} axes without extents; expected 0 to {} axes", theirs.ndim,
                      Shape::max_rank);
  const Shape shape(std::span<const int64_t>(theirs.shape, static_cast<size_t>(theirs.ndim)));
  constexpr uint64_t most = std::numeric_limits<int64_t>::max();
  if (theirs.byte_offset > most || (shape.numel() > 0 && !theirs.data))
    raise<ShapeError>(
        "from_dlpack: {} at byte {} of {}; expected an address and an offset of at most {} bytes",
        shape, theirs.byte_offset, theirs.data, most);
  if (shape.numel() > 0 && !is_contiguous(theirs))
    raise<ShapeError>(
        "from_dlpack: {} is not contiguous; expected rows behind each other without gaps; try "
        "contiguous() in the other program",
        shape);
  std::byte* data = static_cast<std::byte*>(theirs.data) + theirs.byte_offset;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(dtype)) != 0)
    raise<ShapeError>(
        "from_dlpack: {} of {} does not lie at a multiple of its element's size; try a copy in the "
        "other program",
        shape, dtype);
  return Tensor::of(Buffer::share(device, data, shape.numel() * size_of(dtype), space, owner), 0,
                    shape, dtype);
}

}  // namespace zg
