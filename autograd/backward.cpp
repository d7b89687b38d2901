#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "zerograd/autograd/tape_state.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

// --- BackwardPass ---

const Tensor& BackwardPass::gradient_of_output(int output) const {
  return tape_->output_gradients.at(static_cast<size_t>(output));
}

Tensor BackwardPass::saved(int index) const {
  const TapeState::Entry& entry = tape_->entries[entry_];
  return tape_->fetch(tape_->saved_tensors.at(entry.saved + static_cast<size_t>(index)), entry.op);
}

int BackwardPass::slot_of(int input) const {
  return tape_->input_slots.at(tape_->entries[entry_].inputs + static_cast<size_t>(input));
}

bool BackwardPass::needs(int input) const { return slot_of(input) >= 0; }

Tensor BackwardPass::make_gradient(int input) const { return tape_->make_gradient(slot_of(input)); }

void BackwardPass::accumulate(int input, Tensor gradient) const {
  if (const int slot = slot_of(input); slot >= 0)
    tape_->accumulate(slot, std::move(gradient), tape_->entries[entry_].op);
}

Tensor BackwardPass::take_gradient(int input, DType dtype) const {
  const int index = slot_of(input);
  if (index < 0) return {};
  TapeState::Slot& slot = tape_->slots[static_cast<size_t>(index)];
  if (slot.parameter || !slot.gradient || slot.gradient.dtype() != dtype) return {};
  return std::exchange(slot.gradient, Tensor());
}

Tensor BackwardPass::begun_gradient(int input) const {
  const int index = slot_of(input);
  if (index < 0) return {};
  const auto& leaves = tape_->root.leaves;
  const auto leaf = leaves.find(tape_->slots[static_cast<size_t>(index)].parameter);
  const bool is_own = leaf != leaves.end() && leaf->second.buffer().use_count() == 1;
  return is_own ? leaf->second : Tensor();
}

Stream& BackwardPass::stream() const { return tape_->device.compute(); }
Device BackwardPass::device() const { return tape_->device; }

// --- collecting gradients ---

Tensor TapeState::own_copy(Tensor tensor, Stream& stream) {
  if (tensor.buffer().use_count() == 1) return tensor;
  const Tensor own = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device());
  copy(tensor, own, stream);
  return own;
}

void TapeState::add_to(Tensor& sum, const Tensor& addend, Stream& stream) {
  sum = own_copy(std::move(sum), stream);
  kernels::axpby({.x = addend, .y = sum, .a = 1.0, .b = 1.0}, stream);
}

Tensor TapeState::make_gradient(int index) const {
  const Slot& slot = slots.at(static_cast<size_t>(index));
  if (slot.parameter && !root.is_for_grad)
    if (Tensor place = source_of(*slot.parameter).gradient_place(*slot.parameter)) return place;
  PurposeScope purpose(device, slot.parameter ? Purpose::gradient : Purpose::activation);
  std::optional<NameScope> name;
  if (slot.parameter) name.emplace(device, slot.parameter->name + " gradient");
  return Tensor::empty(slot.shape, slot.gradient_dtype(), device);
}

void TapeState::accumulate(int index, Tensor gradient, const char* op) {
  Slot& slot = slots[static_cast<size_t>(index)];
  if (gradient.shape() != slot.shape)
    raise<ShapeError>("{}: backward gave a gradient of shape {}; expected the input's {}", op,
                      gradient.shape(), slot.shape);
  const DType wanted = slot.gradient_dtype();
  if (gradient.dtype() != slot.dtype && gradient.dtype() != accumulator(slot.dtype))
    raise<DTypeError>("{}: backward gave a gradient of {}; expected {}", op, gradient.dtype(),
                      wanted);
  Stream& stream = device.compute();
  PurposeScope purpose(device, slot.parameter ? Purpose::gradient : Purpose::activation);
  Tensor& sum = slot.parameter ? root.leaves[slot.parameter] : slot.gradient;
  if (sum) return add_to(sum, gradient, stream);
  if (gradient.dtype() != wanted) {
    const Tensor narrow = std::exchange(gradient, make_gradient(index));
    kernels::cast({.x = narrow, .y = gradient}, stream);
  }
  sum = std::move(gradient);
}

void TapeState::reduce_gradients(const Unit& unit) {
  if (is_for_grad) return;
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : unit.parameters) {
    const auto leaf = leaves.find(parameter);
    gradients.push_back(leaf == leaves.end() ? Tensor() : std::move(leaf->second));
    if (leaf != leaves.end()) leaves.erase(leaf);
  }
  source_of(unit).reduce(unit, gradients, device.compute());
}

// --- collectives beside the gradients of weights ---

void TapeState::note_start(const Var& output, Start start) {
  if (output.slot_ >= 0) output.tape_->entries.back().start = start;
}

void TapeState::start_collective(const BackwardPass& pass, int input) {
  TapeState& tape = *pass.tape_;
  const int slot = pass.slot_of(input);
  if (slot < 0 || pass.entry_ == 0) return;
  const Entry& before = tape.entries[pass.entry_ - 1];
  const auto inputs = std::span(tape.input_slots).subspan(tape.entries[pass.entry_].inputs);
  if (!before.start || tape.output_slots[before.outputs] != slot ||
      std::ranges::count(inputs, slot) != 1)
    return;
  Slot& collected = tape.slots[static_cast<size_t>(slot)];
  if (collected.keep) return;  // grad() returns this rank's own gradient; the sum overwrites it
  const Tensor gradient = std::exchange(collected.gradient, Tensor());  // unshared, as in backward
  tape.started = before.start(tape.numbers.data() + before.numbers, gradient);
  collected.gradient = gradient;
}

Tensor TapeState::finish_collective(const BackwardPass& pass) {
  TapeState& tape = *pass.tape_;
  const Entry& entry = tape.entries[pass.entry_];
  std::function<Tensor()> finish = std::exchange(tape.started, nullptr);
  if (!finish) finish = entry.start(tape.numbers.data() + entry.numbers, pass.gradient_of_output());
  return finish();
}

// --- running the tape in reverse ---

// Backward reaches use_end before use_begin.
void TapeState::record_span(const UseRecord& use) const {
  Trace* trace = device.trace();
  if (!trace || use.begin_ns == 0) return;
  trace->span({.rank = device.trace_rank(),
               .kind = Trace::Kind::unit,
               .name = use.unit->name,
               .begin_ns = use.begin_ns,
               .end_ns = trace->now_ns()});
}

void TapeState::visit_entry(const Entry& entry, size_t entry_index) {
  switch (entry.kind) {
    case Kind::use_end: {
      UseRecord& use = uses[entry.index];
      open.push_back(entry.index);
      if (const Trace* trace = device.trace()) use.begin_ns = trace->now_ns();
      if (!use.reads) return;
      source_of(*use.unit).acquire(*use.unit, device.compute());
      use.held = true;
      return;
    }
    case Kind::use_begin: {
      UseRecord& use = uses[entry.index];
      if (--root.use_counts[use.unit] == 0) root.reduce_gradients(*use.unit);
      open.pop_back();
      if (use.held) source_of(*use.unit).release(*use.unit, device.compute());
      if (use.reads && --root.reading[use.unit] == 0 && !root.is_for_grad)
        source_of(*use.unit).done_reading(*use.unit);
      use.held = false;
      record_span(use);
      return;
    }
    case Kind::op:
    case Kind::checkpoint:
      break;
  }
  bool reached = false;
  output_gradients.clear();
  for (size_t i = entry.outputs; i < output_slots.size(); ++i) {
    Slot& slot = slots[static_cast<size_t>(output_slots[i])];
    reached = reached || slot.gradient;
    output_gradients.push_back(slot.gradient);
    if (!slot.keep) slot.gradient = {};
  }
  if (!reached) return;
  // An input of grad() keeps its gradient, but the op that made it may have nothing to pass on.
  const auto inputs = std::span(input_slots).subspan(entry.inputs);
  if (entry.kind == Kind::op && std::ranges::all_of(inputs, [](int slot) { return slot < 0; }))
    return;
  if (entry.kind == Kind::checkpoint) {
    TraceSpan span(device.compute(), "checkpoint", Trace::Kind::op);
    run_segment(entry);
  } else {
    BackwardPass pass;
    pass.tape_ = this;
    pass.entry_ = entry_index;
    TraceSpan span(device.compute(), entry.op, Trace::Kind::op);
    const bool names_unit = !open.empty() && device.trace() && device.trace()->is_watched();
    NameScope name(device, (names_unit ? uses[open.back()].unit->name + " " : "") + entry.op);
    entry.backward(numbers.data() + entry.numbers, pass);
  }
}

void TapeState::count_reading() {
  for (const UseRecord& use : uses)
    if (use.reads) ++root.reading[use.unit];
  // A segment reads units that this tape does not know to be read.
  if (parent || is_for_grad || !segments.empty()) return;
  for (const auto& [unit, count] : use_counts)
    if (!reading.contains(unit)) source_of(*unit).done_reading(*unit);
}

void TapeState::visit_entries() {
  backward_ran = true;
  gathered.clear();
  count_reading();
  try {
    while (!entries.empty()) {
      const Entry entry = entries.back();
      visit_entry(entry, entries.size() - 1);
      output_gradients.clear();
      entries.pop_back();
      input_slots.resize(entry.inputs);
      output_slots.resize(entry.outputs);
      saved_tensors.resize(entry.saved);
      numbers.resize(entry.numbers);
      if (entry.kind == Kind::checkpoint) segments.pop_back();
    }
  } catch (...) {
    root.is_incomplete = true;
    for (UseRecord& use : uses)
      if (use.held) source_of(*use.unit).release(*use.unit, device.compute());
    throw;
  }
  for (Slot& slot : slots)
    if (!slot.keep) slot.gradient = {};
  if (parent || is_for_grad) return;
  // Units without any gradient, and units that were read without a Tape::Use, are reported last, in
  // a fixed order, so that all ranks report a shared unit at the same point.
  std::map<std::pair<size_t, int>, const Unit*> left;
  const auto add = [&](const Unit& unit) {
    left[{source_index(unit, "backward"), -unit.index}] = &unit;
  };
  for (const auto& [unit, count] : use_counts)
    if (count > 0) add(*unit);
  for (const auto& [parameter, gradient] : leaves) add(*parameter->unit);
  for (const auto& [place, unit] : left) reduce_gradients(*unit);
  use_counts.clear();
  reading.clear();
  for (ParameterSource* source : sources) source->end_backward();
}

void TapeState::require_closed(const char* op) const {
  if (!open.empty())
    raise<TapeError>("{}: unit '{}' is still open; end the scope of its Tape::Use first", op,
                     uses[open.back()].unit->name);
}

void Tape::backward(const Var& loss, double scale) {
  if (loss.shape().numel() != 1)
    raise<ShapeError>(
        "backward: expected a loss of one element, got {}; reduce it with sum() or mean(), or pass "
        "gradients of the outputs",
        loss.shape());
  const Tensor seed = Tensor::full(loss.shape(), scale, loss.dtype(), state_->device);
  backward(std::span<const Var>(&loss, 1), std::span<const Tensor>(&seed, 1));
}

void Tape::backward(std::span<const Var> outputs, std::span<const Tensor> gradients) {
  state_->require_usable("backward");
  if (state_->mode == TapeMode::inference)
    throw TapeError("backward: an inference tape records nothing; use a recording tape");
  state_->require_closed("backward");
  if (outputs.size() != gradients.size())
    raise<ShapeError>("backward: expected a gradient per output, got {} for {}", gradients.size(),
                      outputs.size());
  for (const Var& output : outputs) {
    if (output.tape_ != state_)
      throw TapeError(
          output.tape_
              ? "backward: the loss belongs to another tape; call backward on that one, and "
                "pass gradient() of a variable() made of this tape's value to "
                "backward(outputs, gradients)"
              : "backward: the loss is a constant; expected a value computed "
                "from a parameter or a variable of this tape");
    if (output.slot_ < 0)
      throw TapeError("backward: the loss depends on no parameter and no variable");
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    state_->accumulate(outputs[i].slot_, gradients[i], "backward");
  state_->visit_entries();
}

Tensor Tape::gradient(const Var& variable) const {
  if (variable.tape_ != state_)
    throw TapeError("gradient: the Var is not on this tape; ask the tape that made it");
  if (variable.slot_ < 0 || !state_->slots[static_cast<size_t>(variable.slot_)].keep)
    throw TapeError(
        "gradient: backward keeps only the gradients of variables; make the input with "
        "tape.variable()");
  if (!state_->backward_ran) throw TapeError("gradient: backward has not run on this tape yet");
  const Tensor& gradient = state_->slots[static_cast<size_t>(variable.slot_)].gradient;
  if (gradient) gradient.buffer()->note_derivative();
  return gradient;
}

// --- Checkpointed segments ---

namespace {

struct Pause {
  explicit Pause(TapeState& tape) : tape(tape) { ++tape.paused; }
  ~Pause() { --tape.paused; }
  TapeState& tape;
};

}  // namespace

Var checkpoint(Tape& tape, std::span<const Var> inputs,
               std::function<Var(Tape&, std::span<const Var>)> segment) {
  TapeState& state = *tape.state_;
  state.require_usable("checkpoint");
  if (!state.recording()) return segment(tape, inputs);
  std::vector<Var> constants;
  for (const Var& input : inputs) {
    if (input.slot_ >= 0 && input.tape_ != tape.state_)
      throw TapeError("checkpoint: an input belongs to another tape; detach() it");
    constants.push_back(input ? tape.constant(input.value()) : Var());
  }
  Tensor output;
  {
    Pause pause(state);
    const Var result = segment(tape, constants);
    if (result.slot_ >= 0 && !result.parameter_)
      throw TapeError(
          "checkpoint: the segment returns a recorded Var that it captured; expected a value of "
          "the "
          "segment's inputs; pass the Var to checkpoint()");
    output = result.value();
  }
  TapeState::Entry& entry = state.push(TapeState::Kind::checkpoint, "checkpoint");
  entry.index = state.segments.size();
  for (size_t i = 0; i < inputs.size(); ++i) {
    state.input_slots.push_back(inputs[i].slot_);
    state.saved_tensors.push_back(constants[i] ? state.keep(constants[i].value())
                                               : TapeState::Saved{});
  }
  // The segment may read every unit that is open around it.
  for (size_t index : state.open) state.uses[index].reads = true;
  state.segments.push_back({std::move(segment), state.settings});
  const int slot = state.make_slot(output);
  state.output_slots.push_back(slot);
  return state.make_var(std::move(output), slot);
}

void TapeState::run_segment(const Entry& entry) {
  const Tensor gradient = std::move(output_gradients[0]);
  output_gradients.clear();
  Tape tape(std::make_shared<TapeState>(device, sources, TapeMode::record, this),
            /*is_handle=*/false);
  TapeState& state = *tape.state_;
  state.settings = segments.back().settings;
  BackwardPass pass;
  pass.tape_ = this;
  pass.entry_ = entries.size() - 1;
  std::vector<Var> inputs;
  for (size_t i = 0; i < input_slots.size() - entry.inputs; ++i) {
    const Tensor value = pass.saved(static_cast<int>(i));
    const bool differentiable = pass.needs(static_cast<int>(i));
    inputs.push_back(!value ? Var() : differentiable ? tape.variable(value) : tape.constant(value));
  }
  const Var output = segments.back().run(tape, inputs);
  if (output.slot_ < 0) return;  // a constant: it gets no gradient
  state.accumulate(output.slot_, gradient, "checkpoint");
  state.visit_entries();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].slot_ < 0) continue;
    Tensor& collected = state.slots[static_cast<size_t>(inputs[i].slot_)].gradient;
    if (collected) pass.accumulate(static_cast<int>(i), std::move(collected));
  }
}

}  // namespace zg
