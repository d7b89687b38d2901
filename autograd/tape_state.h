#pragma once

#include <unordered_map>

#include "zerograd/autograd/tape.h"

namespace zg {

class Communicator;
/// The values of Tape::With, the innermost last.
using Settings = std::vector<std::pair<const std::type_info*, std::shared_ptr<const void>>>;

struct Segment {
  std::function<Var(Tape&, std::span<const Var>)> run;
  Settings settings;
};

/// The state of a tape. Each entry refers to ranges in shared pools, so recording an op usually
/// allocates nothing, and backward frees by truncating the pools.
struct TapeState : std::enable_shared_from_this<TapeState> {
  enum class Kind : uint8_t { op, use_begin, use_end, checkpoint };
  /// Starts the collective of an op's backward with the gradient of its output. The result waits
  /// for the collective and returns the gradient of the op's input.
  using Start = std::function<Tensor()> (*)(const void* numbers, const Tensor& gradient);

  struct Entry {
    Kind kind;
    const char* op;
    detail::BackwardThunk backward = nullptr;
    detail::ComposedThunk composed = nullptr;
    size_t inputs, outputs, saved, numbers;  // where the entry's ranges begin in the pools
    size_t index = 0;                        // index into uses or segments
    Start start = nullptr;
  };

  /// The slot in which one gradient is collected.
  struct Slot {
    Tensor gradient;
    Shape shape;
    DType dtype;
    /// Not null: the gradient is collected in `leaves` of the root tape.
    const Parameter* parameter = nullptr;
    bool keep = false;            // a variable(), or an input of grad(): kept after backward
    bool in_accumulator = false;  // collected in the accumulator dtype, like a parameter's gradient

    DType gradient_dtype() const {
      return parameter || in_accumulator ? accumulator(dtype) : dtype;
    }
  };

  /// The result of an all_gather along an axis (`whole`) and this rank's slice of it (`slice`). An
  /// op that saves `whole` for backward saves `slice` instead.
  struct Gathered {
    std::weak_ptr<Buffer> whole;
    Tensor slice;
    Communicator* ranks;
    int axis;
  };

  /// A tensor saved for backward. A view of a parameter is saved as parameter and byte offset, the
  /// result of an all_gather as this rank's slice.
  struct Saved {
    Tensor tensor;
    bool stored = false;   // in `activations`
    uint32_t version = 0;  // of the buffer of the tensor or parameter when it was saved
    Communicator* ranks = nullptr;
    int axis = 0;  // the axis along which the slices are gathered again
    const Parameter* parameter = nullptr;
    std::weak_ptr<Buffer> values = {};  // of its origin; ZeRO-3 frees them until backward
    int64_t byte_offset = 0;
    Shape shape;
    DType dtype = DType::f32;
  };

  /// The record of one Tape::Use.
  struct UseRecord {
    const Unit* unit;
    bool reads = false;    // an entry between use_begin and use_end reads a parameter of the unit
    bool held = false;     // acquired by backward
    int64_t begin_ns = 0;  // for a trace: when backward reached it
  };

  TapeState(const Device& device, std::vector<ParameterSource*> sources, TapeMode mode,
            TapeState* parent, ActivationStore* activations = nullptr);

  bool recording() const { return mode == TapeMode::record && paused == 0; }
  void require_usable(const char* op) const;
  void require_closed(const char* op) const;  ///< TapeError if a unit is open
  bool is_open(const Unit& unit) const;
  /// The index in `sources` of the one that has the unit. Throws TapeError if none has, beginning
  /// with `what`.
  size_t source_index(const Unit& unit, std::string_view what) const;
  ParameterSource& source_of(const Unit& unit, std::string_view what = "parameter") const {
    return *sources[source_index(unit, what)];
  }
  ParameterSource& source_of(const Parameter& parameter) const {
    return source_of(*parameter.unit);
  }
  Var make_var(Tensor value, int slot);
  /// The tape of a constant that is computed from constants of two tapes: the one that has not
  /// ended, or that of a checkpointed segment inside the other. Null: neither.
  static const std::shared_ptr<TapeState>* common(const std::shared_ptr<TapeState>& a,
                                                  const std::shared_ptr<TapeState>& b);
  int make_slot(const Tensor& value);

  Var parameter(const Parameter& parameter);
  /// The parameter of an open unit in whose memory the tensor is, and the unit's use; null: none.
  std::pair<UseRecord*, const Parameter*> find_parameter(const Tensor& tensor);
  Saved keep(const Tensor& tensor);
  Saved keep_in_store(const Tensor& tensor) const;
  const Gathered* find_gathered(const Tensor& tensor);
  /// `op`: for errors.
  Tensor fetch(const Saved& saved, const char* op) const;
  void check_unchanged(const Saved& saved, const char* op) const;
  std::vector<Var> record(const char* op, std::span<const Var> inputs,
                          std::span<const Tensor> outputs, std::span<const Tensor> saved,
                          const void* numbers, size_t numbers_bytes, detail::BackwardThunk backward,
                          detail::ComposedThunk composed);
  /// Implements the public record(): finds the tape of the inputs.
  static std::vector<Var> record_on_tape_of(const char* op, std::span<const Var> inputs,
                                            std::span<const Tensor> outputs,
                                            std::span<const Tensor> saved, const void* numbers,
                                            size_t numbers_bytes, detail::BackwardThunk backward,
                                            detail::ComposedThunk composed);
  /// Records that `whole` is the result of an all_gather.
  static void note_gathered(const Var& whole, const Gathered& gathered);
  /// Collects the gradient of `output`, which is a parameter's value, in the accumulator dtype.
  static void collect_in_accumulator(const Var& output);
  Entry& push(Kind kind, const char* op);

  /// Sets the start of the op that made `output`, whose backward is finish_collective(). `output`
  /// was recorded last.
  static void note_start(const Var& output, Start start);
  /// Called in the backward of an op that has passed on the gradient of `input`, before it computes
  /// others: starts the collective of the op recorded before it, if that made the input. The
  /// gradient of the input is complete, because all other ops that read it were recorded later.
  static void start_collective(const BackwardPass& pass, int input);
  /// The gradient of the op's input, from the collective that was started; else starts it here.
  static Tensor finish_collective(const BackwardPass& pass);

  size_t open_use(const Unit& unit);
  void close_use(size_t index, bool unwinding) noexcept;

  void accumulate(int slot, Tensor gradient, const char* op);
  Tensor make_gradient(int slot) const;
  /// The tensor, or a copy if its buffer is shared: the backward of a residual add gives one tensor
  /// to two inputs, and the other one must not change.
  static Tensor own_copy(Tensor tensor, Stream& stream);
  static void add_to(Tensor& sum, const Tensor& addend, Stream& stream);  ///< sum += addend
  void visit_entries();
  void count_reading();  ///< adds the tape's uses to `reading` of the root
  void visit_entry(const Entry& entry, size_t entry_index);
  void run_segment(const Entry& entry);
  /// Adds a span to the trace: the time that backward spent between use_end and use_begin.
  void record_span(const UseRecord& use) const;
  void reduce_gradients(const Unit& unit);

  const Device device;
  const std::vector<ParameterSource*> sources;
  const TapeMode mode;
  ActivationStore* const activations;  // null: saved tensors stay on the device
  TapeState* const parent;             // for a recomputed segment: the tape that recomputes it
  TapeState& root;                     // the tape that has `leaves` and `use_counts`

  int paused = 0;              // inside a checkpointed segment's first run: nothing is recorded
  bool backward_ran = false;   // backward runs once
  bool is_incomplete = false;  // an exception left a unit open: backward is refused
  bool has_ended = false;      // the program's Tape is gone
  bool is_for_grad = false;    // backward leaves the gradients of parameters to grad()
  Settings settings;

  std::vector<Slot> slots;
  std::vector<Entry> entries;
  std::vector<int> input_slots, output_slots;
  std::vector<Saved> saved_tensors;
  std::vector<std::max_align_t> numbers;
  std::vector<UseRecord> uses;
  // Forward: uses whose scope is open; backward: uses between whose marks it is.
  std::vector<size_t> open;
  std::vector<Segment> segments;
  std::vector<Gathered> gathered;
  std::vector<Tensor> output_gradients;  // for the entry whose backward runs
  std::function<Tensor()> started;       // the collective of the entry whose backward runs next
  std::unordered_map<const Parameter*, int> parameter_slots;

  // Used in the root only:
  // Gradients of parameters, in the accumulator dtype.
  std::unordered_map<const Parameter*, Tensor> leaves;
  std::unordered_map<const Unit*, int> use_counts;  // uses that backward has not passed yet
  std::unordered_map<const Unit*, int> reading;     // those of them that read values
};

}  // namespace zg
