#pragma once

#include <vector>

#include "tests/models/gpt/gpt_case.h"
#include "zerograd/models/hugging_face/hugging_face.h"

namespace zg::testing {

/// Gives the model, made with the folder's config, the folder's weights.
inline void load_folder(const models::HuggingFaceFolder& folder, GPTCase& model) {
  const WeightSource weights = folder.weights(model.gpt.config());
  for (const auto& parameter : model.store.parameters()) {
    const std::vector<float> values = weights.read(parameter->name);
    model.source.at_rest(*parameter).assign(values.begin(), values.end());
  }
}

}  // namespace zg::testing
