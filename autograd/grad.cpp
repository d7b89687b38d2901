#include "zerograd/autograd/grad.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/tape_state.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// The beginnings of names of fused ops without a composed backward, and the ops to take.
constexpr std::pair<std::string_view, std::string_view> instead[] = {
    {"attention", "matmul(softmax(mul(matmul(q, transpose(k, -1, -2)), scale)), v)"},
    {"feed_forward", "linear(linear(x, fc_weight, fc_bias, activation), out_weight, out_bias)"},
    {"gated_feed_forward",
     "linear(gated(linear(x, gate_weight), linear(x, up_weight)), out_weight)"},
    {"projection_cross_entropy", "cross_entropy(linear(x, weight), targets)"},
    {"split_linears", "linear() on one tensor rank"},
    {"split_sum", "linear() on one tensor rank"},
    {"max_pool", "max() of windows, which slice() and stack() make"}};

std::string_view ops_instead_of(std::string_view op) {
  for (const auto& [fused, ops] : instead)
    if (op.starts_with(fused)) return ops;
  return "other ops, or for an op of your own a composed backward as the last argument of record()";
}

/// Sums x over the axes along which `shape` was broadcast to x's.
Var summed_to(const Var& x, const Shape& shape) {
  const Shape from = x.shape();
  if (from == shape) return x;
  const int missing = from.rank() - shape.rank();
  std::vector<int> axes;
  for (int i = 0; i < from.rank(); ++i)
    if (from[i] != (i < missing ? 1 : shape[i - missing])) axes.push_back(i);
  return reshape(axes.empty() ? x : sum(x, Axes(axes), /*keep_axes=*/true), shape);
}

}  // namespace

/// A recorded backward pass over a tape, whose entries stay.
struct GradientPass {
  TapeState& tape;
  std::vector<int> inputs;     // slots of grad()'s inputs
  std::vector<bool> reached;   // by slot: it depends on an input
  std::vector<Var> gradients;  // by slot

  GradientPass(TapeState& on, std::vector<int> slots) : tape(on), inputs(std::move(slots)) {
    reached.resize(tape.slots.size());
    for (const int slot : inputs) reached[static_cast<size_t>(slot)] = true;
    mark(0, tape.entries.size());
  }

  static const std::shared_ptr<TapeState>& tape_of(const Var& x) { return x.tape_; }
  static int slot_of(const Var& x) { return x.slot_; }
  static Tape handle(TapeState& state) { return {state.shared_from_this(), /*is_handle=*/true}; }

  /// A copy of an entry's part of a pool, which grows while ops are recorded.
  template <class T>
  std::vector<T> range(const std::vector<T>& pool, size_t TapeState::Entry::*begin,
                       size_t entry) const {
    const auto& entries = tape.entries;
    const size_t end = entry + 1 < entries.size() ? entries[entry + 1].*begin : pool.size();
    return {pool.data() + entries[entry].*begin, pool.data() + end};
  }
  bool needs(int slot) const { return slot >= 0 && reached[static_cast<size_t>(slot)]; }

  /// Finds the values of entries that depend on an input. A checkpointed segment may read
  /// parameters, which are not among the inputs of its entry.
  void mark(size_t begin, size_t end) {
    reached.resize(tape.slots.size());
    gradients.resize(tape.slots.size());
    const bool of_parameters = std::ranges::any_of(
        inputs, [&](int slot) { return tape.slots[static_cast<size_t>(slot)].parameter; });
    for (size_t i = begin; i < end; ++i) {
      const bool reads = of_parameters && tape.entries[i].kind == TapeState::Kind::checkpoint;
      if (reads || std::ranges::any_of(range(tape.input_slots, &TapeState::Entry::inputs, i),
                                       [&](int slot) { return needs(slot); }))
        for (const int slot : range(tape.output_slots, &TapeState::Entry::outputs, i))
          reached[static_cast<size_t>(slot)] = true;
    }
  }

  void add(int slot, Var gradient) {
    if (!needs(slot) || !gradient) return;
    const Shape shape = tape.slots[static_cast<size_t>(slot)].shape;
    const DType dtype = tape.slots[static_cast<size_t>(slot)].dtype;
    gradient = cast(summed_to(gradient, shape), dtype);
    Var& sum = gradients[static_cast<size_t>(slot)];
    sum = sum ? zg::add(sum, gradient) : gradient;
  }

  /// The value of a slot, whose tensor the op has saved.
  Var value(int slot, const ComposedPass& pass, int index) {
    const TapeState::Slot of = slot < 0 ? TapeState::Slot() : tape.slots[static_cast<size_t>(slot)];
    if (of.parameter) return tape.parameter(*of.parameter);
    const Tensor values = pass.saved(index);
    if (!values) return {};
    const bool is_whole = slot >= 0 && values.numel() == of.shape.numel();
    return tape.make_var(is_whole ? values.view(of.shape) : values, slot);
  }

  /// Passes the gradients through entries, from the last to the first. Units that they read are
  /// open meanwhile.
  void visit(size_t begin, size_t end) {
    std::vector<std::unique_ptr<Tape::Use>> open;
    for (size_t i = end; i-- > begin;) {
      const TapeState::Kind kind = tape.entries[i].kind;
      if (kind == TapeState::Kind::use_end) {
        const TapeState::UseRecord& use = tape.uses[tape.entries[i].index];
        open.push_back(use.reads ? std::make_unique<Tape::Use>(handle(tape), *use.unit) : nullptr);
      } else if (kind == TapeState::Kind::use_begin) {
        if (!open.empty()) open.pop_back();
      } else {
        visit_op(i);
      }
    }
  }

  void visit_op(size_t entry) {
    const ComposedPass pass(*this, entry);
    const auto gradient = [&](int slot) -> Var& { return gradients[static_cast<size_t>(slot)]; };
    if (std::ranges::none_of(pass.outputs_, [&](int slot) { return bool(gradient(slot)); })) return;
    const TapeState::Entry op = tape.entries[entry];  // recording moves the entries
    if (op.kind == TapeState::Kind::checkpoint)
      run_segment(pass, op);
    else if (op.composed)
      op.composed(range(tape.numbers, &TapeState::Entry::numbers, entry).data(), pass);
    else
      raise<Unsupported>(
          "grad: {} has no second derivative, which jvp() needs, too; expected ops that have one; "
          "try {}",
          op.op, ops_instead_of(op.op));
    for (const int slot : pass.outputs_)
      if (std::ranges::count(inputs, slot) == 0) gradient(slot) = {};
  }

  /// Records the segment on the tape, where it stays.
  void run_segment(const ComposedPass& pass, const TapeState::Entry& entry) {
    const Segment segment = tape.segments[entry.index];
    const Settings own = std::exchange(tape.settings, segment.settings);
    std::vector<Var> values;
    for (size_t i = 0; i < pass.inputs_.size(); ++i)
      values.push_back(pass.input(static_cast<int>(i), static_cast<int>(i)));
    Tape on = handle(tape);
    const Var y = segment.run(on, values);
    tape.settings = own;
    pass.differentiate(y);
  }
};

// --- ComposedPass ---

ComposedPass::ComposedPass(GradientPass& pass, size_t entry)
    : pass_(pass),
      inputs_(pass.range(pass.tape.input_slots, &TapeState::Entry::inputs, entry)),
      outputs_(pass.range(pass.tape.output_slots, &TapeState::Entry::outputs, entry)),
      entry_(entry),
      begin_(pass.tape.entries.size()) {}

Var ComposedPass::gradient_of_output(int output) const {
  return pass_.gradients[static_cast<size_t>(outputs_.at(static_cast<size_t>(output)))];
}

Tensor ComposedPass::saved(int index) const {
  const TapeState::Entry& entry = pass_.tape.entries[entry_];
  return pass_.tape.fetch(pass_.tape.saved_tensors.at(entry.saved + static_cast<size_t>(index)),
                          entry.op);
}

Var ComposedPass::input(int input, int index) const {
  return pass_.value(inputs_.at(static_cast<size_t>(input)), *this, index);
}

Var ComposedPass::output(int output, int index) const {
  return pass_.value(outputs_.at(static_cast<size_t>(output)), *this, index);
}

bool ComposedPass::needs(int input) const {
  return pass_.needs(inputs_.at(static_cast<size_t>(input)));
}

Shape ComposedPass::shape_of(int input) const {
  return pass_.tape.slots.at(static_cast<size_t>(inputs_.at(static_cast<size_t>(input)))).shape;
}

void ComposedPass::accumulate(int input, const Var& gradient) const {
  pass_.add(inputs_.at(static_cast<size_t>(input)), gradient);
}

void ComposedPass::differentiate(const Var& y, int output) const {
  const Var dy = gradient_of_output(output);
  const size_t end = pass_.tape.entries.size();
  pass_.mark(begin_, end);
  pass_.add(GradientPass::slot_of(y), dy);
  pass_.visit(begin_, end);
}

// --- grad ---

namespace {

/// The tape of the inputs, which it checks. Outputs may be constants.
TapeState& tape_of(std::span<const Var> outputs, std::span<const Var> inputs) {
  if (inputs.empty()) throw TapeError("grad: no inputs; expected at least one");
  const auto& tape = GradientPass::tape_of(inputs[0]);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].needs_gradient() || GradientPass::tape_of(inputs[i]) != tape)
      raise<TapeError>(
          "grad: input {} needs no gradient{}; expected a variable(), a parameter that is trained, "
          "or a value computed from one",
          i, i > 0 ? " on the tape of input 0" : "");
  for (const Var& output : outputs)
    if (output.needs_gradient() && GradientPass::tape_of(output) != tape)
      throw TapeError("grad: an output belongs to another tape than the inputs");
  tape->require_usable("grad");
  return *tape;
}

/// The gradient of each output: its cotangent, or 1.
std::vector<Var> seeds_of(std::span<const Var> outputs, const std::vector<Var>& cotangents) {
  if (!cotangents.empty() && cotangents.size() != outputs.size())
    raise<ShapeError>("grad: {} cotangents for {} outputs; expected one for each",
                      cotangents.size(), outputs.size());
  std::vector<Var> seeds = cotangents;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Shape shape = outputs[i].shape();
    if (cotangents.empty()) {
      if (shape.numel() != 1)
        raise<ShapeError>(
            "grad: output {} has shape {}; expected one element; try sum(), or give a cotangent", i,
            shape);
      seeds.emplace_back(Tensor::full(shape, 1.0, outputs[i].dtype(), outputs[i].device()));
    } else if (seeds[i].shape() != shape || seeds[i].dtype() != outputs[i].dtype()) {
      raise<ShapeError>("grad: cotangent {} is {} {}; expected {} {} like the output", i,
                        seeds[i].dtype(), seeds[i].shape(), outputs[i].dtype(), shape);
    } else if (!seeds[i].needs_gradient()) {
      seeds[i] = detach(seeds[i]);  // a vector that another backward returned serves as numbers
    }
  }
  return seeds;
}

Var zeros_like(const Var& x) { return Tensor::zeros(x.shape(), x.dtype(), x.device()); }

/// By the ops' own backward, which frees the records.
void run_backward(TapeState& tape, GradientPass& pass, std::span<const Var> outputs,
                  std::span<const Var> seeds) {
  tape.require_closed("grad");
  for (int& slot : tape.input_slots)
    if (!pass.needs(slot)) slot = -1;
  for (const int slot : pass.inputs) tape.slots[static_cast<size_t>(slot)].keep = true;
  tape.is_for_grad = true;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (const int slot = GradientPass::slot_of(outputs[i]); pass.needs(slot))
      tape.accumulate(slot, seeds[i].value(), "grad");
  tape.visit_entries();
  for (const int index : pass.inputs) {
    const TapeState::Slot& slot = tape.slots[static_cast<size_t>(index)];
    Tensor found = slot.parameter ? tape.leaves[slot.parameter] : slot.gradient;
    if (!found) continue;
    if (tape.leaves.erase(slot.parameter) > 0)  // it may be in memory of the ParameterSource
      found = TapeState::own_copy(std::move(found), tape.device.compute());
    found.buffer()->note_derivative();
    pass.gradients[static_cast<size_t>(index)] = found;
  }
  tape.leaves.clear();
}

std::vector<Var> variables_of(std::span<const Var> inputs) {
  const Tape tape = inputs.empty() ? Var().tape() : inputs[0].tape();
  std::vector<Var> variables;
  for (const Var& input : inputs)
    variables.push_back(input.needs_gradient() ? input : tape.variable(input.value()));
  return variables;
}

/// grad() of outputs that may all be constants.
std::vector<Var> gradients_of(std::span<const Var> outputs, std::span<const Var> inputs,
                              const GradOptions& options) {
  TapeState& tape = tape_of(outputs, inputs);
  const std::vector<Var> seeds = seeds_of(outputs, options.cotangents);
  std::vector<int> slots;
  for (const Var& input : inputs) slots.push_back(GradientPass::slot_of(input));
  GradientPass pass(tape, std::move(slots));
  if (options.create_graph) {
    const size_t end = tape.entries.size();
    for (size_t i = 0; i < outputs.size(); ++i)
      pass.add(GradientPass::slot_of(outputs[i]), seeds[i]);
    pass.visit(0, end);
  } else {
    run_backward(tape, pass, outputs, seeds);
  }
  std::vector<Var> gradients;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Var& found = pass.gradients[static_cast<size_t>(pass.inputs[i])];
    gradients.push_back(found ? found : zeros_like(inputs[i]));
  }
  return gradients;
}

}  // namespace

std::vector<Var> grad(std::span<const Var> outputs, std::span<const Var> inputs,
                      const GradOptions& options) {
  if (std::ranges::none_of(outputs, [](const Var& y) { return y.needs_gradient(); }))
    throw TapeError(
        "grad: the outputs are constants; expected values computed from a variable or a parameter "
        "on a recording tape, outside of the segments of checkpoint()");
  return gradients_of(outputs, inputs, options);
}

Var grad(const Var& output, const Var& input, const GradOptions& options) {
  return grad({&output, 1}, {&input, 1}, options)[0];
}

VectorJacobian vjp(const FunctionOfVars& f, std::span<const Var> inputs, const Var& cotangent) {
  const std::vector<Var> variables = variables_of(inputs);
  const Var y = f(variables);
  return {y, gradients_of({&y, 1}, variables, {.create_graph = true, .cotangents = {cotangent}})};
}

JacobianVector jvp(const FunctionOfVars& f, std::span<const Var> inputs,
                   std::span<const Tensor> tangents) {
  const std::vector<Var> variables = variables_of(inputs);
  const Var y = f(variables), u = variables[0].tape().variable(zeros_like(y).value());
  const std::vector<Var> rows =
      gradients_of({&y, 1}, variables, {.create_graph = true, .cotangents = {u}});
  const GradOptions along{.create_graph = true, .cotangents = {tangents.begin(), tangents.end()}};
  return {y, gradients_of(rows, {&u, 1}, along)[0]};
}

std::vector<Var> hvp(const Var& loss, std::span<const Var> inputs,
                     std::span<const Tensor> vectors) {
  const std::vector<Var> slopes = grad({&loss, 1}, inputs, {.create_graph = true});
  return gradients_of(slopes, inputs, {.cotangents = {vectors.begin(), vectors.end()}});
}

}  // namespace zg
