#pragma once

#include "zerograd/runtime/tensor.h"

struct DLManagedTensor;  // defined in dlpack.h, ABI 0.x; Python's capsule "dltensor" holds one

// Exchange of tensors with other programs (PyTorch, NumPy, JAX, ...) without a copy, by the DLPack
// protocol: https://dmlc.github.io/dlpack/latest/. Both sides use the same bytes.
namespace zg {

/// Gives a tensor to another program. The memory stays allocated until that program calls the
/// deleter of the result, on any thread. Waits for queued work of the device first. The result is
/// contiguous. Throws Unsupported on a meta device and for Space::file.
ZG_API DLManagedTensor* to_dlpack(const Tensor& tensor);

/// Takes a tensor from another program. Its memory must belong to `device`: host memory for cpu,
/// memory of the same GPU for cuda. The deleter is called when the last Tensor that shares the
/// bytes is destroyed, and also when this throws. The device's memory accounting does not count the
/// bytes, and its limits do not apply to them. Throws ShapeError for strides that are not
/// contiguous or more than 6 axes, DTypeError for an element type that DType does not have,
/// DeviceError for memory of another device.
ZG_API Tensor from_dlpack(DLManagedTensor* tensor, const Device& device);

}  // namespace zg
