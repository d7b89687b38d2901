#include "bench/case.h"

#include <sys/prctl.h>

#include <algorithm>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::bench {

std::vector<OpFamily> every_op() {
  return {product_ops(), attention_ops(), row_ops(),      element_ops(), cast_ops(),
          unary_ops(),   binary_ops(),    movement_ops(), window_ops()};
}

std::function<Error(DType, const Extents&)> roundings(double absolute, double relative) {
  return [=](DType dtype, const Extents&) {
    const double u = unit_roundoff(accumulator(dtype));
    return Error{.absolute = absolute * u, .relative = relative * u};
  };
}

std::function<std::vector<Tensor>(const Operands&, const Extents&)> variables_of(
    std::vector<std::vector<size_t>> places, double low, double high) {
  return [places = std::move(places), low, high](const Operands& operands, const Extents& e) {
    std::vector<Tensor> variables;
    for (const std::vector<size_t>& of_one : places) {
      std::vector<int64_t> extents;
      for (const size_t place : of_one) extents.push_back(e[place]);
      variables.push_back(operands.random(Shape(std::span<const int64_t>(extents)),
                                          variables.size() + 1, low, high));
    }
    return variables;
  };
}

std::function<void()> Case::make(const Device& device, int64_t offset) const {
  Operands operands(device, dtype);
  operands.offset = offset;
  return kernel.call(operands, extents).run;
}

namespace {

/// Extents of a vector or more, rounded down to multiples of 64 bytes.
Extents rounded(const Case& c) {
  const int64_t lanes = 64 / size_of(c.dtype);
  Extents extents = c.extents;
  for (int64_t& extent : extents)
    if (extent > lanes) extent -= extent % lanes;
  return extents;
}

}  // namespace

Conditions conditions_of(const Case& c, int threads, bool cold) {
  return {.threads = threads, .whole = rounded(c) == c.extents, .warm = !cold};
}

Trials trials_of(const Case& c) {
  const bool is_whole = rounded(c) == c.extents;
  return [c, is_whole](const Conditions& conditions) -> std::optional<Trial> {
    if (!conditions.apart || conditions.whole < is_whole) return {};
    Case changed = c;
    if (conditions.whole) changed.extents = rounded(c);
    const Device device =
        Device::cpu(0, {.threads = conditions.threads, .bits = Bits::fast, .separate = true});
    if (!conditions.huge_pages) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    std::optional<Trial> trial;
    try {
      trial = {c.kernel.work(c.dtype, changed.extents), changed.make(device, !conditions.aligned)};
      trial->run();  // its operands get their pages
    } catch (const Error&) {
      trial.reset();
    }
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    return trial;
  };
}

Row add(Report& report, const Case& c) {
  try {
    return report.add(c.work, c.make(report.device()));
  } catch (const OutOfMemory&) {
    if (report.device().type() == Device::Type::cpu) throw;
    return report.add_unmeasured(c.work, "does not fit its memory");
  }
}

Sizes::Sizes(Device::Type type)
    : on_accelerator(type != Device::Type::cpu),
      tokens{on_accelerator ? 65536 : 8192, on_accelerator ? 1024 : 768},
      logits{on_accelerator ? 8192 : 1024, 50257},
      scores{on_accelerator ? 98304 : 12288, 1024},
      hidden((on_accelerator ? 32768 : 4096) * hidden_width),
      flat(int64_t{on_accelerator ? 256 : 32} << 20),
      parameters(on_accelerator ? 800'000'000 : 100'000'000) {}

namespace {

/// The cases of the ops at the extents that `extents_of` returns, first all in f32.
std::vector<Case> cases_of(const std::function<std::vector<Extents>(const Op&)>& extents_of) {
  std::vector<Case> cases;
  const auto add_cases = [&](const Op& op, DType dtype) {
    if (std::ranges::count(op.timed_dtypes, dtype) == 0) return;
    for (const Extents& extents : extents_of(op))
      for (const OpKernel& kernel : op.kernels)
        if (kernel.work) cases.push_back({kernel.work(dtype, extents), dtype, kernel, extents});
  };
  for (const OpFamily& family : every_op())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Op& op : family) add_cases(op, dtype);
  return cases;
}

}  // namespace

std::vector<Case> kernel_cases(const Sizes& sizes) {
  return cases_of(
      [&](const Op& op) { return op.timed ? op.timed(sizes) : std::vector<Extents>(); });
}

std::vector<Case> cases_of_shape(const std::string& wanted, const Extents& given) {
  std::vector<std::string> names;
  const auto extents_of = [&](const Op& op) -> std::vector<Extents> {
    const bool has_work = std::ranges::any_of(
        op.kernels, [](const OpKernel& kernel) { return kernel.work != nullptr; });
    if (has_work && std::ranges::count(names, op.name) == 0) names.push_back(op.name);
    if (op.name != wanted || !has_work) return {};
    Extents extents = op.timed ? op.timed(Sizes(Device::Type::cpu)).front() : op.tested.front();
    std::string example = extents_text(extents);
    std::ranges::replace(example, 'x', ',');
    double product = 1.0;
    for (const int64_t extent : given) product *= static_cast<double>(extent);
    if (given.empty() || given.size() > extents.size() || product > 0x1p40)
      raise<ConfigError>(
          "--shape {}: expected 1 to {} extents as in {}, with a product up to 2^40, got {}",
          wanted, extents.size(), example, given.size());
    std::ranges::copy(given, extents.begin());
    return {extents};
  };
  std::vector<Case> cases = cases_of(extents_of);
  if (cases.empty())
    raise<ConfigError>(
        "--shape: expected an op and its extents as in 'matmul:512,768,64', got '{}'; ops: {}{}",
        printable(wanted), join(names, "; "), did_you_mean(wanted, names));
  return cases;
}

std::vector<Case> kernel_cases(Device::Type type) { return kernel_cases(Sizes(type)); }

}  // namespace zg::bench
