#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/tensor.h"

namespace zg {

/// A normal distribution between two limits, which may be infinite: torch.nn.init.trunc_normal_.
struct TruncatedNormal {
  double mean = 0.0, std = 1.0, a = -2.0, b = 2.0;
};

/// The numbers of inputs and outputs of a weight [out, in, ...]: `in` and `out` are the elements
/// for each output and each input, `mean` is the mean of both.
enum class Fan : uint8_t { none, in, out, mean };

enum class Nonlinearity : uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// torch.nn.init.calculate_gain; `slope`: of leaky_relu for negative numbers.
ZG_API double calculate_gain(Nonlinearity nonlinearity, double slope = 0.01);

/// He et al. 2015, arXiv:1502.01852: a standard deviation of gain / sqrt(fan).
struct Kaiming {
  double a = 0.0;  ///< the slope of leaky_relu
  Fan mode = Fan::in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
  double gain() const { return calculate_gain(nonlinearity, a); }
};

/// The initial values of a parameter. Element i is a function of (seed, parameter name, i) alone,
/// and of the shape of the whole parameter, so a rank can initialise its shard without the other
/// shards. Only orthogonal values depend on each other: a rank computes the whole matrix in f64 on
/// the host and takes its shard. That takes 8 bytes for each element while it runs, and 2 n^2 m
/// operations for a matrix of n x m, n <= m.
struct ZG_API Init {
  enum class Kind : uint8_t { zeros, ones, normal, uniform, truncated_normal, orthogonal };
  Kind kind = Kind::zeros;
  double stddev = 0.0;  ///< uniform: the bound b of U(-b, b); orthogonal: the gain
  Fan fan = Fan::none;  ///< the square root of this number divides stddev
  TruncatedNormal truncated = {};
  Shape whole = {};  ///< orthogonal: the shape of the whole parameter
  std::shared_ptr<const std::vector<float>> values = {};  ///< orthogonal: after prepared()

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::ones}; }
  static Init normal(float stddev) { return {Kind::normal, double{stddev}}; }
  static Init uniform(float bound) { return {Kind::uniform, double{bound}}; }
  /// ConfigError unless std > 0 and a < b.
  static Init truncated_normal(const TruncatedNormal& limits);
  // As the functions of torch.nn.init. The parameter has rank 2 or more, otherwise add() throws a
  // ShapeError.
  static Init xavier_uniform(double gain = 1.0) { return {Kind::uniform, sqrt3 * gain, Fan::mean}; }
  static Init xavier_normal(double gain = 1.0) { return {Kind::normal, gain, Fan::mean}; }
  static Init kaiming_uniform(const Kaiming& k = {}) {
    return {Kind::uniform, sqrt3 * k.gain(), k.mode};
  }
  static Init kaiming_normal(const Kaiming& k = {}) { return {Kind::normal, k.gain(), k.mode}; }
  /// Orthonormal rows or columns, whichever are fewer, times the gain. Axes from the second on are
  /// one axis. Saxe et al. 2013, arXiv:1312.6120.
  static Init orthogonal(double gain = 1.0) { return {Kind::orthogonal, gain}; }

  /// The same for a parameter of this whole shape, as ParameterStore::add() keeps it: without `fan`
  /// and with `whole`. ShapeError if it needs rank 2 or more.
  Init of(const std::string& name, const Shape& whole) const;
  /// Whether the values depend on each other, so that a range needs all of them.
  bool is_computed_whole() const;

 private:
  static constexpr double sqrt3 = 1.7320508075688772;
};

/// Writes elements [begin, begin + values.size()) of a parameter named `name`. Normal values come
/// from Philox (key: seed; counter: element / 2, hash_name(name)) by the transform of Box, Muller
/// 1958, "A note on the generation of random normal deviates", in double, rounded once: r cos(2 pi
/// v) for even elements and r sin(2 pi v) for odd ones, r = stddev sqrt(-2 ln u). Uniform values
/// are b (2 u - 1) for even elements and b (2 v - 1) for odd ones. Truncated values are the first
/// that a test of (u, v) accepts, with another key for each attempt. ConfigError if the values
/// depend on a shape that Init::of() was not told.
ZG_API void initialise(const Init& init, uint64_t seed, const std::string& name, int64_t begin,
                       std::span<float> values);
/// The same initial values, with all of them in memory if is_computed_whole(): for a caller that
/// writes several ranges.
ZG_API Init prepared(const Init& init, uint64_t seed, const std::string& name);

struct Unit;

/// Members of this type make an aggregate that cannot be copied.
struct NotCopied {
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;
};

/// The elements of a parameter that one tensor-parallel rank has. The parameter is `outer` equal
/// blocks of `extent` rows of `inner` elements; the slice is the rows [begin, begin + rows) of each
/// block. Rows of a matrix: outer = 1. Columns of a matrix: outer = its number of rows, inner = 1.
/// Heads of a fused query-key-value matrix: outer = 3. Initial values depend on an element's index
/// in the whole parameter (whole_index()), so they do not depend on the number of ranks.
struct Slice {
  int64_t outer = 1, extent = 1, begin = 0, rows = 1, inner = 1;
  /// Reduction groups. Each has ceil(extent / groups) rows of each block, the last ones fewer; a
  /// slice has whole groups.
  int64_t groups = 1;

  /// Whether granules of so many elements, counted from a slice's first, never cross a group, on
  /// any number of ranks.
  bool keeps_granules(int64_t granule) const {
    const int64_t part = (extent + groups - 1) / groups * inner;
    return groups == 1 || (part % granule == 0 && extent * inner % granule == 0);
  }

  int64_t numel() const { return outer * rows * inner; }
  int64_t whole_numel() const { return outer * extent * inner; }
  bool is_whole() const { return rows == extent; }
  /// Index in the whole parameter of element i of the slice. A run is the rows * inner elements of
  /// one block; within a run the indices are consecutive.
  int64_t whole_index(int64_t i) const {
    const int64_t run = rows * inner;
    return (i / run * extent + begin) * inner + i % run;
  }
  int64_t run_left(int64_t i) const { return rows * inner - i % (rows * inner); }
};

/// Writes elements [begin, begin + values.size()) of a slice of the parameter.
ZG_API void initialise(const Init& init, uint64_t seed, const std::string& name, const Slice& slice,
                       int64_t begin, std::span<float> values);

/// The role of a rank's copy of a parameter in a mesh.
enum class Copy : uint8_t {
  own,
  /// An equal copy of a parameter that another tensor rank owns. It gets the same gradients and
  /// updates; norms, hashes and checkpoints do not include it.
  replica,
  /// Pipelines only: a copy on the last stage. Its value is copied from the owner, its gradient is
  /// sent to the owner.
  mirror
};

/// An immutable description. The values belong to a ParameterSource, because ranks that are threads
/// share the model object. Tapes and engines know it by its address: `const Parameter& w =
/// store.add(...)`; a copy does not compile.
struct Parameter {
  std::string name;  ///< "transformer.h.3.attn.c_attn.weight"
  Shape shape;
  Init init;
  bool decay = false;          ///< weight decay applies: to matrices of linear layers
  bool trainable = true;       ///< false: frozen, no gradient and no optimizer state
  bool saved = true;           ///< false: frozen, and checkpoints leave it out
  bool hidden_matrix = false;  ///< [out, in] of a linear layer between others, an inner matrix
  const Unit* unit = nullptr;
  int index = 0;  ///< position in the store, in order of creation
  Shape whole;    ///< shape in the whole model; `shape` is this rank's slice
  Slice slice;    ///< the slice that this rank holds
  Copy copy = Copy::own;
  /// On the first pipeline stage: the last stage has a mirror of this parameter.
  bool has_mirror = false;
  NotCopied not_copied = {};
};

/// Parameters that are gathered and released together, for example those of one transformer block.
/// ZeRO stores and exchanges the parameters of a unit as one flat array. Known by its address, as a
/// Parameter: `const Unit& unit = store.unit("block.0")`.
struct Unit {
  std::string name;
  int index = 0;  ///< position in the store
  std::vector<const Parameter*> parameters;
  NotCopied not_copied = {};
};

/// Writes elements [begin, begin + values.size()) of this rank's slice.
inline void initialise(const Parameter& parameter, uint64_t seed, int64_t begin,
                       std::span<float> values) {
  initialise(parameter.init, seed, parameter.name, parameter.slice, begin, values);
}

/// Descriptions of all parameters of a model. It holds no values, so its size does not depend on
/// the number of parameter elements.
class ZG_API ParameterStore {
 public:
  struct Options {
    bool decay = false;
    bool trainable = true;
    bool saved = true;                ///< ConfigError if false and trainable
    bool hidden_matrix = false;       ///< ShapeError unless the shape has rank 2
    Shape whole = {};                 ///< with `slice`: shape of the parameter in the whole model
    std::optional<Slice> slice = {};  ///< absent: this rank has the whole parameter
    Copy copy = Copy::own;
    bool has_mirror = false;
  };

  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  const Unit& unit(const std::string& name);  ///< adds a unit; ConfigError if the name is taken
  /// Adds a parameter. Throws ConfigError if the name is taken, ShapeError if a slice does not fit.
  const Parameter& add(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                       Options options);
  const Parameter& add(const Unit& unit, const std::string& name, const Shape& shape, Init init);

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<std::unique_ptr<Parameter>>& parameters() const { return parameters_; }
  /// In byte order of their names.
  const std::map<std::string, const Parameter*>& by_name() const { return by_name_; }
  const Parameter* find(const std::string& name) const;  ///< null when absent
  bool has(const Unit& unit) const {
    const auto index = static_cast<size_t>(unit.index);
    return index < units_.size() && units_[index].get() == &unit;
  }
  int64_t numel() const;

 private:
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::map<std::string, const Parameter*> by_name_;
  std::set<std::string> unit_names_;
};

class ActivationStore;

enum class TapeMode : uint8_t {
  record,
  inference  ///< records nothing; units are still acquired and released
};

/// The interface through which a tape reads parameters and returns gradients. Values implements it
/// by plain memory, zero::Engine by ZeRO's partitions. Each acquire() is followed by a release();
/// calls may nest.
class ZG_API ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Whether it has the parameters of the unit. A tape that reads several sources asks each.
  virtual bool has(const Unit&) const { return true; }
  /// Whether value() of the unit's parameters works only between acquire() and release(). If not,
  /// ops may read them without a Tape::Use.
  virtual bool needs_open_unit(const Unit&) const { return true; }
  /// Whether tapes compute the parameter's gradient. zero::Engine has memory for the gradients and
  /// states of those that are trainable when it is made, so there it does not change; Values can
  /// freeze a parameter and train it again.
  virtual bool trains(const Parameter& parameter) const { return parameter.trainable; }
  /// Called when a tape is made for this source, and after its backward.
  virtual void begin_tape(TapeMode) {}
  virtual void end_backward() {}
  /// Where a tape that is made for this source stores saved activations. Null: on the device.
  virtual ActivationStore* activations() { return nullptr; }
  /// Makes value() of every parameter of the unit available to work on the stream.
  virtual void acquire(const Unit& unit, Stream& stream) = 0;
  /// The values are not needed any more and may be freed.
  virtual void release(const Unit& unit, Stream& stream) noexcept = 0;
  /// Called in backward when it will not read the unit's values again, at its begin for units that
  /// it does not read. The unit may still get gradients.
  virtual void done_reading(const Unit&) noexcept {}
  /// The current value. Throws NotResident, with the name of the unit to open, if it is not
  /// available.
  virtual Tensor value(const Parameter& parameter) const = 0;
  /// The tensor that value() is a rounding of; by default value() itself. Backward refuses to read
  /// the value of a parameter whose origin was changed since forward.
  virtual Tensor origin(const Parameter& parameter) const { return value(parameter); }
  /// The value in the dtype in which it is stored. Where that is narrower than the dtype of
  /// value(), ops that read a matrix convert a few of its rows at a time, and so never need the
  /// memory of a converted matrix.
  virtual Tensor stored(const Parameter& parameter) const { return value(parameter); }
  /// The dtype of value().
  virtual DType dtype(const Parameter& parameter) const { return value(parameter).dtype(); }
  /// Uninitialised memory into which the tape should write the gradient of a micro-batch, so that
  /// the source need not copy it. It has the parameter's shape, the accumulator dtype and
  /// Purpose::gradient. The tape returns it in reduce() or drops it. Absent: the tape allocates
  /// memory itself.
  virtual Tensor gradient_place(const Parameter&) { return {}; }
  /// Takes the gradients of one micro-batch: one per parameter of the unit, of the parameter's
  /// shape, in the accumulator dtype, absent if the parameter got none. Called once per
  /// micro-batch, after the unit's last use in backward.
  virtual void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) = 0;
};

/// Access to the values of parameters by name, in a checkpoint or a file of weights.
/// zero::load_weights() loads them into an engine.
struct WeightSource {
  std::string path;  ///< for errors
  std::map<std::string, Shape> shapes;
  /// Returns all values of a parameter that is in `shapes`.
  std::function<std::vector<float>(const std::string& name)> read;
  /// Returns a slice of a parameter. Absent: slices cannot be read separately.
  std::function<std::vector<float>(const std::string& name, const Slice& slice)> read_part = {};
  /// Returns `count` elements from `begin` on, or nullopt if this parameter cannot be read in
  /// ranges. Absent: none can.
  std::function<std::optional<std::vector<float>>(const std::string& name, int64_t begin,
                                                  int64_t count)>
      read_range = {};
  /// The dtypes in which tensors are stored, although they are read as f32. One that is not listed
  /// is stored as f32.
  std::map<std::string, DType> dtypes = {};
};
/// Throws FileError if one of these parameters (all without `only`) is not among tensors of these
/// shapes, or has another shape. The message of a missing one lists up to three tensors that the
/// store has no use for, those of the wanted shape first.
ZG_API void check_shapes(const std::string& path, const std::map<std::string, Shape>& there,
                         const ParameterStore& store,
                         const std::function<bool(const Parameter&)>& only = {});

}  // namespace zg
