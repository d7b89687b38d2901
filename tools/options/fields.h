#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/zero/deepspeed/deepspeed.h"
#include "zerograd/zero/report.h"

// The table of a run's settings. A row has the field, the flag, the key in a checkpoint's JSON,
// what a resumed run does with it, and the field of DeepSpeed's config. Flags and help, the JSON,
// the rules for resuming, precedence, and which flags override a config's key all follow from it.
namespace zg::tools {

// How a field of each type is written to JSON, read from it, copied, and set by a flag (codec.cpp).

using Json = nlohmann::ordered_json;

/// The range of a whole number in a checkpoint.
struct Between {
  int64_t minimum, maximum;
};
/// Any number, NaN and infinities too.
struct AnyNumber {};
/// The bounds of a number in a checkpoint. std::monostate: those of its flag, if there is one.
using Bounds = std::variant<std::monostate, Between, Range, AnyNumber>;

/// A value on the command line, and the flag that errors name.
struct FlagValue {
  const std::string &flag, &value;
};

/// The row of a flag, from which the Flag of any TrainOptions object is made.
struct FlagRow {
  Names names = {};                              ///< empty: no flag sets the field
  std::string value = {};                        ///< how help shows the value
  std::string help = {};                         ///< without the default
  const char* shown = nullptr;                   ///< the default in help; null: the field's value
  int64_t minimum = 0, maximum = largest_count;  ///< bounds of a whole number
  Range range = {};                              ///< bounds of a floating-point number
  std::vector<std::string> choices = {};         ///< words for the enumerators, in their order
  PathUse use = PathUse::none;
  /// Returns the paths that a value names. Null: the value is one path.
  std::vector<NamedPath> (*paths)(const std::string& value) = nullptr;
  int max_words = 1;                                                 ///< as Flag::max_words
  std::vector<std::pair<std::string, std::string>> with_value = {};  ///< as Flag::with_value
  /// Parses a value that has a syntax of its own and sets the fields that it stands for. Null: the
  /// codec of the field's type reads it.
  void (*parse)(TrainOptions&, const FlagValue&) = nullptr;
  /// Makes a flag that other commands have, too. Null: the flag is made from the other members.
  Flag (*make)(TrainOptions&) = nullptr;
};

/// The functions with which the table of fields handles a field of one type.
struct Codec {
  size_t bytes;
  Json (*write)(const void* value);
  /// Throws ConfigError, which names what was expected.
  void (*read)(const Json& json, void* value, const Bounds& bounds);
  void (*copy)(const void* from, void* to);
  Flag (*flag)(const FlagRow& row, void* target);
};
/// The codec of a type in all_codecs().
template <class T>
const Codec& codec_of();
/// The codecs of the types that fields may have.
std::vector<const Codec*> all_codecs();

// The rows.

/// How a resumed run treats a field of its checkpoint.
enum class Resume : uint8_t {
  not_stored,  ///< checkpoints do not store it; the value comes from flags and defaults
  kept,        ///< the checkpoint's value is used, unless a flag sets another; a change is reported
  must_equal,  ///< the checkpoint's value is used; a flag that sets another value is an error
  may_change,  ///< the value of the new command line is used; a change is reported
  unchecked    ///< the value of the new command line is used; a change is not reported
};

/// Finds a field in a RunSpec or in TrainOptions. ZG_AT(schedule.rate) is one.
struct Location {
  void* (*in_spec)(RunSpec&) = nullptr;  ///< null: RunSpec does not have it
  void* (*in_options)(TrainOptions&) = nullptr;
  const Codec* codec = nullptr;

  template <class Access>
  Location(Access) : in_options([](TrainOptions& options) -> void* { return &Access()(options); }) {
    codec = &codec_of<std::remove_reference_t<std::invoke_result_t<Access, TrainOptions&>>>();
    if constexpr (std::is_invocable_v<Access, RunSpec&>)
      in_spec = [](RunSpec& spec) -> void* { return &Access()(spec); };
  }
};
#define ZG_AT(field) [](auto& of) -> decltype((of.field)) { return (of.field); }

/// The part of a run's audit that has a stored field.
enum class AuditPart : uint8_t {
  settings,  ///< may change bits
  layout,    ///< how the same step is computed
  none       ///< neither; fields that are paths have no part either
};

struct Stored {
  Resume rule = Resume::not_stored;
  std::string key = {};  ///< "model.layers": layers in the object model
  Bounds bounds = {};
  bool always = false;  ///< every version wrote it: reading fails if it is missing
  // A resumed run takes the value if the field's own flag is not given and all of these conditions
  // are true.
  std::vector<const char*> other_flags = {};  ///< none of them is given
  const char* config_flag = nullptr;  ///< no config has set the row of this flag; null: true
  bool (*condition)(const TrainOptions& now, const RunSpec& saved) = nullptr;  ///< null: true
  bool is_path = false;                ///< stored as an absolute path
  bool is_sparse = false;              ///< not written where it has the initial value of RunSpec
  std::optional<AuditPart> part = {};  ///< absent: that of the group

  template <class T>
  Stored with(T Stored::*member, T value) const {
    Stored stored = *this;
    stored.*member = std::move(value);
    return stored;
  }
  Stored unless(std::vector<const char*> flags) const { return with(&Stored::other_flags, flags); }
  Stored unless_config_sets(const char* flag) const { return with(&Stored::config_flag, flag); }
  Stored when(bool (*holds)(const TrainOptions&, const RunSpec&)) const {
    return with(&Stored::condition, holds);
  }
  Stored as_path() const { return with(&Stored::is_path, true); }
  Stored sparse() const { return with(&Stored::is_sparse, true); }
  Stored in_audit(AuditPart of) const { return with(&Stored::part, std::optional(of)); }
};

/// The commands that take a flag of train without effect, as bits.
enum Ignored : unsigned { never = 0, by_plan = 1, by_tune = 2 };

struct Field {
  Location location;
  FlagRow flag;
  Stored stored = {};                               ///< default: not stored
  std::optional<zero::DeepSpeedField> config = {};  ///< absent: no key of a config sets it
  /// First names of the flags that override the config's key. Empty: the field's own flag.
  std::vector<const char*> config_flags = {};
  unsigned ignored = never;

  Field(Location location, FlagRow flag, Stored stored = {},
        std::optional<zero::DeepSpeedField> config = {}, std::vector<const char*> flags = {},
        unsigned ignored = never)
      : location(location),
        flag(std::move(flag)),
        stored(std::move(stored)),
        config(config),
        config_flags(std::move(flags)),
        ignored(ignored) {}
  Field(Location location, FlagRow flag, Ignored by)
      : location(location), flag(std::move(flag)), ignored(by) {}
  Field(Location location, FlagRow flag, Stored stored, Ignored by)
      : location(location), flag(std::move(flag)), stored(std::move(stored)), ignored(by) {}
  Field(Location location, Stored stored) : location(location), stored(std::move(stored)) {}

  /// The flag's first name, or the key of a field without a flag.
  const std::string& name() const { return flag.names.empty() ? stored.key : flag.names.front(); }
  /// The bounds of a stored number: those of its flag, unless the row has others.
  Bounds bounds() const {
    if (!std::holds_alternative<std::monostate>(stored.bounds)) return stored.bounds;
    return flag.range.words ? Bounds(flag.range) : Bounds(Between{flag.minimum, flag.maximum});
  }
  bool is_stored() const { return stored.rule != Resume::not_stored; }
  /// Copies the field's value from one object to the other.
  void copy(const RunSpec& from, RunSpec& to) const;
};

struct FieldGroup {
  std::string title;  ///< title in help; empty: these rows continue the group before
  std::vector<Field> fields;
  unsigned ignored = never;  ///< commands that ignore every flag of the group
  AuditPart part = AuditPart::settings;
};

/// The table, in the order of help.
const std::vector<FieldGroup>& field_groups();
/// The rows of all groups.
const std::vector<const Field*>& all_fields();
/// The stored rows. Files have their keys in the order of the alphabet.
const std::vector<const Field*>& stored_fields();

/// The value of a field as JSON. For a RunSpec, the field must be one of RunSpec.
Json value_of(const Field& field, const RunSpec& spec);
Json value_of(const Field& field, const TrainOptions& options);
/// The flag of a row, which writes to `options`. Its help has the default that `options` has.
Flag flag_of(const Field& field, TrainOptions& options);
/// The flags of train, in the groups of help. The parsed values go to `options`.
std::vector<FlagGroup> train_groups(TrainOptions& options);
/// The rows of flags, by their first names.
std::vector<const Field*> fields_named(const std::vector<std::string>& names);
/// The flags of rows, by their first names.
std::vector<Flag> flags_named(const std::vector<std::string>& names, TrainOptions& options);
inline Flag flag_named(const char* name, TrainOptions& options) {
  return flags_named({name}, options).front();
}

/// The settings of a checkpoint, replaced by those whose flags are given.
RunSpec with_flags(RunSpec saved, const TrainOptions& options);
/// Sets the fields of `model` that flags, a config, a checkpoint or a folder set.
void set_given(const TrainOptions& options, models::GPTConfig& model);
/// Sets the fields of the model that no flag sets to those of a folder.
void adopt_model(const RunSpec& theirs, TrainOptions& options);
/// The value as the flag's word, if the flag has words.
std::string shown_value(const Field& field, const Json& value, const RunSpec& spec);
/// The source of a field's value: "flag", "flag --other", "config", "config's default",
/// "checkpoint", "folder", or, if no source is known, "default" or "derived" (from other settings
/// or the data).
std::string source_of(const Field& field, const TrainOptions& options, bool is_standard);
/// Each setting and its source. `spec`: as prepare_run() resolved it.
std::vector<zero::ReportSetting> settings_of(const TrainOptions& options, const RunSpec& spec);
/// The same as text, a line for each.
std::string explain_settings(const TrainOptions& options, const RunSpec& spec);

/// The flags of train that a command takes without effect, by first name.
std::set<std::string> ignored_flags(Ignored by);

}  // namespace zg::tools
