#pragma once

#include <map>
#include <string>

#include "zerograd/runtime/tensor.h"

// Tensors in the files of numpy and safetensors. Errors are FileErrors with the file, the tensor
// and what was expected. A file is complete or absent: it is written under another name and
// renamed. On a meta device nothing is written, and tensors that are read have no values.
namespace zg {

using NamedTensors = std::map<std::string, Tensor>;

/// numpy's .npy, versions 1.0 to 3.0: f64, f32, f16, i64, i32, u8 or bool, of either byte order, in
/// rows or in columns (fortran_order). Written are version 1.0, rows, little-endian. numpy has no
/// bf16: such a tensor is a DTypeError; cast() it to f32.
ZG_API Tensor load_npy(const std::string& path, const Device& device);
ZG_API void save_npy(const std::string& path, const Tensor& tensor);

/// numpy's .npz by the names of its arrays, as np.savez() writes it: entries without compression,
/// of any size. Compressed entries (np.savez_compressed()) and entries that are no arrays are
/// FileErrors. The checksums of the entries are tested.
ZG_API NamedTensors load_npz(const std::string& path, const Device& device);
ZG_API void save_npz(const std::string& path, const NamedTensors& tensors);

/// All tensors of a safetensors file, in their own dtypes. A tensor that Tensor cannot hold, of
/// F8_E4M3 for example, is a FileError.
ZG_API NamedTensors load_safetensors(const std::string& path, const Device& device);
ZG_API void save_safetensors(const std::string& path, const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace zg
