#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/api.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/zero/optimizer.h"
#include "zerograd/zero/optimizer/loss_scale.h"

namespace zg {

/// The optimizers of the library, by the names that --optimizer has for them. adamw is adam with
/// UpdateOptions::decoupled.
enum class OptimizerRule : uint8_t { adam, lion, sgd, muon, adafactor };
inline constexpr std::initializer_list<OptimizerRule> optimizer_rules = {
    OptimizerRule::adam, OptimizerRule::lion, OptimizerRule::sgd, OptimizerRule::muon,
    OptimizerRule::adafactor};
/// "adam", "lion", "sgd", "muon", "adafactor".
constexpr const char* name_of(OptimizerRule rule) {
  constexpr const char* names[] = {"adam", "lion", "sgd", "muon", "adafactor"};
  return names[static_cast<size_t>(rule)];
}

}  // namespace zg

namespace zg::zero {

/// How Muon adjusts the rate of a matrix to its shape, as adjust_lr_fn of torch.optim.Muon.
enum class MatrixRate : uint8_t {
  original,        ///< rate * sqrt(max(1, rows / columns)), as its author and DeepSpeed
  match_rms_adamw  ///< rate * 0.2 sqrt(max(rows, columns)): a step is as large as one of AdamW, so
                   ///< both parts have one rate. Liu et al. 2025, arXiv:2502.16982, equation 4
};
using MuonRate = MatrixRate;
inline constexpr std::initializer_list<MatrixRate> matrix_rates = {MatrixRate::original,
                                                                   MatrixRate::match_rms_adamw};
/// "original", "match_rms_adamw".
constexpr const char* name_of(MatrixRate rate) {
  return rate == MatrixRate::original ? "original" : "match_rms_adamw";
}

/// Numbers of OptimizerRule::muon. zero/optimizer/muon.h has the formulas. Parameters with
/// Parameter::hidden_matrix are updated as by torch.optim.Muon; its Newton-Schulz iteration is in
/// bf16 there, here only if the engine computes in bf16. All others are updated by adam, and so are
/// matrices of a group with by_adam.
struct MuonOptions {
  float momentum = 0.95f;
  bool nesterov = true;
  MuonRate rate = MuonRate::match_rms_adamw;
  float adam_rate = 1.0f;  ///< the rate of the parameters that adam updates, as a multiple of the
                           ///< step's rate
};

/// Numbers of OptimizerRule::adafactor, as torch.optim.Adafactor. zero/optimizer/adafactor.h has
/// the formulas.
struct AdafactorOptions {
  float beta2_decay = -0.8f;  ///< beta2 = 1 - step^beta2_decay; 0 or less
  float epsilon1 = 0x1p-23f;  ///< the least root of a second moment; torch's None for f32
  float epsilon2 = 1e-3f;     ///< the least root mean square of a parameter in its step's size
  float clip = 1.0f;          ///< the root mean square to which an update is limited; from 1
};

/// Parameters with numbers of their own, like a group of torch.optim. fnmatch(3) compares the
/// pattern with a parameter's name: "*.bias", "transformer.h.[01].*".
struct ParameterGroup {
  std::string pattern;
  float rate = 1.0f;  ///< a multiple of the step's rate; 0: the parameters keep their values
  /// Absent: UpdateOptions::weight_decay for parameters with Parameter::decay.
  std::optional<float> weight_decay = {};
  bool by_adam = false;  ///< with OptimizerRule::muon: adam updates hidden matrices, too
  std::shared_ptr<const Optimizer> optimizer = {};  ///< of these parameters; null: the run's
  bool operator==(const ParameterGroup&) const = default;
};
/// Reads "PATTERN:rate=0.1,decay=0;PATTERN:optimizer=adamw", in which a setting may be left out.
/// "optimizer=adamw" sets by_adam. Throws ConfigError, which begins with `name`. text_of() writes
/// what it reads.
ZG_API std::vector<ParameterGroup> parameter_groups(const std::string& text,
                                                    const std::string& name = "parameter groups");
ZG_API std::string text_of(const std::vector<ParameterGroup>& groups);

/// The optimizer and its constants. Weight decay applies only to parameters with Parameter::decay,
/// unless a group says otherwise.
struct UpdateOptions {
  OptimizerRule rule = OptimizerRule::adam;  ///< torch.optim.SGD also has decoupled = false
  /// Null: the class of `rule` with the numbers below. Otherwise they have no effect, but for
  /// weight_decay, stochastic_rounding and groups.
  std::shared_ptr<const Optimizer> optimizer = {};
  float beta1 = 0.9f, beta2 = 0.95f;  ///< adam, lion; Lion's authors use 0.9 and 0.99
  float epsilon = 1e-8f;              ///< adam, also as a part of muon
  float momentum = 0.0f;              ///< sgd; 0: without momentum, and no state is kept for it
  float dampening = 0.0f;             ///< sgd with momentum: the share of a gradient it ignores
  bool nesterov = false;              ///< sgd with momentum, without dampening
  MuonOptions muon = {};
  AdafactorOptions adafactor = {};
  float weight_decay = 0.1f;
  bool decoupled = true;  ///< false: weight decay is added to the gradients, as in Adam and SGD
  /// For bf16 masters. An update is rounded to one of the two nearest bf16 values, to the nearer
  /// one with the higher probability, so small updates are kept on average
  /// (kernels/optimizer/optimizer.h).
  bool stochastic_rounding = false;
  /// The first group whose pattern matches a parameter's name decides. Each must decide for at
  /// least one parameter of the model.
  std::vector<ParameterGroup> groups = {};
};

/// The numbers of one parameter's update.
struct UpdateNumbers {
  float rate_factor, weight_decay;
  bool operator==(const UpdateNumbers&) const = default;
};
/// The group that decides for a parameter of this name; null: none.
ZG_API const ParameterGroup* group_of(const UpdateOptions& options, const std::string& name);
ZG_API UpdateNumbers numbers_of(const UpdateOptions& options, const Parameter& parameter);

/// The name that --optimizer has for it: "adamw", or "adam" if decay is added to the gradients; or
/// that of `optimizer`.
ZG_API std::string optimizer_name(const UpdateOptions& options);

/// States that have a number for each element of a parameter: adam has two, lion one, sgd one if it
/// has a momentum. Of several optimizers, those of all together.
ZG_API int moments_of(const UpdateOptions& options);

ZG_API Betas betas_of(const UpdateOptions& options);

/// The space in which each kind of data is stored while no kernel uses it: Space::device,
/// Space::host or Space::file. ZeRO-Offload: Ren et al. 2021, arXiv:2101.06840; ZeRO-Infinity:
/// Rajbhandari et al. 2021, arXiv:2104.07857. Every choice gives the same bits.
struct OffloadOptions {
  Space parameter = Space::device;   ///< the shards of stage 3; small parameters stay on the device
  Space gradient = Space::device;    ///< gradient accumulators between micro-batches
  Space optimizer = Space::device;   ///< moments, and master weights unless the parameters
                                     ///< themselves are the master weights
  Space activation = Space::device;  ///< tensors that the tape keeps for backward
  /// For optimizer states and gradient accumulators in a file: the number of elements that are
  /// read, updated and written at a time. There are two sets of buffers of this size.
  int64_t sub_group_size = int64_t{8} << 20;
  /// The fraction of the trainable elements whose moments and master weights are stored in
  /// `optimizer`: whole units, from the first on. The others stay on the device and are updated
  /// there.
  double optimizer_ratio = 1.0;
  /// With `parameter` in a file: number of this rank's elements that are stored on the host
  /// instead, in whole units from the first one that fits.
  int64_t parameters_on_host = 0;
  /// With `parameter` in a file: size in elements of the buffer for parameters that are read from
  /// it, at least one unit. The next units are prefetched only as far as they fit into the buffer
  /// beside those in use.
  int64_t parameter_buffer = int64_t{500'000'000};
  /// Bytes, of each rank, for second copies of offloaded optimizer states, into which units are
  /// updated during backward, before the norm of the gradients is known (optimizer/speculation.h).
  /// 12 for each element of the shard, 14 with values of 16 bits; with less, fewer units. 0: none.
  /// For CPU devices, and programs that call Engine::expect_step().
  int64_t speculation = 0;
};

/// How the engine keeps and updates parameters.
struct Config {
  /// The ZeRO stage decides which data is partitioned over the ranks. 0: gradient accumulators;
  /// every rank updates all parameters. 1: also master weights and moments. 2: the same as 1,
  /// because no stage keeps whole gradients between micro-batches; but reduce_at_boundary is an
  /// error. 3: also parameters, which are gathered unit by unit.
  int stage = 0;
  DType compute = DType::f32;  ///< f32 | bf16 | f16: parameters, activations and gradients
  /// f32 | bf16: master weights and moments. bf16 requires bf16 compute; then the parameters are
  /// the master weights, and small updates are lost without update.stochastic_rounding.
  DType optimizer = DType::f32;
  /// f32 | bf16: initial and loaded master weights are rounded to it.
  DType load = DType::f32;
  /// f32 | bf16 (rounded after each micro-batch): gradient accumulators.
  DType grad_accum = DType::f32;
  UpdateOptions update = {};
  float clip_norm = 1.0f;  ///< limit of the global gradient norm; 0: no clipping
  OffloadOptions offload = {};
  LossScaleOptions loss_scaling = {};  ///< f16 only
  uint64_t seed = 3407;                ///< for initial values and stochastic rounding

  bool overlap_comm = true;  ///< reduce and gather while computation continues
  /// For stages 0 and 1: each rank accumulates its own micro-batches, and gradients are reduced
  /// once in a step. Inexact: the bits depend on the number of ranks.
  bool reduce_at_boundary = false;
  /// For ranks on GPUs that communicate by NCCL: NCCL adds the ranks' gradients in its own order
  /// and rounding. Inexact: the bits depend on the number of ranks and on the machine.
  bool nccl_reduce = false;
  // Upper limits, in elements, of one collective. Larger ones are divided.
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  /// Stage 3: limit of the elements of all units that are prefetched and not used yet; 0: none is.
  int64_t prefetch_bucket_size = 50'000'000;
  /// Stage 3: limit of the number of those units. With more, a model of small units waits less
  /// often for the latency of a collective, and takes more memory.
  int64_t prefetch_units = 1;
  /// Stage 3: parameters of at most this many elements stay whole on every rank, as one flat unit.
  int64_t param_persistence_threshold = 100'000;
};

/// Throws ConfigError naming the field, or Unsupported for values that this build does not support.
ZG_API void validate(const Config& config);
ZG_API void validate(const UpdateOptions& options);

/// Whether updated parameters exist only from forward to backward, rounded from the master weights
/// (Storage::rounds_at_use): 16-bit ones of one rank, whose master weights are on the device, a
/// CPU. An accelerator would launch a kernel for each unit and step.
ZG_API bool rounds_at_use(const Config& config, int64_t ranks, Device::Type device);

/// Sets of dtypes, as in the table "DeepSpeed vs FSDP" in the documentation of Hugging Face's
/// accelerate.
enum class PrecisionPreset : uint8_t {
  deepspeed,   ///< loaded in bf16, stored and updated in f32, computed in bf16
  fsdp_mixed,  ///< FSDP with mixed_precision bf16: the same dtypes
  fsdp_memory  ///< FSDP without mixed_precision: all bf16, 8 bytes a parameter instead of 18
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
ZG_API Precision precision_of(const Config& config);  ///< also for a config without a preset

/// Returns `config` with these dtypes. Gradients are accumulated in the optimizer's dtype. Throws
/// ConfigError if `local` and `optimizer` differ, or if `compute` differs from `mixed` (without
/// `mixed`: from `local`).
ZG_API Config with_precision(Config config, const Precision& precision);

}  // namespace zg::zero
