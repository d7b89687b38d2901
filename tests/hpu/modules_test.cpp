// What the pipeline from OpenCL C to SPIR-V promises of each module that it embeds.
#include "kernels/hpu/modules.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace {

using zg::hpu::EmbeddedModule;

/// The words of SPIR-V that these tests look at: by opcode, each with its operands.
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

constexpr unsigned op_entry_point = 15, op_execution_mode = 16, op_capability = 17;

}  // namespace

TEST_CASE("a module is found by its name, and no other is") {
  REQUIRE(!zg::hpu::every_module().empty());
  for (const EmbeddedModule& module : zg::hpu::every_module()) {
    INFO(module.name);
    CHECK(zg::hpu::find_module(module.name) == &module);
    uint32_t magic = 0;
    std::memcpy(&magic, module.spirv, sizeof magic);
    CHECK(magic == 0x07230203u);
    CHECK(reinterpret_cast<uintptr_t>(module.spirv) % 16 == 0);
  }
  CHECK(zg::hpu::find_module("no such module") == nullptr);
}

TEST_CASE("each kernel forbids its device to contract a multiply and an add") {
  constexpr uint32_t contraction_off = 31;
  for (const EmbeddedModule& module : zg::hpu::every_module()) {
    INFO(module.name);
    std::set<uint32_t> kernels, strict;
    for (const Instruction& instruction : instructions(module)) {
      if (instruction.opcode == op_entry_point) kernels.insert(instruction.operands[1]);
      if (instruction.opcode == op_execution_mode && instruction.operands[1] == contraction_off) {
        strict.insert(instruction.operands[0]);
      }
    }
    CHECK(!kernels.empty());
    CHECK(kernels == strict);
  }
}

TEST_CASE("no module needs doubles or halves, which some devices lack") {
  constexpr uint32_t float16 = 9, float64 = 10;
  for (const EmbeddedModule& module : zg::hpu::every_module()) {
    INFO(module.name);
    for (const Instruction& instruction : instructions(module)) {
      if (instruction.opcode != op_capability) continue;
      CHECK(instruction.operands[0] != float16);
      CHECK(instruction.operands[0] != float64);
    }
  }
}
