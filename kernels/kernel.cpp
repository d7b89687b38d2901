#include "zerograd/kernels/kernel.h"

namespace zg {

std::string text_of(const std::vector<Operand>& operands) {
  constexpr size_t most = 16;
  std::string text;
  size_t present = 0;
  for (const auto& [name, tensor, is_written] : operands) {
    if (!tensor || ++present > most) continue;
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + name_of(tensor.dtype()) + " " +
            tensor.shape().str();
  }
  if (present > most) text += " and " + std::to_string(present - most) + " more";
  return text;
}

}  // namespace zg
