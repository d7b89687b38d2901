#pragma once

#include "zerograd/runtime/tensor.h"

struct DLManagedTensor;  // defined in dlpack.h, ABI version 0.x; a "dltensor" capsule holds one

// Tensors that cross between zerograd and other programs (PyTorch, NumPy, JAX, ...) without a copy,
// by the DLPack protocol: https://dmlc.github.io/dlpack/latest/. Both sides see the same bytes.
namespace zg {

/// The tensor for another program. Its memory lives until the deleter of the result was called,
/// which may be on any thread. Work that is queued on the device is finished first. Contiguous;
/// f64, f32, f16, bf16, i64, i32, u8 and bool. Unsupported on a meta device and in Space::file.
ZG_API DLManagedTensor* to_dlpack(const Tensor& tensor);

/// A tensor of another program as one of `device`, whose memory it has to be: the host's for cpu,
/// the same GPU's for cuda. Takes it over: the deleter is called when the last Tensor that shares
/// the bytes goes, also when this throws. The bytes are the other program's: they are in no
/// accounting and under no cap. ShapeError for strides that are not contiguous or a rank above 6,
/// DTypeError for other element types, DeviceError for memory of another device.
ZG_API Tensor from_dlpack(DLManagedTensor* tensor, const Device& device);

}  // namespace zg
