#pragma once

#include <initializer_list>
#include <string>

#include "zerograd/runtime/tensor.h"

namespace zg {

/// Building blocks of validate() functions. Each throws with "op: name ..." and what was expected.
ZG_API void check_present(const char* op, const char* name, const Tensor& tensor);
ZG_API void check_shape(const char* op, const char* name, const Tensor& tensor,
                        const Shape& expected);
ZG_API void check_dtype(const char* op, const char* name, const Tensor& tensor, DType expected);
/// Any of `allowed`.
ZG_API void check_dtype(const char* op, const char* name, const Tensor& tensor,
                        std::initializer_list<DType> allowed);
/// Every present tensor on one device.
ZG_API void check_device(const char* op, std::initializer_list<const Tensor*> tensors);

}  // namespace zg
