#pragma once

#include <optional>
#include <string>
#include <vector>

// What DeepSpeed's config knows: a row per key. Checks, defaults, hints and what is listed as
// without effect all come from these rows.
namespace zg::tools {

/// The DeepSpeed whose defaults fill what a config leaves out.
enum class Compat { v0_19, v0_16 };

enum class Type { boolean, integer, number, choice, text, numbers, any, section };

enum class Effect {
  honoured,  ///< changes the run as it does there
  only,      ///< its default is what happens anyway; another value is Unsupported, with `why`
  nothing,   ///< accepted without effect, and listed with `why`
  inner      ///< of a section whose own row or another key says what happens
};

struct Row {
  const char* section;  ///< a name of sections(); "" for the top level
  const char* key;
  Type type;
  const char* fallback;  ///< the default as JSON; "null" may also be written, "" has none
  Effect effect = Effect::honoured;
  const char* why = "";      ///< of `only` and `nothing`
  const char* choices = "";  ///< of a choice, "none|cpu|nvme"; of a section, its name
  double least = 0.0;        ///< of an integer or number
  double most = 1e18;
  const char* fallback_0_16 = nullptr;  ///< where it was another
  const char* alias = "";               ///< another spelling, accepted everywhere
  bool automatic = false;  ///< "auto" is filled from the run, not only dropped for the default
};

const std::vector<Row>& rows();

/// How a config writes a section: "" -> "", "adam" -> "optimizer.params".
std::string path_of(const std::string& section);
/// The name that errors give a key: "optimizer.params.lr".
std::string path_of(const Row& row);

/// By its key or alias; null: the section has no such key.
const Row* find_row(const std::string& section, const std::string& key);
std::vector<std::string> keys_of(const std::string& section);

/// What to do about a key that the section does not have: the nearest that it has, or where the key
/// belongs. Never empty.
std::string advice_on(const std::string& section, const std::string& key);

const char* fallback_of(const Row& row, Compat compat);

}  // namespace zg::tools
