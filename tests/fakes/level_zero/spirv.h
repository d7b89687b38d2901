#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zg::test_driver {

enum class ArgumentKind : uint8_t { value, global, local };

struct Argument {
  ArgumentKind kind = ArgumentKind::value;
  size_t bytes = 0;  ///< 8 for a pointer, 0 for local memory
};

struct KernelSignature {
  std::string name;
  std::vector<Argument> arguments;
  std::array<uint32_t, 3> required_group{};  ///< 0: any
  uint32_t required_sub_group = 0;           ///< 0: any
};

/// Properties of a SPIR-V module that the driver needs.
struct SpirvModule {
  std::vector<KernelSignature> kernels;
  std::vector<std::string> imports;  ///< functions that the device's compiler defines
  bool sub_groups = false, doubles = false, halves = false;
};

/// Throws std::runtime_error that describes the invalid bytes.
SpirvModule read_spirv(std::span<const std::byte> bytes);

}  // namespace zg::test_driver
