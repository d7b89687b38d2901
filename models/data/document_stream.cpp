#include "zerograd/models/data/document_stream.h"

#include <algorithm>

namespace zg::models {
namespace {

// Finding one walks over half of them: a microsecond or two beside a sample's reads.
constexpr int64_t stride = 64;

}  // namespace

DocumentStream::DocumentStream(const IndexedDataset& data, int64_t first, int64_t count,
                               std::optional<Permutation> order)
    : data_(&data), first_(first), count_(count), order_(order) {
  starts_.reserve(static_cast<size_t>(count / stride + 2));
  int64_t tokens = 0;
  for (int64_t place = 0; place < count; ++place) {
    if (place % stride == 0) starts_.push_back(tokens);
    tokens += data.size(sequence(place));
  }
  starts_.push_back(tokens);
}

void DocumentStream::read(int64_t begin, std::span<int32_t> tokens) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end() - 1, begin);
  int64_t place = (after - starts_.begin() - 1) * stride, start = *(after - 1);
  while (!tokens.empty()) {
    const int64_t document = sequence(place++), size = data_->size(document);
    if (begin < start + size) {
      const int64_t skipped = begin - start;
      const auto here = std::min(static_cast<size_t>(size - skipped), tokens.size());
      data_->read(document, skipped, tokens.first(here));
      tokens = tokens.subspan(here);
      begin += static_cast<int64_t>(here);
    }
    start += size;
  }
}

}  // namespace zg::models
