#pragma once

#include <cstdint>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/zero/loss_scale.h"

namespace zg::zero {

/// AdamW's constants. Weight decay applies to parameters with `decay` only.
struct AdamOptions {
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0.1f;
  bool decoupled = true;  ///< false: Adam, whose weight decay is added to the gradients
  /// Of bf16 masters: an update goes to one of the two bf16 beside it, the nearer the likelier, so
  /// that small ones are not lost but kept in the mean (kernels/adam.h).
  bool stochastic_rounding = false;
};

/// AdamW's decay rates of one step, of a schedule that moves them.
struct Betas {
  float beta1, beta2;
};

/// Where each kind of bytes rests between its uses: Space::device, Space::host or Space::file.
/// ZeRO-Offload: Ren et al. 2021, arXiv:2101.06840; ZeRO-Infinity: Rajbhandari et al. 2021,
/// arXiv:2104.07857. Every choice gives the same bits.
struct OffloadOptions {
  Space parameter = Space::device;   ///< stage 3's shards; what is worth no exchange stays
  Space gradient = Space::device;    ///< sums between micro-batches
  Space optimizer = Space::device;   ///< moments, and masters where values are no masters
  Space activation = Space::device;  ///< what the tape keeps for backward
  /// Elements of states in a file that AdamW takes at a time, and of gradient sums that are added
  /// to, through two sets of buffers.
  int64_t sub_group_size = int64_t{8} << 20;
  /// Of the trainable elements, the share whose moments and masters go to `optimizer`, by whole
  /// units from the first on; the others stay on the device and are updated there.
  double optimizer_ratio = 1.0;
  /// With `parameter` in a file: this rank's elements of values that rest on the host all the same,
  /// by whole units from the first on that fits.
  int64_t parameters_on_host = 0;
  /// With `parameter` in a file: elements of values that are read from it at a time, a unit's at
  /// least. A unit is read ahead only where it fits beside the one that is used.
  int64_t parameter_buffer = int64_t{500'000'000};
};

/// How the engine keeps and updates parameters.
struct Config {
  /// What the ranks share out. 0: gradient sums; every rank updates everything. 1: also masters and
  /// moments. 2: as 1; nothing here keeps whole gradients between micro-batches, so the two differ
  /// only in that reduce_at_boundary needs 0 or 1. 3: also values, gathered unit by unit.
  int stage = 0;
  DType compute = DType::f32;     ///< f32 | bf16 | f16: values, activations and leaf gradients
  DType optimizer = DType::f32;   ///< f32 | bf16: masters and moments. bf16, of bf16 compute only:
                                  ///< values are the masters, and small updates are lost in them
                                  ///< without adam.stochastic_rounding
  DType load = DType::f32;        ///< f32 | bf16: masters start, and are loaded, rounded to it
  DType grad_accum = DType::f32;  ///< f32 | bf16 (rounded after each leaf): gradient sums
  AdamOptions adam = {};
  float clip_norm = 1.0f;  ///< of the global gradient norm; 0: no clipping
  OffloadOptions offload = {};
  LossScaleOptions loss_scaling = {};  ///< of f16; the other dtypes need none
  uint64_t seed = 3407;                ///< of initial values and of stochastic rounding

  bool overlap_comm = true;  ///< reduce and gather while computing goes on
  /// Inexact, stages 0 and 1: each rank sums its own micro-batches and reduces once a step, so the
  /// bits depend on the number of ranks.
  bool reduce_at_boundary = false;
  /// Inexact, ranks on GPUs whose data NCCL carries: NCCL sums the ranks' gradients in its own
  /// order and rounding, so the bits depend on the number of ranks and on the machine.
  bool nccl_reduce = false;
  // Ceilings in elements: larger exchanges are cut, smaller units are never padded up to them.
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  int64_t prefetch_bucket_size =
      50'000'000;  ///< stage 3: units larger than this are not prefetched
  /// Stage 3: parameters of at most this many elements stay whole on every rank, as one flat unit.
  int64_t param_persistence_threshold = 100'000;
};

/// Throws ConfigError naming the field, or Unsupported for what this build does not do.
ZG_API void validate(const Config& config);

}  // namespace zg::zero
