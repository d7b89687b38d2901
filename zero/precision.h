#pragma once

#include <optional>
#include <string>

#include "zerograd/zero/config.h"

namespace zg::zero {

/// The dtypes of a run, as the comparison of DeepSpeed and FSDP in Hugging Face's accelerate
/// documentation tabulates them.
enum class PrecisionPreset : uint8_t {
  deepspeed,   ///< loaded in bf16, kept and updated in f32, computed in bf16
  fsdp_mixed,  ///< FSDP with mixed_precision bf16: the same dtypes
  fsdp_memory  ///< FSDP without: bf16 everywhere: 8 bytes a parameter, not 18
};
/// "deepspeed", "fsdp-mixed", "fsdp-memory".
ZG_API const char* name_of(PrecisionPreset preset);
ZG_API PrecisionPreset precision_preset(const std::string& name);  ///< throws ConfigError

struct Precision {
  DType load;                  ///< dtype in which weights are loaded
  std::optional<DType> mixed;  ///< cast by a mixed-precision wrapper; absent: no wrapper
  DType local;                 ///< dtype of the parameters that a rank keeps and updates
  DType compute;               ///< dtype of parameters, activations and gradients in a pass
  DType optimizer;             ///< dtype of the moments
  bool operator==(const Precision&) const = default;
};
ZG_API Precision precision_of(PrecisionPreset preset);
ZG_API Precision precision_of(const Config& config);  ///< set by a preset or not

/// `config` with this precision. Gradients are summed in the optimizer's dtype. ConfigError when
/// local and optimizer differ, or compute is not what a mixed wrapper, or else `local`, says.
ZG_API Config with_precision(Config config, const Precision& precision);

}  // namespace zg::zero
