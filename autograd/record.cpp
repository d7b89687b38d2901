#include "zerograd/autograd/tape.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <ostream>
#include <string>

#include "zerograd/autograd/collective.h"
#include "zerograd/autograd/ops/strided.h"
#include "zerograd/autograd/tape_state.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

// --- Var ---

Var::Var(Tensor value)
    : value_(std::move(value)), is_derivative_(value_ && value_.buffer()->is_derivative()) {}

Var::Var(const Var&) = default;
Var::Var(Var&&) noexcept = default;
Var& Var::operator=(const Var&) = default;
Var& Var::operator=(Var&&) noexcept = default;
Var::~Var() = default;

Tensor Var::value() const {
  if (parameter_) return tape_->source_of(*parameter_).value(*parameter_);
  if (view_) return view_->value();
  if (!value_) throw ShapeError("var: an absent Var has no value");
  return value_;
}

std::ostream& operator<<(std::ostream& out, const Var& x) {
  return x ? out << x.value() << (x.needs_gradient() ? ", needs a gradient" : "") : out << "absent";
}

Tensor Var::stored() const {
  return parameter_ ? tape_->source_of(*parameter_).stored(*parameter_) : value();
}

Shape Var::shape() const {
  if (view_) return view_->operand().layout.shape;
  return parameter_ ? parameter_->shape : value().shape();
}
DType Var::dtype() const {
  if (view_) return view_->operand().source.dtype();
  return parameter_ ? tape_->source_of(*parameter_).dtype(*parameter_) : value().dtype();
}
Device Var::device() const {
  if (view_) return view_->operand().source.device();
  return parameter_ ? tape_->device : value().device();
}

Tape Var::tape() const {
  if (!tape_ || tape_->has_ended)
    raise<TapeError>(
        "var: a layer looks for the tape of {}; expected a value of an open tape; try "
        "tape.constant(x), or tape.variable(x) if its gradient is wanted",
        !*this  ? "an absent Var"
        : tape_ ? "a value whose Tape is gone"
                : "a constant that was made without one, or of values of two tapes");
  return {tape_, /*is_handle=*/true};
}

// --- recording ---

TapeState::TapeState(const Device& device, std::vector<ParameterSource*> from, TapeMode mode,
                     TapeState* parent, ActivationStore* activations)
    : device(device),
      sources(std::move(from)),
      mode(mode),
      activations(activations),
      parent(parent),
      root(parent ? parent->root : *this) {}

void TapeState::require_usable(const char* op) const {
  if (backward_ran)
    raise<TapeError>(
        "{}: backward has already run on its tape and freed the records; make a new Tape for each "
        "micro-batch, and in a segment of checkpoint() use the tape that it gets",
        op);
  if (is_incomplete)
    raise<TapeError>("{}: an exception passed through an open unit of this tape; make a new Tape",
                     op);
}

bool TapeState::is_open(const Unit& unit) const {
  for (const TapeState* tape = this; tape; tape = tape->parent)
    for (size_t index : tape->open)
      if (tape->uses[index].unit == &unit) return true;
  return false;
}

size_t TapeState::source_index(const Unit& unit, std::string_view what) const {
  for (size_t i = 0; i < sources.size(); ++i)
    if (sources[i]->has(unit)) return i;
  raise<TapeError>(
      "{}: unit '{}' is used on a tape {}; expected a tape of the ParameterSource that has its "
      "parameters; try engine.tape(), values.tape(), or Tape(device, {{&first, &second}})",
      what, unit.name,
      sources.empty() ? "without a ParameterSource" : "whose ParameterSource has another store");
}

Var TapeState::make_var(Tensor value, int slot) {
  Var var(std::move(value));
  var.tape_ = shared_from_this();
  var.slot_ = slot;
  return var;
}

int TapeState::make_slot(const Tensor& value) {
  slots.push_back({.shape = value.shape(), .dtype = value.dtype()});
  return static_cast<int>(slots.size()) - 1;
}

Var TapeState::parameter(const Parameter& parameter) {
  require_usable("parameter");
  const ParameterSource& source = source_of(parameter);
  if (source.needs_open_unit(*parameter.unit) && !is_open(*parameter.unit))
    raise<NotResident>(
        "parameter: '{}' is used outside its unit; expected unit '{}' to be open; try "
        "Tape::Use use(tape, unit) around its use, or nn::Call call(*this, x) in a module",
        parameter.name, parameter.unit->name);
  Var var;
  var.tape_ = shared_from_this();
  var.parameter_ = &parameter;
  if (!recording() || !source.trains(parameter)) return var;
  const auto [place, is_new] =
      parameter_slots.try_emplace(&parameter, static_cast<int>(slots.size()));
  if (is_new)
    slots.push_back({.shape = parameter.shape,
                     .dtype = source.value(parameter).dtype(),
                     .parameter = &parameter});
  var.slot_ = place->second;
  return var;
}

std::pair<TapeState::UseRecord*, const Parameter*> TapeState::find_parameter(const Tensor& tensor) {
  for (size_t index : open) {
    UseRecord& use = uses[index];
    for (const Parameter* parameter : use.unit->parameters) {
      const Tensor whole = source_of(*parameter).value(*parameter);
      const int64_t offset = tensor.byte_offset() - whole.byte_offset();
      if (whole.buffer() == tensor.buffer() && offset >= 0 &&
          offset + tensor.bytes() <= whole.bytes())
        return {&use, parameter};
    }
  }
  return {};
}

TapeState::Saved TapeState::keep(const Tensor& tensor) {
  if (!tensor) return {};
  if (const auto [use, parameter] = find_parameter(tensor); parameter) {
    const ParameterSource& source = source_of(*parameter);
    const Tensor whole = source.value(*parameter), origin = source.origin(*parameter);
    use->reads = true;
    return {.version = origin.buffer()->version(),
            .parameter = parameter,
            .values = origin.buffer(),
            .byte_offset = tensor.byte_offset() - whole.byte_offset(),
            .shape = tensor.shape(),
            .dtype = tensor.dtype()};
  }
  const Gathered* made = find_gathered(tensor);
  if (!made) return keep_in_store(tensor);
  Saved saved = keep_in_store(made->slice);
  saved.ranks = made->ranks;
  saved.axis = made->axis;
  saved.shape = tensor.shape();
  return saved;
}

TapeState::Saved TapeState::keep_in_store(const Tensor& tensor) const {
  // The gradient of a parameter that an op computed in forward is not offloaded.
  if (activations && tensor.buffer()->purpose() != Purpose::gradient)
    return {.tensor = activations->keep(tensor, device.compute()), .stored = true};
  return {.tensor = tensor, .version = tensor.buffer()->version()};
}

const TapeState::Gathered* TapeState::find_gathered(const Tensor& tensor) {
  std::erase_if(gathered, [](const Gathered& made) { return made.whole.expired(); });
  for (const Gathered& made : gathered)
    if (made.whole.lock() == tensor.buffer() &&
        tensor.numel() == made.slice.numel() * made.ranks->size())
      return &made;
  return nullptr;
}

void TapeState::note_gathered(const Var& whole, const Gathered& gathered) {
  if (whole.slot_ >= 0) whole.tape_->gathered.push_back(gathered);
}

// Buffers of gradients are shared by several parameters: writes to the others do not matter.
void TapeState::check_unchanged(const Saved& saved, const char* op) const {
  if (saved.stored || !saved.tensor) return;
  const Buffer& buffer = *saved.tensor.buffer();
  if (buffer.version() != saved.version && buffer.purpose() != Purpose::gradient)
    raise<TapeError>(
        "{}: backward needs the tensor {} {} as it was in forward, but it was changed in place "
        "since "
        "(changes: {}); expected no change before backward; copy it, or change it after backward",
        op, saved.tensor.shape(), saved.tensor.dtype(), buffer.version() - saved.version);
}

Tensor TapeState::fetch(const Saved& saved, const char* op) const {
  if (saved.parameter) {
    const ParameterSource& source = source_of(*saved.parameter);
    const Tensor whole = source.value(*saved.parameter), origin = source.origin(*saved.parameter);
    if (saved.values.lock() == origin.buffer() && origin.buffer()->version() != saved.version)
      raise<TapeError>(
          "{}: backward needs parameter '{}' as it was in forward, but it was changed since; "
          "expected no step before backward",
          op, saved.parameter->name);
    return whole.alias(whole.byte_offset() + saved.byte_offset, saved.shape, saved.dtype);
  }
  check_unchanged(saved, op);
  const Tensor kept =
      saved.stored ? activations->fetch(saved.tensor, device.compute()) : saved.tensor;
  if (!saved.ranks) return kept;
  return zg::gathered("all_gather again", kept, saved.axis, *saved.ranks).view(saved.shape);
}

TapeState::Entry& TapeState::push(Kind kind, const char* op) {
  entries.push_back({.kind = kind,
                     .op = op,
                     .inputs = input_slots.size(),
                     .outputs = output_slots.size(),
                     .saved = saved_tensors.size(),
                     .numbers = numbers.size()});
  return entries.back();
}

std::vector<Var> TapeState::record(const char* op, std::span<const Var> inputs,
                                   std::span<const Tensor> outputs, std::span<const Tensor> saved,
                                   const void* data, size_t bytes, detail::BackwardThunk backward,
                                   detail::ComposedThunk composed) {
  Entry& entry = push(Kind::op, op);
  entry.backward = backward;
  entry.composed = composed;
  for (const Var& input : inputs) input_slots.push_back(input.slot_);
  for (const Tensor& tensor : saved) saved_tensors.push_back(keep(tensor));
  const size_t begin = numbers.size();
  numbers.resize(begin + (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  std::memcpy(numbers.data() + begin, data, bytes);
  std::vector<Var> vars;
  for (const Tensor& output : outputs) {
    const int slot = make_slot(output);
    output_slots.push_back(slot);
    vars.push_back(make_var(output, slot));
  }
  return vars;
}

std::vector<Var> detail::record(const char* op, std::span<const Var> inputs,
                                std::span<const Tensor> outputs, std::span<const Tensor> saved,
                                const void* numbers, size_t numbers_bytes, BackwardThunk backward,
                                ComposedThunk composed) {
  return TapeState::record_on_tape_of(op, inputs, outputs, saved, numbers, numbers_bytes, backward,
                                      composed);
}

const std::shared_ptr<TapeState>* TapeState::common(const std::shared_ptr<TapeState>& a,
                                                    const std::shared_ptr<TapeState>& b) {
  if (a->has_ended) return &b;
  if (b->has_ended) return &a;
  for (const TapeState* outer = a.get(); outer; outer = outer->parent)
    if (outer == b.get()) return &a;
  for (const TapeState* outer = b.get(); outer; outer = outer->parent)
    if (outer == a.get()) return &b;
  return nullptr;
}

std::vector<Var> TapeState::record_on_tape_of(const char* op, std::span<const Var> inputs,
                                              std::span<const Tensor> outputs,
                                              std::span<const Tensor> saved, const void* numbers,
                                              size_t numbers_bytes, detail::BackwardThunk backward,
                                              detail::ComposedThunk composed) {
  TapeState* tape = nullptr;
  bool needed = false, has_derivative = false, has_two = false;
  const std::shared_ptr<TapeState>* of_constants = nullptr;
  for (const Var& input : inputs) {
    has_derivative = has_derivative || input.is_derivative_;
    if (!input.tape_) continue;
    if (input.slot_ < 0 && !input.parameter_) {
      if (of_constants && *of_constants != input.tape_) {
        of_constants = common(*of_constants, input.tape_);
        has_two = has_two || !of_constants;
      } else if (!has_two) {
        of_constants = &input.tape_;
      }
      continue;
    }
    if (tape && tape != input.tape_.get())
      raise<TapeError>(
          "{}: its inputs belong to two tapes; expected one; detach() a value that only serves as "
          "a number; for gradients on both tapes pass it to variable() of this tape, and then "
          "gradient() of that variable to backward(outputs, gradients) of the other tape",
          op);
    tape = input.tape_.get();
    needed = needed || input.slot_ >= 0;
  }
  if (tape) {
    tape->require_usable(op);
    if (tape->paused > 0 && needed)
      throw TapeError(std::string(op) +
                      ": a recorded Var was captured by a checkpointed segment; expected it among "
                      "the segment's inputs; pass it to checkpoint()");
  }
  if (tape && needed && tape->recording()) {
    if (has_derivative)
      throw TapeError(std::string(op) +
                      ": one input was computed from a gradient that backward returned, which is a "
                      "constant; expected a value of forward; take grad(output, input, "
                      "{.create_graph = true}) if its derivative is wanted, or detach() it if it "
                      "serves as a number");
    return tape->record(op, inputs, outputs, saved, numbers, numbers_bytes, backward, composed);
  }
  std::vector<Var> constants;
  for (const Tensor& output : outputs) {
    constants.emplace_back(output);
    constants.back().is_derivative_ |= has_derivative;
    if (tape)
      constants.back().tape_ = tape->shared_from_this();
    else if (of_constants)
      constants.back().tape_ = *of_constants;
  }
  return constants;
}

void TapeState::collect_in_accumulator(const Var& output) {
  if (output.slot_ >= 0)
    output.tape_->slots[static_cast<size_t>(output.slot_)].in_accumulator = true;
}

Var detach(const Var& x) {
  if (!x) throw ShapeError("detach: x is absent; expected a tensor");
  Var constant = x.view_ ? x : Var(x.value());
  constant.slot_ = -1;
  constant.is_derivative_ = false;
  constant.tape_ = x.tape_;
  return constant;
}

Tensor early_gradient(const Var& input) {
  if (!input.needs_gradient()) return {};
  TapeState& tape = *input.tape_;
  const TapeState::Slot& slot = tape.slots[static_cast<size_t>(input.slot_)];
  if (slot.parameter) return tape.make_gradient(input.slot_);
  const PurposeScope purpose(tape.device, Purpose::activation);
  return Tensor::empty(slot.shape, accumulator(slot.dtype), tape.device);
}

// --- units ---

size_t TapeState::open_use(const Unit& unit) {
  require_usable("use");
  ParameterSource& source = source_of(unit, "use");
  uses.push_back({.unit = &unit});
  open.push_back(uses.size() - 1);
  try {
    source.acquire(unit, device.compute());
  } catch (...) {
    open.pop_back();
    uses.pop_back();
    throw;
  }
  if (mode == TapeMode::record && !parent) ++use_counts[&unit];
  if (recording()) push(Kind::use_begin, "use").index = uses.size() - 1;
  return uses.size() - 1;
}

void TapeState::close_use(size_t index, bool unwinding) noexcept {
  if (unwinding) {
    // An inference tape has no records that could be incomplete.
    if (mode == TapeMode::record) is_incomplete = root.is_incomplete = true;
  } else if (recording()) {
    try {
      push(Kind::use_end, "use").index = index;
    } catch (...) {  // no memory to record use_end: the tape is incomplete
      is_incomplete = root.is_incomplete = true;
    }
  }
  std::erase(open, index);
  source_of(*uses[index].unit).release(*uses[index].unit, device.compute());
}

Tape::Use::Use(const Tape& tape, const Unit& unit)
    : tape_(tape.state_),
      name_(tape.state_->device, unit.name),
      span_(tape.state_->device.compute(), {unit.name}, Trace::Kind::unit),
      exceptions_(std::uncaught_exceptions()),
      index_(tape.state_->open_use(unit)) {}

Tape::Use::~Use() { tape_->close_use(index_, std::uncaught_exceptions() > exceptions_); }

// --- the tape ---

Tape::Tape(const Device& device, ParameterSource* parameters, TapeMode mode,
           ActivationStore* activations)
    : Tape(device, std::vector<ParameterSource*>(parameters ? 1 : 0, parameters), mode,
           activations) {}

Tape::Tape(const Device& device, std::vector<ParameterSource*> sources, TapeMode mode,
           ActivationStore* activations) {
  for (ParameterSource* source : sources) {
    source->begin_tape(mode);
    if (!activations && mode == TapeMode::record) activations = source->activations();
  }
  state_ = std::make_shared<TapeState>(device, std::move(sources), mode, nullptr, activations);
}
Tape::~Tape() { end(); }
Tape::Tape(Tape&&) noexcept = default;
Tape& Tape::operator=(Tape&& other) noexcept {
  if (this == &other) return *this;
  end();
  state_ = std::move(other.state_);
  is_handle_ = other.is_handle_;
  return *this;
}

void Tape::end() {
  if (state_ && !is_handle_) state_->has_ended = true;
}

Var Tape::parameter(const Parameter& parameter) const { return state_->parameter(parameter); }

Var Tape::constant(Tensor value) const { return state_->make_var(std::move(value), /*slot=*/-1); }

bool Tape::is_open(const Unit& unit) const { return state_->is_open(unit); }

const void* Tape::find(const std::type_info& type) const {
  const Settings& all = state_->settings;
  for (auto place = all.rbegin(); place != all.rend(); ++place)
    if (place->first && *place->first == type) return place->second.get();
  return nullptr;
}

Tape::With::With(const Tape& tape, const std::type_info& type, std::shared_ptr<const void> settings)
    : tape_(tape.state_), count_(tape_->settings.size()) {
  tape_->settings.emplace_back(&type, std::move(settings));
}
Tape::With::~With() {
  Settings& all = tape_->settings;
  all[count_] = {};  // a later one may still be open
  while (!all.empty() && !all.back().first) all.pop_back();
}

Var Tape::variable(Tensor value) const {
  state_->require_usable("variable");
  if (!is_floating(value.dtype()))
    raise<DTypeError>("variable: expected a floating tensor, got {}", name_of(value.dtype()));
  if (!state_->recording()) return constant(std::move(value));
  const int slot = state_->make_slot(value);
  state_->slots[static_cast<size_t>(slot)].keep = true;
  Var leaf = state_->make_var(std::move(value), slot);
  leaf.is_derivative_ = false;
  return leaf;
}

Stream& Tape::stream() const { return state_->device.compute(); }
Device Tape::device() const { return state_->device; }
TapeMode Tape::mode() const { return state_->mode; }

bool Tape::reads(const ParameterSource& source) const {
  const auto& sources = state_->sources;
  return std::ranges::find(sources, &source) != sources.end();
}

}  // namespace zg
