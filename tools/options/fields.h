#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tools/options/options.h"
#include "tools/options/run_spec.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/zero/deepspeed/deepspeed.h"

// The table of a training run's fields. A row has the flag, the place in a checkpoint's settings,
// what a resumed run does with the field, and the field of DeepSpeed's config. Flags and help, the
// settings' JSON, the rules for resuming and which flags override a config's key all follow from
// it.
namespace zg::tools {

/// How a resumed run treats a field of its checkpoint.
enum class Resume : uint8_t {
  not_stored,  ///< checkpoints do not store it; the value comes from flags and defaults
  kept,        ///< the checkpoint's value is used, unless a flag sets another; a change is reported
  must_equal,  ///< the checkpoint's value is used; a flag that sets another value is an error
  may_change,  ///< the value of the new command line is used; a change is reported
  unchecked    ///< the value of the new command line is used; a change is not reported
};

/// The range of a whole number in a checkpoint.
struct Between {
  int64_t minimum, maximum;
};
/// Any number, NaN and infinities too.
struct AnyNumber {};
/// Numbers have bounds: those of their flag, if there is one.
using Bounds = std::variant<std::monostate, Between, Range, AnyNumber>;

/// Points to a stored value. run_spec.cpp has the JSON of each type.
using Slot = std::variant<std::monostate, bool*, int*, int64_t*, uint64_t*, float*, double*,
                          std::string*, std::array<double, 3>*, std::optional<int32_t>*,
                          std::vector<int32_t>*, DType*, Space*, models::Order*, models::Family*,
                          models::Position*, nn::NormKind*, nn::MlpKind*, RopeScaling*,
                          OptimizerRule*, zero::MuonRate*, zero::ScheduleKind*, zero::WarmupType*,
                          zero::DecayStyle*, std::vector<zero::ParameterGroup>*, LossMean*>;

/// A field in the JSON of settings.
struct Key {
  int place = 0;  ///< order in the JSON. A new field has the next number, so that the bytes of
                  ///< what is there stay the same.
  const char* name = "";  ///< "model.layers": layers in the object model
  bool always = false;    ///< every version wrote it: reading fails if it is missing
};

struct Stored {
  Resume rule = Resume::not_stored;
  Key key = {};
  Slot value = {};
  Bounds bounds = {};
  std::function<void()> take = {};  ///< copies the checkpoint's value to the run's options
  // Conditions of `take`, beside the field's own flag, which must not be given.
  std::vector<const char*> other_flags = {};  ///< none of them is given
  std::function<bool()> condition = {};       ///< empty: true
  bool is_path = false;                       ///< stored as an absolute path
  bool is_sparse = false;  ///< not written where it has the initial value of RunSpec

  Stored unless(std::vector<const char*> flags) && {
    other_flags = std::move(flags);
    return std::move(*this);
  }
  Stored when(std::function<bool()> holds) && {
    condition = std::move(holds);
    return std::move(*this);
  }
  Stored as_path() && {
    is_path = true;
    return std::move(*this);
  }
  Stored sparse() && {
    is_sparse = true;
    return std::move(*this);
  }
};

struct Field {
  Flag flag = {};      ///< without names: another field's flag, a config or the run sets it
  Stored stored = {};  ///< default: not stored
  std::optional<zero::DeepSpeedField> config = {};  ///< absent: no key of a config sets it
  /// First names of the flags that override the config's key. Empty: the field's own flag.
  std::vector<const char*> config_flags = {};
};

struct FieldGroup {
  std::string title;  ///< in help; empty: these rows continue the group before
  std::vector<Field> fields;
};

/// The table, in the order of help. Its flags write to `options`, its slots point into `saved`, and
/// Stored::take copies from `saved` to `options`.
std::vector<FieldGroup> fields_of(TrainOptions& options, RunSpec& saved);

}  // namespace zg::tools
