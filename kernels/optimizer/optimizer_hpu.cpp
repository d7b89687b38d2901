#include "zerograd/kernels/optimizer/optimizer.h"

#include <algorithm>
#include <bit>

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/optimizer/square_groups.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

/// A float16: a number for each of up to 16 tensors, or the constants in update.cl's layout.
struct alignas(64) Float16 {
  float v[16] = {};
};

constexpr const char* kinds[update_kinds] = {"adam", "lion", "momentum", "descent"};

int64_t address(const Tensor& tensor) { return reinterpret_cast<int64_t>(tensor.raw()); }

/// Calls launch(first, count, counts, ends, groups) for up to 16 of the tensors at a time: what
/// count_of(tensor) says, and the numbers of work-groups up to the end of each.
template <class Items, class CountOf, class Launch>
void for_many(const Items& items, const CountOf& count_of, int64_t (*groups_of)(int64_t),
              const Launch& launch) {
  for (size_t first = 0; first < items.size(); first += Long16::size) {
    const size_t count = std::min(items.size() - first, Long16::size);
    Long16 counts, ends;
    int64_t groups = 0;
    for (size_t i = 0; i < Long16::size; ++i) {
      if (i < count) groups += groups_of(counts.v[i] = count_of(items[first + i]));
      ends.v[i] = groups;
    }
    launch(first, count, counts, ends, groups);
  }
}

}  // namespace

void optimizer_update(const OptimizerUpdate& a, Workspace, Stream& stream) {
  if (a.tensors.empty()) return;
  const OptimizerTensor& any = a.tensors[0];
  const std::string kernel = fmt::format("{}_{}_{}", kinds[static_cast<size_t>(kind_of(a))],
                                         any.parameter.dtype(), any.gradient.dtype());
  const auto numel_of = [](const OptimizerTensor& t) { return t.parameter.numel(); };
  for_many(
      a.tensors, numel_of, span_groups,
      [&](size_t first, size_t count, const Long16& counts, const Long16& ends, int64_t groups) {
        Long16 gradients, parameters, moments1, moments2, copies, names, firsts;
        Float16 l2, keep, move, shared;
        for (size_t i = 0; i < count; ++i) {
          const OptimizerTensor& t = a.tensors[first + i];
          if (t.low_precision && t.low_precision.dtype() != DType::bf16)
            raise<Unsupported>("{}: no hpu kernel for a low_precision of {}; expected bf16",
                               name_of(a.rule), t.low_precision.dtype());
          gradients.v[i] = address(t.gradient);
          parameters.v[i] = address(t.parameter);
          moments1.v[i] = address(t.moment1);
          moments2.v[i] = address(t.moment2);
          copies.v[i] = address(t.low_precision);
          names.v[i] = static_cast<int64_t>(t.name);
          firsts.v[i] = t.first;
          const UpdateConstants c = constants(a, t);
          l2.v[i] = c.l2;
          keep.v[i] = c.keep;
          move.v[i] = c.move;
          shared = {{c.gradient_scale, 0.0f, c.beta1, c.new1, c.beta2, c.new2, c.unbias2, c.epsilon,
                     0.0f, 0.0f, c.nesterov ? 1.0f : 0.0f}};
        }
        launch(stream, module("update"), kernel.c_str(), {groups}, any.parameter.raw(), gradients,
               parameters, moments1, moments2, copies, counts, ends, l2, keep, move, shared,
               a.scale.raw(), uint32_t{a.rounding_seed.has_value()}, a.rounding_seed.value_or(0),
               names, firsts, static_cast<uint32_t>(a.step));
      });
}

void sum_of_squares(const SumOfSquares& a, Workspace, Stream& stream) {
  if (a.parts.empty()) return;
  const Code code = module("sum_of_squares", a.parts[0].x.dtype());
  for_many(
      a.parts,
      [](const SumOfSquares::Part& part) { return part.x.numel() / SumOfSquares::granule; },
      square_groups,
      [&](size_t first, size_t count, const Long16& granules, const Long16& ends, int64_t groups) {
        Long16 xs, limbs, non_finite;
        for (size_t i = 0; i < count; ++i) {
          const SumOfSquares::Part& part = a.parts[first + i];
          xs.v[i] = address(part.x);
          limbs.v[i] = address(part.limbs);
          non_finite.v[i] = address(part.non_finite);
        }
        launch(stream, code, "squares", {groups}, a.parts[0].limbs.raw(), xs, limbs, non_finite,
               granules, ends);
      });
}

void gradient_scale(const GradientScale& a, Workspace, Stream& stream) {
  const Clipping& clipping = a.clipping;
  const auto bits = [](double x) { return std::bit_cast<uint64_t>(x); };
  launch(
      stream, module("sum_of_squares", DType::f32), "scale_gradients", {}, a.limbs.raw(),
      a.non_finite.raw(), a.non_finite.numel(), a.scale.raw(),
      bits(std::max(0.0f, clipping.clip_norm)), bits(clipping.divisor()),
      Clipping{.micro_batches = clipping.micro_batches, .loss_scale = clipping.loss_scale}.factor(
          0.0),
      fault_place(stream));
}

void fold_gradient(const FoldGradient& a, Workspace, Stream& stream) {
  if (a.parts.empty()) return;
  std::string kernel = "fold";
  for (const DType dtype : {a.parts[0].leaf.dtype(), a.rounding, a.parts[0].sum.dtype()})
    kernel += std::string("_") + word("fold_gradient", dtype, {DType::f32, DType::bf16});
  const auto numel_of = [](const FoldGradient::Part& part) { return part.leaf.numel(); };
  for_many(
      a.parts, numel_of, span_groups,
      [&](size_t first, size_t count, const Long16& counts, const Long16& ends, int64_t groups) {
        Long16 leaves, sums;
        uint32_t firsts = 0;  // a bit for each
        for (size_t i = 0; i < count; ++i) {
          const FoldGradient::Part& part = a.parts[first + i];
          leaves.v[i] = address(part.leaf);
          sums.v[i] = address(part.sum);
          if (part.first) firsts |= 1u << i;
        }
        launch(stream, module("fold_gradient"), kernel.c_str(), {groups}, a.parts[0].leaf.raw(),
               leaves, sums, counts, ends, firsts);
      });
}

}  // namespace zg::hpu
