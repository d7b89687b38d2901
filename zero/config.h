#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/zero/optimizer/loss_scale.h"

namespace zg::zero {

/// AdamW's constants. Weight decay applies to parameters with `decay` only.
struct AdamOptions {
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
  bool decoupled = true;  ///< false: Adam, whose weight decay is added to the gradients
  /// For bf16 masters. An update is rounded to one of the two nearest bf16 values, to the nearer
  /// one with the higher probability, so small updates are kept on average
  /// (kernels/optimizer/optimizer.h).
  bool stochastic_rounding = false;
};

/// AdamW's decay rates in one step, for a schedule that changes them.
struct Betas {
  float beta1, beta2;
};

/// Where each kind of data rests between its uses: Space::device, Space::host or Space::file.
/// ZeRO-Offload: Ren et al. 2021, arXiv:2101.06840; ZeRO-Infinity: Rajbhandari et al. 2021,
/// arXiv:2104.07857. Every choice gives the same bits.
struct OffloadOptions {
  Space parameter = Space::device;   ///< stage 3's shards; small parameters stay on the device
  Space gradient = Space::device;    ///< gradient accumulators between micro-batches
  Space optimizer = Space::device;   ///< moments, and masters unless values are the masters
  Space activation = Space::device;  ///< tensors that the tape keeps for backward
  /// Elements of optimizer states in a file that AdamW processes at a time, and of gradient
  /// accumulators in a file that are updated at a time. Two sets of buffers have this size.
  int64_t sub_group_size = int64_t{8} << 20;
  /// The share of the trainable elements whose moments and masters go to `optimizer`, in whole
  /// units from the first on. The others stay on the device and are updated there.
  double optimizer_ratio = 1.0;
  /// With `parameter` in a file: number of this rank's elements that rest on the host instead, in
  /// whole units from the first one that fits.
  int64_t parameters_on_host = 0;
  /// With `parameter` in a file: elements of values read from it at a time, at least one unit's. A
  /// unit is prefetched only if it fits beside the one in use.
  int64_t parameter_buffer = int64_t{500'000'000};
};

/// How the engine keeps and updates parameters.
struct Config {
  /// ZeRO stage: the data that is partitioned over the ranks. 0: gradient accumulators; every rank
  /// updates everything. 1: also masters and moments. 2: as 1. No stage keeps whole gradients
  /// between micro-batches, so 2 differs only in that reduce_at_boundary needs 0 or 1. 3: also
  /// values, which are gathered unit by unit.
  int stage = 0;
  DType compute = DType::f32;     ///< f32 | bf16 | f16: values, activations and leaf gradients
  DType optimizer = DType::f32;   ///< f32 | bf16: masters and moments. bf16, of bf16 compute only:
                                  ///< values are the masters, and small updates are lost in them
                                  ///< without adam.stochastic_rounding
  DType load = DType::f32;        ///< f32 | bf16: masters start, and are loaded, rounded to it
  DType grad_accum = DType::f32;  ///< f32 | bf16 (rounded after each leaf): gradient sums
  AdamOptions adam = {};
  float clip_norm = 1.0f;  ///< limit of the global gradient norm; 0: no clipping
  OffloadOptions offload = {};
  LossScaleOptions loss_scaling = {};  ///< f16 only
  uint64_t seed = 3407;                ///< for initial values and stochastic rounding

  bool overlap_comm = true;  ///< reduce and gather while computation continues
  /// Inexact, stages 0 and 1: each rank accumulates its own micro-batches and reduces once in a
  /// step, so the bits depend on the number of ranks.
  bool reduce_at_boundary = false;
  /// Inexact, ranks on GPUs that communicate by NCCL: NCCL adds the ranks' gradients in its own
  /// order and rounding, so the bits depend on the number of ranks and on the machine.
  bool nccl_reduce = false;
  // Upper limits in elements: larger exchanges are split, smaller units are not padded.
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  int64_t prefetch_bucket_size =
      50'000'000;  ///< stage 3: units larger than this are not prefetched
  /// Stage 3: parameters of at most this many elements stay whole on every rank, as one flat unit.
  int64_t param_persistence_threshold = 100'000;
};

/// Throws ConfigError naming the field, or Unsupported for what this build does not do.
ZG_API void validate(const Config& config);

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
