#pragma once

#include "runtime/mesh.h"

namespace zg::models {

/// Which part of a model a rank has: of each layer what its tensor rank has.
struct GPTPart {
  const Mesh* mesh = nullptr;  ///< null: the whole model; it must outlive the model
  /// Between the split layers each tensor rank has its part of the tokens of loss().
  bool sequence_parallel = false;
};

}  // namespace zg::models
