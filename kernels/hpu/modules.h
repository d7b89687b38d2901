#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace zg::hpu {

/// A SPIR-V module that zg_add_spirv() embedded: file[.dtype][.variant], as "matmul.bf16.dpas16".
struct EmbeddedModule {
  const char* name;
  const unsigned char* spirv;  ///< aligned to 16
  size_t bytes;
};

const EmbeddedModule* find_module(std::string_view name);  ///< null if there is none
std::span<const EmbeddedModule> every_module();

}  // namespace zg::hpu
