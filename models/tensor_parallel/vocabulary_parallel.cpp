#include <algorithm>
#include <bit>
#include <limits>

#include "zerograd/autograd/collective.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/models/tensor_parallel/tensor_parallel.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

Var number(double value, const Tensor& like) {
  return Var(Tensor::full({}, value, like.dtype(), like.device()));
}

/// For each id of the whole vocabulary: whether this rank owns it, and its row. The tensors are
/// constants of the ids' shape and dtype.
struct Places {
  Var exists;  ///< whether the id is in the vocabulary
  Var is_own;  ///< whether this rank owns it
  Var row;     ///< its row on the rank that owns it

  Places(const Tensor& ids, int64_t vocabulary, const TensorParallel& parallel) {
    const auto constant = [&](int64_t value) { return number(static_cast<double>(value), ids); };
    const Var id(ids);
    const Var share = constant(parallel.group_extent(vocabulary) * parallel.own_groups());
    const Var owner = div(id, share);
    exists = equal(id, maximum(minimum(id, constant(vocabulary - 1)), constant(0)));
    is_own = equal(owner, constant(parallel.rank()));
    row = sub(id, mul(owner, share));
  }
};

void check_rows(const char* op, const Shape& weight, int64_t vocabulary,
                const TensorParallel& parallel) {
  const int64_t rows = rows_of_rank(vocabulary, parallel).count;
  if (weight.rank() != 2 || weight[0] != rows)
    refuse_shape(op, "weight", weight,
                 fmt::format("[{}, C]: the rows of rank {} of a vocabulary of {}", rows,
                             parallel.rank(), vocabulary));
}

/// Computes this rank's logits in blocks of rows, those of each of its groups alone, and from them
/// the loss and the gradients.
class LossOfRank {
 public:
  // Ignored targets are mapped to this value, which is never an id.
  static constexpr int64_t ignored = std::numeric_limits<int32_t>::min();

  /// The weight has this rank's rows of the vocabulary; x is of so many samples. With groups and
  /// sequence parallelism dx has this rank's tokens.
  LossOfRank(const ProjectionCrossEntropy& args, int64_t samples, int64_t vocabulary,
             const TensorParallel& parallel)
      : args_(args),
        parallel_(parallel),
        stream_(args.x.device().compute()),
        samples_(samples),
        N_(args.x.extent(0)),
        C_(args.x.extent(1)) {
    // The width of a block, which is the same for all groups because ranks exchange data after
    // every block. A target owned by another group maps to an extra column; there is at least one.
    // The width is a multiple of the matmul kernels' register tiles.
    constexpr int64_t step = 64;
    const int64_t share = parallel.group_extent(vocabulary);
    width_ = (share + step) / step * step;
    // With named groups the rows of a block do not depend on the number of ranks.
    const int64_t together = parallel.is_grouped() ? parallel.groups : 1;
    const int64_t most =
        std::max<int64_t>(LogitLimits::for_caches().gradient_elements / (width_ * together), 1);
    const int64_t blocks = std::max<int64_t>((N_ + most - 1) / most, 1);
    rows_ = (N_ + blocks - 1) / blocks;

    const auto constant = [&](int64_t value) {
      return number(static_cast<double>(value), args.targets);
    };
    const Var target(args.targets), nowhere = constant(width_ - 1), none = constant(0);
    const Var is_ignored = equal(target, constant(args.ignore_index));
    // A target outside the vocabulary stays out of range, so that the kernel rejects it.
    const Var outside = where(less(target, none), target, maximum(target, constant(width_)));
    const Var owner = div(target, constant(share)), row = sub(target, mul(owner, constant(share)));
    const Var exists =
        equal(target, maximum(minimum(target, constant(vocabulary - 1)), constant(0)));
    for (int64_t own = 0; own < parallel.own_groups(); ++own) {
      const int64_t first = std::min(own * share, args.weight.extent(0));
      Group group{.first = first, .columns = std::min(share, args.weight.extent(0) - first)};
      const Var is_own = equal(owner, constant(parallel.rank() * parallel.own_groups() + own));
      const Var inside = where(is_own, row, nowhere);
      group.columns_of_targets =
          where(is_ignored, constant(ignored), where(exists, inside, outside)).value();
      group.is_own = is_own.value();
      groups_.push_back(group);
    }
    is_ignored_ = is_ignored.value();
  }

  void run() {
    if (N_ == 0 && args_.dweight) fill_zero(args_.dweight, stream_);
    const PurposeScope purpose(args_.x.device(), Purpose::workspace);
    const NameScope name(args_.x.device(), "logits of a rank");
    const DType sums = args_.loss.dtype(), products = args_.x.dtype();
    const int64_t own = parallel_.own_groups();
    const Tensor memory = Tensor::empty({own, rows_, width_}, sums, args_.x.device());
    const bool narrow = (args_.dx || args_.dweight) && sums != products;
    const Tensor narrow_memory =
        narrow ? Tensor::empty({rows_, width_}, products, args_.x.device()) : Tensor();
    const bool meets = args_.dx && parallel_.is_grouped() && parallel_.size() > 1,
               scatters = meets && parallel_.sequence;
    dx_ = scatters ? empty_like(args_.dx, args_.x.shape()) : args_.dx;
    for (int64_t level = 1; dx_ && level < own; level *= 2)
      levels_.push_back(empty_like(dx_, {rows_, C_}));
    for (int64_t begin = 0; begin < N_; begin += rows_) {
      const Rows rows{begin, std::min(rows_, N_ - begin)};
      const auto logits = [&](int64_t group) {
        return memory.flat(group * rows_ * width_, rows.count * width_).view({rows.count, width_});
      };
      for (int64_t group = 0; group < own; ++group) make_logits(rows, group, logits(group));
      const Tensor log_sum = finish_loss(rows, logits);
      for (int64_t group = 0; (args_.dx || args_.dweight) && group < own; ++group)
        make_gradients(rows, group, logits(group), log_sum,
                       narrow ? narrow_memory.slice(0, rows.count) : logits(group));
    }
    if (meets)
      copy(tree_sum(dx_.view({samples_, N_ / std::max<int64_t>(samples_, 1), C_}),
                    {.name = "gradient of the head's input",
                     .ranks = parallel_.ranks,
                     .dtype = dx_.dtype(),
                     .axis = scatters ? 1 : -1})
               .view(args_.dx.shape()),
           args_.dx, stream_);
  }

 private:
  /// Rows [first, first + columns) of the weight.
  struct Group {
    int64_t first, columns;
    Tensor columns_of_targets = {}, is_own = {};
    Tensor of(const Tensor& weight) const { return weight.slice(first, first + columns); }
  };
  struct Rows {
    int64_t begin, count;
    Tensor of(const Tensor& x) const { return x.slice(begin, begin + count); }
  };
  const Group& group_at(int64_t index) const { return groups_[static_cast<size_t>(index)]; }

  void make_logits(const Rows& rows, int64_t index, const Tensor& logits) const {
    const Group& group = group_at(index);
    if (group.columns > 0)
      kernels::matmul({.a = rows.of(args_.x),
                       .b = group.of(args_.weight),
                       .c = logits,
                       .M = rows.count,
                       .N = group.columns,
                       .K = C_,
                       .transpose_b = true,
                       .ldc = width_},
                      stream_);
    // The extra columns get a logit whose exponential is 0.
    const Tensor padding_logit = Tensor::full({}, -1e30, logits.dtype(), logits.device());
    kernels::strided_copy({.x = padding_logit,
                           .y = logits,
                           .extents = {rows.count, width_ - group.columns},
                           .y_strides = {width_, 1},
                           .y_offset = group.columns},
                          stream_);
  }

  /// Reduces the log-sum-exp over all groups and writes the loss.
  template <class Logits>
  Tensor finish_loss(const Rows& rows, const Logits& logits) const {
    const int64_t own_groups = parallel_.own_groups();
    const Tensor own = empty_like(args_.loss, {own_groups, 2, rows.count});
    for (int64_t index = 0; index < own_groups; ++index) {
      const Group& group = group_at(index);
      const auto part = [&](int64_t i) {
        return own.flat((2 * index + i) * rows.count, rows.count);
      };
      const Tensor log_sum = part(0), loss = empty_like(log_sum);
      kernels::cross_entropy_forward({.logits = logits(index),
                                      .targets = rows.of(group.columns_of_targets),
                                      .loss = loss,
                                      .log_sum = log_sum,
                                      .ignore_index = ignored},
                                     stream_);
      // In the group of the target: minus the target's logit. In other groups: 0.
      const Var target =
          where(Var(rows.of(group.is_own)), sub(Var(loss), Var(log_sum)), number(0, loss));
      copy(target.value(), part(1), stream_);
    }
    Tensor all = own;
    if (parallel_.size() > 1) {
      all = empty_like(own, {parallel_.group_count(), 2, rows.count});
      Communicator& comm = *parallel_.ranks;
      comm.wait(comm.all_gather(own, all, "log-sum-exp of the vocabulary"));
    }
    const Var log_sums = slice(Var(all), 1, 0, 1), targets = slice(Var(all), 1, 1, 2);
    const Var most = max(log_sums, {0}, /*keep_axes=*/true);
    const Var total =
        reshape(add(log(sum(exp(sub(log_sums, most)), {0}, true)), most), {rows.count});
    const Var sums = add(total, reshape(sum(targets, {0}), {rows.count}));
    copy(where(Var(rows.of(is_ignored_)), number(0, args_.loss), sums).value(), rows.of(args_.loss),
         stream_);
    return total.value();
  }

  /// `narrow`: memory for the gradient of the logits in x's dtype; may alias `logits`.
  void make_gradients(const Rows& rows, int64_t index, const Tensor& logits, const Tensor& log_sum,
                      const Tensor& narrow) const {
    const Group& group = group_at(index);
    kernels::cross_entropy_backward({.logits = logits,
                                     .targets = rows.of(group.columns_of_targets),
                                     .log_sum = log_sum,
                                     .dloss = Tensor::full({rows.count}, args_.gradient_factor,
                                                           log_sum.dtype(), log_sum.device()),
                                     .dlogits = logits,
                                     .ignore_index = ignored},
                                    stream_);
    if (narrow.dtype() != logits.dtype()) kernels::cast({logits, narrow}, stream_);
    if (args_.dx) add_to_tree(rows, index, narrow);
    if (args_.dweight && group.columns > 0)
      kernels::matmul({.a = narrow,
                       .b = rows.of(args_.x),
                       .c = group.of(args_.dweight),
                       .M = group.columns,
                       .N = C_,
                       .K = rows.count,
                       .transpose_a = true,
                       .accumulate = rows.begin > 0,
                       .lda = width_},
                      stream_);
  }

  /// A group's gradient of x joins those of the groups before it, as in a product's tree.
  void add_to_tree(const Rows& rows, int64_t index, const Tensor& dlogits) const {
    const Group& group = group_at(index);
    const auto waiting = static_cast<size_t>(std::countr_one(static_cast<uint64_t>(index)));
    const Tensor sum =
        waiting == levels_.size() ? rows.of(dx_) : levels_[waiting].slice(0, rows.count);
    if (group.columns == 0)
      fill_zero(sum, stream_);
    else
      kernels::matmul({.a = dlogits,
                       .b = group.of(args_.weight),
                       .c = sum,
                       .M = rows.count,
                       .N = C_,
                       .K = group.columns,
                       .lda = width_},
                      stream_);
    for (size_t level = 0; level < waiting; ++level)
      kernels::axpby({.x = levels_[level].slice(0, rows.count), .y = sum}, stream_);
  }

  const ProjectionCrossEntropy args_;
  const TensorParallel parallel_;
  Stream& stream_;
  const int64_t samples_, N_, C_;
  int64_t width_, rows_;  ///< shape of a block of a group's logits
  std::vector<Group> groups_;
  Tensor is_ignored_;
  Tensor dx_;                   ///< args_.dx, or the gradient of all tokens
  std::vector<Tensor> levels_;  ///< gradients of x of groups that wait for their neighbours
};

}  // namespace

Var parallel_embedding(const Tensor& ids, const Var& weight, int64_t vocabulary,
                       const TensorParallel& parallel) {
  const char* op = "parallel_embedding";
  check_index(op, "ids", ids);
  check_rows(op, weight.shape(), vocabulary, parallel);
  if (parallel.size() == 1) return embedding(ids, weight);
  const Tensor table = floating_operand(op, "weight", weight);
  if (ids.shape().rank() != 2) refuse_shape(op, "ids", ids.shape(), "rank 2: [B, T]");
  const Places places(ids, vocabulary, parallel);
  const Shape shape{ids.extent(0), ids.extent(1), table.extent(1)};
  // Zeros that depend on the weight, so that this rank takes part in the collectives of backward.
  if (table.extent(0) == 0)
    return parallel.leave(broadcast_to(sum(weight, {0}, /*keep_axes=*/true), shape));
  // For ids of other ranks the result of the lookup is masked, so any row may be read. Different
  // tokens read different rows, so that backward does not add all of them to the same row.
  const Var near = minimum(places.row, number(static_cast<double>(table.extent(0) - 1), ids));
  const Tensor rows = where(places.exists, near, Var(ids)).value();
  const Var own = reshape(places.is_own, {shape[0], shape[1], 1});
  return parallel.leave(where(own, embedding(rows, weight), number(0, table)));
}

Var join_vocabulary(const Var& logits, int64_t vocabulary, const TensorParallel& parallel) {
  if (parallel.size() == 1) return logits;
  const Tensor own = floating_operand("join_vocabulary", "logits", logits);
  const int64_t share = parallel.group_extent(vocabulary) * parallel.own_groups();
  const Shape missing = own.shape().with(-1, share - own.extent(-1));
  const Var parts[] = {logits, Var(Tensor::zeros(missing, own.dtype(), own.device()))};
  const Var equal_parts = missing[-1] > 0 ? concat(parts, -1) : logits;
  return slice(join_parts(equal_parts, -1, *parallel.ranks), -1, 0, vocabulary);
}

Var parallel_cross_entropy(const Var& logits, const Tensor& targets, int64_t vocabulary,
                           const TensorParallel& parallel, const CrossEntropyOptions& options) {
  if (parallel.size() == 1) return cross_entropy(logits, targets, options);
  const char* op = "parallel_cross_entropy";
  const Tensor own = floating_operand(op, "logits", logits);
  flat_targets(op, "logits", own, targets);
  check_label_smoothing(op, options.label_smoothing);
  const int64_t columns = rows_of_rank(vocabulary, parallel).count;
  if (own.extent(-1) != columns)
    refuse_shape(op, "logits", own.shape(),
                 fmt::format("[..., {}]: the columns of rank {} of a vocabulary of {}", columns,
                             parallel.rank(), vocabulary));
  // A rank without columns has one whose exponential is 0, so that its work is the others'.
  const Var wide = cast(logits, accumulator(own.dtype()));
  const Var x = columns > 0 ? wide : pad(wide, -1, 0, 1, -1e30);
  const DType sums = x.dtype();
  const Shape one_each = own.shape().with(-1, 1);
  const auto zero = [&](DType dtype) { return Var(Tensor::zeros({}, dtype, own.device())); };

  const Places places(targets, vocabulary, parallel);
  const Var target(targets);
  const Var is_ignored = equal(target, static_cast<double>(options.ignore_index));
  // The column on this rank; 0 for a target of another rank or an ignored one. A target outside the
  // vocabulary stays out of range, so that gather() rejects it.
  const Var inside = where(places.is_own, places.row, zero(targets.dtype()));
  const Var beyond = number(static_cast<double>(x.shape()[-1]), targets);
  const Var outside = where(less(target, 0.0), target, maximum(target, beyond));
  const Var column =
      where(is_ignored, zero(targets.dtype()), where(places.exists, inside, outside));
  const Var found = gather(x, -1, reshape(column, one_each).value());

  const Var log_sums = join_parts(logsumexp(x, {-1}, /*keep_axes=*/true), -1, *parallel.ranks);
  const Var log_sum = logsumexp(log_sums, {-1}, /*keep_axes=*/true);
  // The mean of the logits under the target's distribution, of which this rank has some terms.
  Var expected = mul(where(reshape(places.is_own, one_each), found, zero(sums)),
                     1.0 - options.label_smoothing);
  if (options.label_smoothing > 0.0 && columns > 0) {
    const Var share = mul(sum(x, {-1}, /*keep_axes=*/true),
                          options.label_smoothing / static_cast<double>(vocabulary));
    expected = add(expected, share);
  }
  expected = all_reduce(expected, *parallel.ranks);
  const Var losses = reshape(sub(log_sum, expected), targets.shape());
  return reduced_losses(masked_fill(losses, is_ignored, 0.0), targets, options);
}

Var parallel_projection_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                                      int64_t vocabulary, const TensorParallel& parallel,
                                      int64_t ignore_index) {
  const char* op = "parallel_projection_cross_entropy";
  check_rows(op, weight.shape(), vocabulary, parallel);
  if (parallel.size() == 1 && !parallel.is_grouped())
    return projection_cross_entropy(x, weight, targets, ignore_index);
  const Tensor matrix = operand(op, "weight", weight);
  // With groups the gradient of x is summed over the ranks before it is scaled.
  const Var whole = parallel.is_grouped() ? x : parallel.enter(x);
  Tensor values = floating_operand(op, "x", whole);
  if (parallel.is_grouped() && parallel.sequence && parallel.size() > 1)
    values = gathered(op, values, 1, *parallel.ranks);
  check_alike(op, "x", values, "weight", matrix);
  if (matrix.extent(1) != values.extent(-1))
    refuse_shape(op, "weight", matrix.shape(), matrix.shape().with(1, values.extent(-1)).str());
  const Tensor wanted = flat_targets(op, "x", values, targets);
  return mean_of_projection(
      op, whole, weight,
      {.x = values, .weight = matrix, .targets = wanted, .ignore_index = ignore_index},
      [&](const ProjectionCrossEntropy& args) {
        LossOfRank(args, values.extent(0), vocabulary, parallel).run();
      });
}

}  // namespace zg::models
