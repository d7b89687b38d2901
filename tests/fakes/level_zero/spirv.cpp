#include "tests/fakes/level_zero/spirv.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

namespace zg::test_driver {
namespace {

// Numbers of the SPIR-V specification, sections 3.5 to 3.52.
constexpr uint32_t magic = 0x07230203;
enum Opcode : uint32_t {
  op_entry_point = 15,
  op_execution_mode = 16,
  op_capability = 17,
  op_type_int = 21,
  op_type_float = 22,
  op_type_vector = 23,
  op_type_array = 28,
  op_type_struct = 30,
  op_type_pointer = 32,
  op_constant = 43,
  op_function = 54,
  op_function_parameter = 55,
  op_decorate = 71,
};
constexpr uint32_t kernel_model = 6, mode_local_size = 17, mode_sub_group_size = 35;
constexpr uint32_t storage_workgroup = 4, storage_function = 7;
constexpr uint32_t capability_halves = 9, capability_doubles = 10, capability_groups = 18,
                   capability_sub_groups = 58, capability_shuffles = 5568;
constexpr uint32_t linkage_attributes = 41, linkage_import = 1;

struct Type {
  ArgumentKind kind = ArgumentKind::value;
  size_t bytes = 0, alignment = 1;
};

size_t align_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

class Reader {
 public:
  SpirvModule read(std::span<const std::byte> bytes) {
    if (bytes.size() < 20 || bytes.size() % 4)
      throw std::runtime_error("not SPIR-V: " + std::to_string(bytes.size()) + " bytes");
    std::vector<uint32_t> words(bytes.size() / 4);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    if (words[0] != magic) throw std::runtime_error("not SPIR-V: it begins with another number");
    for (size_t at = 5; at < words.size();) {
      const size_t length = words[at] >> 16;
      if (!length || at + length > words.size()) throw std::runtime_error("SPIR-V is cut off");
      instruction(words[at] & 0xffff, std::span(words).subspan(at + 1, length - 1));
      at += length;
    }
    return std::move(module_);
  }

 private:
  KernelSignature* kernel_of(uint32_t function) {
    const auto found = kernels_.find(function);
    return found == kernels_.end() ? nullptr : &module_.kernels[found->second];
  }

  void instruction(uint32_t opcode, std::span<const uint32_t> w) {
    switch (opcode) {
      case op_capability:
        module_.halves |= w[0] == capability_halves;
        module_.doubles |= w[0] == capability_doubles;
        module_.sub_groups |= w[0] == capability_groups || w[0] == capability_sub_groups ||
                              w[0] == capability_shuffles;
        break;
      case op_entry_point:
        if (w[0] != kernel_model) break;
        kernels_[w[1]] = module_.kernels.size();
        module_.kernels.push_back({.name = reinterpret_cast<const char*>(&w[2])});
        break;
      case op_execution_mode:
        if (KernelSignature* kernel = kernel_of(w[0])) {
          if (w[1] == mode_local_size) std::copy_n(&w[2], 3, kernel->required_group.begin());
          if (w[1] == mode_sub_group_size) kernel->required_sub_group = w[2];
        }
        break;
      case op_decorate:
        if (w[1] == linkage_attributes && w.back() == linkage_import)
          module_.imports.emplace_back(reinterpret_cast<const char*>(&w[2]));
        break;
      case op_constant:
        constants_[w[1]] = w[2];
        break;
      case op_function:
        function_ = w[1];
        break;
      case op_function_parameter:
        if (KernelSignature* kernel = kernel_of(function_))
          kernel->arguments.push_back({types_[w[0]].kind, types_[w[0]].bytes});
        break;
      default:
        type(opcode, w);
    }
  }

  void type(uint32_t opcode, std::span<const uint32_t> w) {
    switch (opcode) {
      case op_type_int:
      case op_type_float:
        types_[w[0]] = {.bytes = w[1] / 8, .alignment = w[1] / 8};
        break;
      case op_type_vector: {  // a vector of 3 has the size of one of 4
        const size_t bytes = types_[w[1]].bytes * (w[2] == 3 ? 4 : w[2]);
        types_[w[0]] = {.bytes = bytes, .alignment = bytes};
        break;
      }
      case op_type_array:
        types_[w[0]] = {.bytes = types_[w[1]].bytes * constants_[w[2]],
                        .alignment = types_[w[1]].alignment};
        break;
      case op_type_struct: {
        Type all;
        for (const uint32_t member : w.subspan(1)) {
          const Type& part = types_[member];
          all.bytes = align_up(all.bytes, part.alignment) + part.bytes;
          all.alignment = std::max(all.alignment, part.alignment);
        }
        all.bytes = align_up(all.bytes, all.alignment);
        types_[w[0]] = all;
        break;
      }
      case op_type_pointer:
        // A parameter of storage class Function is a struct that is passed by value.
        types_[w[0]] = w[1] == storage_workgroup  ? Type{ArgumentKind::local, 0, 8}
                       : w[1] == storage_function ? types_[w[2]]
                                                  : Type{ArgumentKind::global, 8, 8};
        break;
      default:
        break;
    }
  }

  SpirvModule module_;
  std::map<uint32_t, size_t> kernels_;  ///< OpFunction's <id> to index in module_.kernels
  std::map<uint32_t, Type> types_;
  std::map<uint32_t, uint32_t> constants_;
  uint32_t function_ = 0;
};

}  // namespace

SpirvModule read_spirv(std::span<const std::byte> bytes) { return Reader().read(bytes); }

}  // namespace zg::test_driver
