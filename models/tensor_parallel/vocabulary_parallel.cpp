#include <algorithm>
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
    const Var share = constant((vocabulary + parallel.size() - 1) / parallel.size());
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

/// Computes this rank's logits in blocks of rows, and from them the loss and the gradients.
class LossOfRank {
 public:
  // Ignored targets are mapped to this value, which is never an id.
  static constexpr int64_t ignored = std::numeric_limits<int32_t>::min();

  /// The weight has this rank's rows of the vocabulary.
  LossOfRank(const ProjectionCrossEntropy& args, int64_t vocabulary, const TensorParallel& parallel)
      : args_(args),
        comm_(*parallel.ranks),
        stream_(args.x.device().compute()),
        N_(args.x.extent(0)),
        C_(args.x.extent(1)),
        columns_(args.weight.extent(0)) {
    // The width of a block, which is the same on all ranks because they exchange data after every
    // block. A target owned by another rank maps to an extra column; there is at least one. The
    // width is a multiple of the matmul kernels' register tiles.
    constexpr int64_t step = 64;
    const int64_t share = (vocabulary + parallel.size() - 1) / parallel.size();
    width_ = (share + step) / step * step;
    const int64_t most = std::max<int64_t>(LogitLimits::for_caches().gradient_elements / width_, 1);
    const int64_t blocks = std::max<int64_t>((N_ + most - 1) / most, 1);
    rows_ = (N_ + blocks - 1) / blocks;

    const Places places(args.targets, vocabulary, parallel);
    const auto constant = [&](int64_t value) {
      return number(static_cast<double>(value), args.targets);
    };
    const Var target(args.targets), nowhere = constant(width_ - 1), none = constant(0);
    const Var is_ignored = equal(target, constant(args.ignore_index));
    // A target outside the vocabulary stays out of range, so that the kernel rejects it.
    const Var outside = where(less(target, none), target, maximum(target, constant(width_)));
    const Var inside = where(places.is_own, places.row, nowhere);
    columns_of_targets_ =
        where(is_ignored, constant(ignored), where(places.exists, inside, outside)).value();
    is_own_ = places.is_own.value();
    is_ignored_ = is_ignored.value();
  }

  void run() {
    if (N_ == 0 && args_.dweight) fill_zero(args_.dweight, stream_);
    const PurposeScope purpose(args_.x.device(), Purpose::workspace);
    const NameScope name(args_.x.device(), "logits of a rank");
    const DType sums = args_.loss.dtype(), products = args_.x.dtype();
    const Tensor memory = Tensor::empty({rows_, width_}, sums, args_.x.device());
    const bool narrow = (args_.dx || args_.dweight) && sums != products;
    const Tensor narrow_memory =
        narrow ? Tensor::empty({rows_, width_}, products, args_.x.device()) : Tensor();
    for (int64_t begin = 0; begin < N_; begin += rows_) {
      const Rows rows{begin, std::min(rows_, N_ - begin)};
      const Tensor logits = memory.slice(0, rows.count);
      make_logits(rows, logits);
      const Tensor log_sum = finish_loss(rows, logits);
      if (args_.dx || args_.dweight)
        make_gradients(rows, logits, log_sum, narrow ? narrow_memory.slice(0, rows.count) : logits);
    }
  }

 private:
  struct Rows {
    int64_t begin, count;
    Tensor of(const Tensor& x) const { return x.slice(begin, begin + count); }
  };

  void make_logits(const Rows& rows, const Tensor& logits) const {
    if (columns_ > 0)
      kernels::matmul({.a = rows.of(args_.x),
                       .b = args_.weight,
                       .c = logits,
                       .M = rows.count,
                       .N = columns_,
                       .K = C_,
                       .transpose_b = true,
                       .ldc = width_},
                      stream_);
    // The extra columns get a logit whose exponential is 0.
    const Tensor padding_logit = Tensor::full({}, -1e30, logits.dtype(), logits.device());
    kernels::strided_copy({.x = padding_logit,
                           .y = logits,
                           .extents = {rows.count, width_ - columns_},
                           .y_strides = {width_, 1},
                           .y_offset = columns_},
                          stream_);
  }

  /// Reduces the log-sum-exp over all ranks and writes the loss.
  Tensor finish_loss(const Rows& rows, const Tensor& logits) const {
    const Tensor own = empty_like(args_.loss, {2, rows.count});
    const Tensor log_sum = own.slice(0, 1).view({rows.count});
    const Tensor loss = empty_like(log_sum);
    kernels::cross_entropy_forward({.logits = logits,
                                    .targets = rows.of(columns_of_targets_),
                                    .loss = loss,
                                    .log_sum = log_sum,
                                    .ignore_index = ignored},
                                   stream_);
    // On the owner of the target: minus the target's logit. On other ranks: 0.
    const Var target = where(Var(rows.of(is_own_)), sub(Var(loss), Var(log_sum)), number(0, loss));
    copy(target.value(), own.slice(1, 2).view({rows.count}), stream_);

    const Tensor all = empty_like(own, {comm_.size(), 2, rows.count});
    comm_.wait(comm_.all_gather(own, all, "log-sum-exp of the vocabulary"));
    const Var log_sums = slice(Var(all), 1, 0, 1), targets = slice(Var(all), 1, 1, 2);
    const Var most = max(log_sums, {0}, /*keep_axes=*/true);
    const Var total =
        reshape(add(log(sum(exp(sub(log_sums, most)), {0}, true)), most), {rows.count});
    const Var sums = add(total, reshape(sum(targets, {0}), {rows.count}));
    copy(where(Var(rows.of(is_ignored_)), number(0, loss), sums).value(), rows.of(args_.loss),
         stream_);
    return total.value();
  }

  /// `narrow`: memory for the gradient of the logits in x's dtype; may alias `logits`.
  void make_gradients(const Rows& rows, const Tensor& logits, const Tensor& log_sum,
                      const Tensor& narrow) const {
    kernels::cross_entropy_backward({.logits = logits,
                                     .targets = rows.of(columns_of_targets_),
                                     .log_sum = log_sum,
                                     .dloss = Tensor::full({rows.count}, args_.gradient_factor,
                                                           log_sum.dtype(), log_sum.device()),
                                     .dlogits = logits,
                                     .ignore_index = ignored},
                                    stream_);
    if (narrow.dtype() != logits.dtype()) kernels::cast({logits, narrow}, stream_);
    if (args_.dx && columns_ == 0) fill_zero(rows.of(args_.dx), stream_);
    if (columns_ == 0) return;
    if (args_.dx)
      kernels::matmul({.a = narrow,
                       .b = args_.weight,
                       .c = rows.of(args_.dx),
                       .M = rows.count,
                       .N = C_,
                       .K = columns_,
                       .lda = width_},
                      stream_);
    if (args_.dweight)
      kernels::matmul({.a = narrow,
                       .b = rows.of(args_.x),
                       .c = args_.dweight,
                       .M = columns_,
                       .N = C_,
                       .K = rows.count,
                       .transpose_a = true,
                       .accumulate = rows.begin > 0,
                       .lda = width_},
                      stream_);
  }

  const ProjectionCrossEntropy args_;
  Communicator& comm_;
  Stream& stream_;
  const int64_t N_, C_, columns_;
  int64_t width_, rows_;  ///< shape of a block of logits
  Tensor columns_of_targets_, is_own_, is_ignored_;
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
  const int64_t share = (vocabulary + parallel.size() - 1) / parallel.size();
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
  if (parallel.size() == 1) return projection_cross_entropy(x, weight, targets, ignore_index);
  const Tensor matrix = operand(op, "weight", weight);
  const Var whole = parallel.enter(x);
  const Tensor values = floating_operand(op, "x", whole);
  check_alike(op, "x", values, "weight", matrix);
  if (matrix.extent(1) != values.extent(-1))
    refuse_shape(op, "weight", matrix.shape(), matrix.shape().with(1, values.extent(-1)).str());
  const Tensor wanted = flat_targets(op, "x", values, targets);
  return mean_of_projection(
      op, whole, weight,
      {.x = values, .weight = matrix, .targets = wanted, .ignore_index = ignore_index},
      [&](const ProjectionCrossEntropy& args) { LossOfRank(args, vocabulary, parallel).run(); });
}

}  // namespace zg::models
