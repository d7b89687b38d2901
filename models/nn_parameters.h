#pragma once

#include <cstdint>
#include <string>

#include "zerograd/models/module.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/text/format.h"

// Parameters and inputs of layers, for the sources of nn.h and of models.
namespace zg::nn {

/// The number of a dropout's random stream, from the layer's name and a suffix.
inline uint32_t site_of(const std::string& name, const char* suffix) {
  return static_cast<uint32_t>(hash_name((name + suffix).c_str()));
}

/// The parameter of a layer. Throws ConfigError if the layer was default-constructed.
inline const Parameter& require_parameter(const char* layer, const Parameter* parameter) {
  if (parameter) return *parameter;
  raise<ConfigError>(
      "{}: the layer has no parameters, because it was default-constructed; expected a layer that "
      "was constructed with a parent module; assign such a layer to it before the first call",
      layer);
}

inline void check_size(const char* layer, const std::string& name, const char* field,
                       int64_t size) {
  if (size < 1)
    raise<ConfigError>("{} '{}': {} is {}; expected 1 or more", layer, name, field, size);
}

/// The input of a layer that a hook or a pipeline stage gives. A constant, which may be of no tape,
/// becomes one of this tape.
inline Var on_tape(const Tape& tape, const Var& x) {
  return !x || x.needs_gradient() ? x : tape.constant(x.value());
}

/// The value of an optional parameter; absent if the layer has none.
inline Var value_of(const Tape& tape, const Parameter* parameter) {
  return parameter ? tape.parameter(*parameter) : Var();
}

/// The Var that a hook returns for the hidden state x of a layer, on the tape; x without a hook.
/// Throws ShapeError for another shape than that of x.
Var hooked(const Tape& tape, const BlockHook& hook, int64_t layer, const Var& x);

}  // namespace zg::nn
