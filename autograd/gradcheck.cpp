#include "zerograd/autograd/gradcheck.h"

#include <cmath>
#include <sstream>

#include "zerograd/autograd/grad.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

using Function = std::function<Var(Tape&, std::span<const Var>)>;

/// sum(output * weights): the weights in [-1, 1) depend only on the element's index.
Var weighted_sum(const Function& function, Tape& tape, std::span<const Var> inputs) {
  const Var output = function(tape, inputs);
  if (output.dtype() != DType::f64)
    raise<DTypeError>("gradcheck: the function's output holds {}; expected f64", output.dtype());
  constexpr uint64_t key = hash_name("gradcheck");
  std::vector<double> weights(static_cast<size_t>(output.shape().numel()));
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = 2.0 * uniform(Philox::block({static_cast<uint32_t>(i), 0, 0, 0}, key)[0]) - 1.0;
  const Var fixed(Tensor::from(weights, output.shape(), tape.device()));
  return sum(mul(output, fixed));
}

std::vector<Var> variables(Tape& tape, const std::vector<Tensor>& inputs) {
  std::vector<Var> vars;
  vars.reserve(inputs.size());
  for (const Tensor& input : inputs) vars.push_back(tape.variable(input));
  return vars;
}

/// The sum of the gradients of a function, times fixed weights.
Var weighted_gradients(const Function& function, Tape& tape, std::span<const Var> inputs) {
  const Var result = weighted_sum(function, tape, inputs);
  if (!result.needs_gradient()) return result;
  Var total;
  for (const Var& slope : grad({&result, 1}, inputs, {.create_graph = true})) {
    const Var part = weighted_sum([&](Tape&, auto) { return slope; }, tape, inputs);
    total = total ? add(total, part) : part;
  }
  return total;
}

double value_at(const Function& function, const std::vector<Tensor>& inputs, TapeMode mode) {
  Tape tape(inputs[0].device(), nullptr, mode);
  return weighted_sum(function, tape, variables(tape, inputs)).value().item();
}

std::vector<std::vector<double>> analytic_gradients(const Function& function,
                                                    const std::vector<Tensor>& inputs) {
  Tape tape(inputs[0].device());
  const std::vector<Var> vars = variables(tape, inputs);
  const Var result = weighted_sum(function, tape, vars);
  if (result.needs_gradient()) tape.backward(result);
  std::vector<std::vector<double>> gradients;
  for (size_t i = 0; i < vars.size(); ++i) {
    const Tensor gradient = result.needs_gradient() ? tape.gradient(vars[i]) : Tensor();
    gradients.push_back(gradient ? gradient.to_doubles()
                                 : std::vector<double>(static_cast<size_t>(inputs[i].numel())));
  }
  return gradients;
}

void check_inputs(const std::vector<Tensor>& inputs) {
  if (inputs.empty()) throw ShapeError("gradcheck: no inputs; expected at least one tensor");
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].dtype() != DType::f64 || inputs[i].device().type() != Device::Type::cpu)
      raise<DTypeError>("gradcheck: input {} holds {} on {}; expected f64 on a cpu device", i,
                        inputs[i].dtype(), inputs[i].device());
}

/// The inputs, with `by` added to one element of a copy of input `input`.
std::vector<Tensor> moved(const std::vector<Tensor>& inputs, size_t input, size_t element,
                          double by) {
  std::vector<double> values = inputs[input].to_doubles();
  values[element] += by;
  std::vector<Tensor> result = inputs;
  result[input] = Tensor::from(values, inputs[input].shape(), inputs[input].device());
  return result;
}

}  // namespace

GradcheckResult gradcheck(const Function& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  check_inputs(inputs);
  const Function slope = [&](Tape& tape, std::span<const Var> in) {
    return weighted_gradients(function, tape, in);
  };
  const Function& checked = options.order > 1 ? slope : function;
  const TapeMode mode = options.order > 1 ? TapeMode::record : TapeMode::inference;
  const std::vector<std::vector<double>> analytic = analytic_gradients(checked, inputs);
  GradcheckResult result{.ok = true};
  for (size_t input = 0; input < inputs.size(); ++input) {
    for (size_t element = 0; element < analytic[input].size(); ++element) {
      const double up = value_at(checked, moved(inputs, input, element, options.step), mode);
      const double down = value_at(checked, moved(inputs, input, element, -options.step), mode);
      const double numeric = (up - down) / (2.0 * options.step);
      const double error =
          std::fabs(analytic[input][element] - numeric) / std::fmax(1.0, std::fabs(numeric));
      const bool good = error <= options.tolerance;  // false for NaN
      if (good && error <= result.worst) continue;
      if (!good && !result.ok && error <= result.worst) continue;
      result.ok = result.ok && good;
      result.worst = error;
      std::ostringstream report;
      report << "input " << input << ", element " << element << ": analytic "
             << analytic[input][element] << ", numeric " << numeric << ", error " << error;
      result.report = report.str();
    }
  }
  return result;
}

}  // namespace zg
