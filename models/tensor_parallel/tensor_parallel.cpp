#include "zerograd/models/tensor_parallel/tensor_parallel.h"

#include <algorithm>

#include "zerograd/autograd/collective.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr int token_axis = 1;

Var with_bias(const Var& x, const Var& bias) { return bias ? add(x, bias) : x; }

}  // namespace

Var TensorParallel::enter(const Var& x) const {
  if (size() == 1) return x;
  if (is_grouped()) return copy_to_ranks_by_tree(x, *ranks, sequence ? token_axis : -1);
  return sequence ? all_gather(x, token_axis, *ranks) : copy_to_ranks(x, *ranks);
}

Var TensorParallel::leave(const Var& x) const {
  if (size() == 1) return x;
  return sequence ? reduce_scatter(x, token_axis, *ranks) : all_reduce(x, *ranks);
}

std::vector<Var> TensorParallel::shared(std::span<const Var> parameters) const {
  if (size() == 1 || !sequence) return {parameters.begin(), parameters.end()};
  return copy_to_ranks(parameters, *ranks, is_grouped());
}

namespace {

/// The numbers of ranks that divide n: "1, 2, 4".
std::string divisors_of(int64_t n) {
  std::string divisors;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(d);
  return divisors;
}

}  // namespace

void require_divisor(const char* model, const char* what, int64_t count,
                     const TensorParallel& parallel) {
  if (count % parallel.group_count() != 0)
    raise<ConfigError>("{}: {}: expected a divisor of the {} {} ({}), got {}", model,
                       parallel.groups ? "reduction groups" : "tensor ranks", count, what,
                       divisors_of(count), parallel.group_count());
}

RankRows rows_of_rank(int64_t extent, const TensorParallel& parallel) {
  const int64_t share = parallel.group_extent(extent) * parallel.own_groups();
  const int64_t begin = std::min(extent, parallel.rank() * share);
  return {begin, std::min(share, extent - begin)};
}

namespace {

ParallelStore::Options resolved(ParallelStore::Options options, const LoraConfig& lora) {
  if (lora.enabled()) options.trainable = options.saved = false;
  return options;
}

}  // namespace

const Parameter& ParallelStore::whole(const Unit& unit, const std::string& name, const Shape& shape,
                                      Init init, Options options) const {
  options.copy = parallel.rank() > 0 ? Copy::replica : Copy::own;
  return store.add(unit, name, shape, init, resolved(options, lora));
}

const Parameter& ParallelStore::rows(const Unit& unit, const std::string& name, const Shape& shape,
                                     Init init, Options options, int64_t blocks) const {
  if (shape.rank() == 0 || shape[0] % blocks != 0)
    raise<ShapeError>("tensor parallel: '{}' {} has no {} equal blocks of rows", name, shape,
                      blocks);
  const int64_t extent = shape[0] / blocks;
  const auto [begin, count] = rows_of_rank(extent, parallel);
  options.whole = shape;
  options.slice = {.outer = blocks,
                   .extent = extent,
                   .begin = begin,
                   .rows = count,
                   .inner = shape.with(0, 1).numel(),
                   .groups = std::max(parallel.groups, 1)};
  return store.add(unit, name, shape.with(0, blocks * count), init, resolved(options, lora));
}

const Parameter& ParallelStore::columns(const Unit& unit, const std::string& name,
                                        const Shape& shape, Init init, Options options) const {
  if (shape.rank() != 2)
    raise<ShapeError>("tensor parallel: '{}' {} has no columns; expected rank 2: [out, in]", name,
                      shape);
  const auto [begin, count] = rows_of_rank(shape[1], parallel);
  options.whole = shape;
  options.slice = {.outer = shape[0],
                   .extent = shape[1],
                   .begin = begin,
                   .rows = count,
                   .groups = std::max(parallel.groups, 1)};
  return store.add(unit, name, {shape[0], count}, init, resolved(options, lora));
}

Var column_parallel_linear(const Var& x, const Var& weight, const Var& bias,
                           const TensorParallel& parallel, int64_t features) {
  if (!parallel.is_grouped()) return linear(parallel.enter(x), weight, bias);
  if (!features) features = weight.shape()[0] * parallel.size();
  const SplitWeight part{weight, bias, parallel.group_extent(features)};
  return split_linears(parallel.enter(x), {&part, 1}, parallel.own_groups())[0];
}

Var row_parallel_linear(const Var& x, const Var& weight, const Var& bias,
                        const TensorParallel& parallel) {
  if (parallel.size() == 1) return linear(x, weight, bias);
  return with_bias(parallel.leave(linear(x, weight)), bias);
}

Var parallel_feed_forward(const Var& x, const Var& fc_weight, const Var& fc_bias,
                          const Var& out_weight, const Var& out_bias,
                          const TensorParallel& parallel, Activation activation) {
  if (parallel.size() == 1)
    return feed_forward(x, fc_weight, fc_bias, out_weight, out_bias, activation);
  const Var whole = parallel.enter(x);
  return with_bias(
      parallel.leave(feed_forward(whole, fc_weight, fc_bias, out_weight, {}, activation)),
      out_bias);
}

}  // namespace zg::models
