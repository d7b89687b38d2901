#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {

/// A SPIR-V module that zg_add_spirv() embedded: file[.dtype][.variant], as "matmul.bf16.dpas16".
struct EmbeddedModule {
  const char* name;
  const unsigned char* spirv;  ///< aligned to 16
  size_t bytes;
};

const EmbeddedModule* find_module(std::string_view name);  ///< null if there is none
std::span<const EmbeddedModule> every_module();

/// The module of a .cl file that is compiled once, or once for each dtype of its elements. Throws
/// Unsupported for a dtype without one ("gelu: no hpu kernel for f16").
Code module(const char* file);
Code module(const char* file, DType dtype, const char* variant = "");

/// The dtype's name, which is part of a kernel's name. Throws Unsupported, as module() does, unless
/// `known` has the dtype.
const char* word(const char* op, DType dtype, std::initializer_list<DType> known);

}  // namespace zg::hpu
