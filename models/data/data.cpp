#include "zerograd/models/data/data.h"

#include "zerograd/runtime/error.h"

namespace zg::models {

std::vector<int32_t> Dataset::encode(const std::string&) const {
  throw ConfigError("encode: this dataset has no characters; use one made by text_dataset");
}

std::string Dataset::decode(const std::vector<int32_t>&) const {
  throw ConfigError("decode: this dataset has no characters; use one made by text_dataset");
}

Batch Dataset::batch(Split split, int64_t first_sample, int64_t samples,
                     const Device& device) const {
  if (first_sample < 0 || samples < 1)
    throw ConfigError("batch: expected samples from 0 and at least one, got " +
                      std::to_string(samples) + " from " + std::to_string(first_sample));
  if (epoch_samples(split) == 0)
    throw ConfigError("batch: the data has no validation split; try a validation fraction above 0");
  const int64_t T = block_size();
  if (device.type() == Device::Type::meta)
    return {.ids = Tensor::empty({samples, T}, DType::i32, device),
            .targets = Tensor::empty({samples, T}, DType::i32, device)};
  std::vector<int32_t> ids(static_cast<size_t>(samples * T)), targets(ids.size());
  for (int64_t i = 0; i < samples; ++i)
    sample(split, first_sample + i, ids.data() + i * T, targets.data() + i * T);
  return {.ids = Tensor::from(ids, {samples, T}, device),
          .targets = Tensor::from(targets, {samples, T}, device)};
}

}  // namespace zg::models
