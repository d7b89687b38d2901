// Properties of each module that the pipeline from OpenCL C to SPIR-V embeds.
#include "zerograd/kernels/hpu/modules.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "tests/hpu/level_zero.h"

namespace {

using zg::hpu::EmbeddedModule;

/// The instructions of SPIR-V that these tests read: opcode and operands.
struct Instruction {
  unsigned opcode;
  std::vector<uint32_t> operands;
};

std::vector<Instruction> instructions(const EmbeddedModule& module) {
  std::vector<uint32_t> words(module.bytes / sizeof(uint32_t));
  std::memcpy(words.data(), module.spirv, module.bytes);
  std::vector<Instruction> all;
  for (size_t i = 5; i < words.size() && words[i] >> 16; i += words[i] >> 16) {
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(i);
    all.push_back({*begin & 0xffff, {begin + 1, begin + (*begin >> 16)}});
  }
  return all;
}

/// Whether a device with these sub-group sizes supports the module's variant.
bool has_what_it_needs(const std::string& name, const std::vector<uint32_t>& sizes) {
  if (name == "unknown_function") return false;  // no device has what it calls
  const std::string variant = name.substr(name.rfind('.') + 1);
  for (const char* sub_groups : {"sg", "dpas"}) {
    for (const uint32_t size : {8u, 16u}) {
      if (variant != sub_groups + std::to_string(size)) continue;
      const auto found = std::ranges::find(sizes, size);
      return found != sizes.end() && (variant[0] == 's' || found == sizes.begin());
    }
  }
  return true;  // portable
}

constexpr unsigned op_entry_point = 15, op_execution_mode = 16, op_capability = 17;

}  // namespace

TEST_CASE("find_module finds each embedded module by its name, and nothing for an unknown name") {
  REQUIRE(!zg::hpu::every_module().empty());
  for (const EmbeddedModule& module : zg::hpu::every_module()) {
    INFO(std::string(module.name));
    CHECK(zg::hpu::find_module(module.name) == &module);
    uint32_t magic = 0;
    std::memcpy(&magic, module.spirv, sizeof magic);
    CHECK(magic == 0x07230203u);
    CHECK(reinterpret_cast<uintptr_t>(module.spirv) % 16 == 0);
  }
  CHECK(zg::hpu::find_module("no such module") == nullptr);
}

TEST_CASE("each kernel's SPIR-V turns off the contraction of a multiply and an add") {
  constexpr uint32_t contraction_off = 31;
  for (const EmbeddedModule& module : zg::hpu::every_module()) {
    INFO(std::string(module.name));
    std::set<uint32_t> kernels, strict;
    for (const Instruction& instruction : instructions(module)) {
      if (instruction.opcode == op_entry_point) kernels.insert(instruction.operands[1]);
      if (instruction.opcode == op_execution_mode && instruction.operands[1] == contraction_off)
        strict.insert(instruction.operands[0]);
    }
    CHECK(!kernels.empty());
    CHECK(kernels == strict);
  }
}

TEST_CASE("no module needs doubles or halves, which some devices lack") {
  constexpr uint32_t float16 = 9, float64 = 10;
  for (const EmbeddedModule& module : zg::hpu::every_module()) {
    INFO(std::string(module.name));
    for (const Instruction& instruction : instructions(module)) {
      if (instruction.opcode != op_capability) continue;
      CHECK(instruction.operands[0] != float16);
      CHECK(instruction.operands[0] != float64);
    }
  }
}

TEST_CASE("a module builds if and only if the device supports its variant") {
  zg::test::LevelZero l0;
  ze_device_compute_properties_t properties = {};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES;
  ZG_CHECK_ZE(zeDeviceGetComputeProperties(l0.device, &properties));
  const std::vector<uint32_t> sizes(properties.subGroupSizes,
                                    properties.subGroupSizes + properties.numSubGroupSizes);
  for (const EmbeddedModule& embedded : zg::hpu::every_module()) {
    INFO(std::string(embedded.name));
    const auto build = [&] {
      const ze_module_handle_t module = l0.module(embedded.name);
      uint32_t count = 0;
      ZG_CHECK_ZE(zeModuleGetKernelNames(module, &count, nullptr));
      std::vector<const char*> names(count);
      ZG_CHECK_ZE(zeModuleGetKernelNames(module, &count, names.data()));
      for (const char* name : names) l0.kernel(module, name);
    };
    if (has_what_it_needs(embedded.name, sizes)) {
      CHECK_NOTHROW(build());
    } else {
      CHECK_THROWS(build());
    }
  }
}
