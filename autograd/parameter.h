#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/tensor.h"

namespace zg {

/// The initial values of a parameter. Element i is a function of (seed, parameter name, i) alone,
/// so a shard is initialised without the whole.
struct Init {
  enum class Kind : uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  float stddev = 0.0f;

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::ones, 0.0f}; }
  static Init normal(float stddev) { return {Kind::normal, stddev}; }
};

/// Writes elements [begin, begin + values.size()) of a parameter named `name`. Normals come from
/// Philox (key: seed; counter: element / 2, hash_name(name)) by the transform of Box, Muller 1958,
/// "A note on the generation of random normal deviates", in double, rounded once:
/// r cos(2 pi v) for even elements and r sin(2 pi v) for odd ones, r = stddev sqrt(-2 ln u).
ZG_API void initialise(const Init& init, uint64_t seed, const std::string& name, int64_t begin,
                       std::span<float> values);

struct Unit;

/// Which elements of the whole model's parameter a rank's part of it is, when the tensor axis
/// shares it out: of each of `outer` equal blocks of `extent` rows of `inner` elements, the rows
/// [begin, begin + rows). Rows of a matrix: outer 1; its columns: outer = its rows, inner 1; heads
/// of queries, keys and values that lie side by side: outer 3. Element i of the part is a function
/// of i, so that every way to share gives the same model.
struct Slice {
  int64_t outer = 1, extent = 1, begin = 0, rows = 1, inner = 1;

  int64_t numel() const { return outer * rows * inner; }
  int64_t whole_numel() const { return outer * extent * inner; }
  bool is_whole() const { return rows == extent; }
  /// The index in the whole of element i of the part. The elements after it are contiguous up to
  /// the end of its run of rows * inner elements.
  int64_t whole_index(int64_t i) const {
    const int64_t run = rows * inner;
    return (i / run * extent + begin) * inner + i % run;
  }
  int64_t run_left(int64_t i) const { return rows * inner - i % (rows * inner); }
};

/// Whether a rank of a mesh answers for its part of a parameter.
enum class Copy : uint8_t {
  own,
  replica,  ///< an equal one is another tensor rank's own: same gradients and updates; not counted
            ///< into norms, hashes and checkpoints
  mirror    ///< pipelines only: the value follows the owner's; the owner gets the gradients
};

/// An immutable description; the bytes belong to a ParameterSource, because ranks that are threads
/// share the model object.
struct Parameter {
  std::string name;  ///< "transformer.h.3.attn.c_attn.weight"
  Shape shape;
  Init init;
  bool decay = false;     ///< takes weight decay: matrices of linear layers
  bool trainable = true;  ///< false: frozen, no gradient and no optimizer state
  const Unit* unit = nullptr;
  int index = 0;  ///< position in the store, in order of creation
  Shape whole;    ///< shape in the whole model; `shape` is this rank's slice
  Slice slice;    ///< the slice that this rank holds
  Copy copy = Copy::own;
  bool has_mirror = false;  ///< on a pipeline's first stage: its last one has the mirror
};

/// Parameters that are gathered and released together: one transformer block, the embeddings.
struct Unit {
  std::string name;
  int index = 0;  ///< position in the store
  std::vector<const Parameter*> parameters;
};

/// The same for elements of a rank's part of a parameter.
ZG_API void initialise(const Parameter& parameter, uint64_t seed, int64_t begin,
                       std::span<float> values);

/// Descriptions only: describing a model of 100 billion parameters allocates nothing.
class ZG_API ParameterStore {
 public:
  struct Options {
    bool decay = false;
    bool trainable = true;
    Shape whole = {};                 ///< with slice: the parameter is a part of one of this shape
    std::optional<Slice> slice = {};  ///< absent: the whole
    Copy copy = Copy::own;
    bool has_mirror = false;
  };

  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  const Unit& unit(const std::string& name);  ///< makes it; ConfigError when the name is taken
  /// ConfigError when the name is taken, ShapeError when a slice does not fit.
  const Parameter& add(const Unit& unit, const std::string& name, const Shape& shape, Init init,
                       Options options);
  const Parameter& add(const Unit& unit, const std::string& name, const Shape& shape, Init init);

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<std::unique_ptr<Parameter>>& parameters() const { return parameters_; }
  /// In byte order of their names.
  const std::map<std::string, const Parameter*>& by_name() const { return by_name_; }
  const Parameter* find(const std::string& name) const;  ///< null when absent
  int64_t numel() const;

 private:
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::map<std::string, const Parameter*> by_name_;
};

/// Everything autograd knows of where parameters live. ZeRO implements it; autograd never names
/// ZeRO. Calls nest and balance.
class ZG_API ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// After it, value() of every parameter of the unit may be read on the stream.
  virtual void acquire(const Unit& unit, Stream& stream) = 0;
  /// After it, the values may be evicted.
  virtual void release(const Unit& unit, Stream& stream) noexcept = 0;
  /// Throws NotResident naming the unit to open.
  virtual Tensor value(const Parameter& parameter) const = 0;
  /// Uninitialised memory where the source wants the gradient of a micro-batch, which saves it a
  /// copy: the parameter's shape, the accumulator dtype, stamped Purpose::gradient. The tape, its
  /// only user, gives it back in reduce(), or drops it. Absent where the source has no such place,
  /// and while it is taken.
  virtual Tensor gradient_place(const Parameter&) { return {}; }
  /// Whole gradients of one micro-batch, one per parameter of the unit and in the accumulator
  /// dtype, absent where none arose; called once per micro-batch, after the unit's last use.
  virtual void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) = 0;
};

/// The values of parameters by name, wherever they are stored. zero::load_weights() takes them into
/// an engine.
struct WeightSource {
  std::string path;  ///< for errors
  std::map<std::string, Shape> shapes;
  /// All values of one that is in `shapes`.
  std::function<std::vector<float>(const std::string& name)> read;
  /// A slice of it. Absent: a slice cannot be read without the whole.
  std::function<std::vector<float>(const std::string& name, const Slice& slice)> read_part = {};
  /// `count` elements from `begin` on; nullopt for one of which a range cannot be read without the
  /// whole. Absent: that is so of all of them.
  std::function<std::optional<std::vector<float>>(const std::string& name, int64_t begin,
                                                  int64_t count)>
      read_range = {};
};

}  // namespace zg
