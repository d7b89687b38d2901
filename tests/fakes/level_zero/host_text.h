#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fakes/level_zero/spirv.h"

namespace zg::test_driver {

/// Rewrites the LLVM text of a module for a device into text for the host: one address space, the
/// host's calling convention, and no attributes of the driver's functions that would be wrong
/// (readnone).
std::string host_text(std::string_view device_text);

/// The same with, for each kernel K, what run_groups() needs: zg_item_K and zg_row_K run it,
/// zg_poison_K fills its local arrays with NaN, and the byte zg_meets_K says whether its work-items
/// may wait for each other.
std::string host_text_of_kernels(std::string_view device_text,
                                 const std::vector<KernelSignature>& kernels);

/// The text with each division of two floats as a product with a reciprocal, which is not always
/// correctly rounded.
std::string with_reciprocals(std::string_view text);

/// Functions that a text declares and those that it defines.
struct Functions {
  std::set<std::string> declared, defined;
};
Functions functions_of(std::string_view text);

}  // namespace zg::test_driver
