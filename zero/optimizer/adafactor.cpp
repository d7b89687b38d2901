#include "zerograd/zero/optimizer/adafactor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/optimizer/whole_update.h"

namespace zg::zero {
namespace {

/// Exact sums of squares, one for each of some parameters.
class Squares {
 public:
  Squares(size_t count, const Device& device, Space space, Stream& stream)
      : count_(static_cast<int64_t>(count)) {
    const PurposeScope purpose(device, Purpose::workspace);
    const NameScope name(device, "sums of squares");
    limbs_ = Tensor::empty({count_ * limb_count + 1}, DType::i64, device, space);
    fill_zero(limbs_, stream);
  }

  /// Adds the elements of x, a multiple of 16 of them, to a sum.
  void add(size_t index, const Tensor& x, Stream& stream) const {
    kernels::sum_of_squares(
        {.parts = {{.x = x,
                    .limbs = limbs_.flat(static_cast<int64_t>(index) * limb_count, limb_count),
                    .non_finite = limbs_.flat(count_ * limb_count, 1)}}},
        stream);
  }

  std::vector<int64_t> limbs() const { return limbs_.to_host<int64_t>(); }

  static double value(const std::vector<int64_t>& limbs, size_t index) {
    return value_of_limbs(limbs.data() + static_cast<int64_t>(index) * limb_count);
  }

 private:
  static constexpr int64_t limb_count = SumOfSquares::limb_count;
  const int64_t count_;
  Tensor limbs_;  // of each sum; then the number of infinities and NaN, which is not used
};

void mean(const Tensor& x, const Tensor& y, uint32_t axes, Stream& stream) {
  kernels::reduce({.op = ReduceOp::mean, .x = x, .y = y, .axes = axes}, stream);
}
void root(const Tensor& x, const Tensor& y, Stream& stream) {
  kernels::unary({.op = UnaryOp::sqrt, .x = x, .y = y}, stream);
}

constexpr uint32_t axis0 = 1, axis1 = 2;

/// The update of one storage.
class FactoredUpdate {
 public:
  FactoredUpdate(const AdafactorOptions& options, const GatheredOptimizer::Update& update)
      : options_(options),
        storage_(update.storage),
        step_(update.step),
        config_(update.config),
        device_(update.device),
        comm_(update.comm),
        pieces_(whole_pieces(storage_.trainable.flat)),
        host_(device_),
        by_host_(is_updated_by_host(storage_)),
        squares_of_masters_(pieces_.size(), device_, by_host_ ? host_space(device_) : Space::device,
                            by_host_ ? static_cast<Stream&>(host_) : device_.compute()) {}

  /// The direction is the gradient of the whole step in f32. sgd's kernel adds it to zeros.
  void write_directions(const WholeRule::Chunk& chunk) const {
    const int64_t first = storage_.state_begin + chunk.begin;
    const int64_t numel = chunk.direction.numel();
    for (const FlatUnit::Piece& piece : storage_.trainable.flat.within(first, first + numel))
      // The padding after a parameter is zero.
      squares_of_masters_.add(index_of_(*piece.parameter),
                              chunk.state.flat(piece.begin, FlatUnit::aligned(piece.numel())),
                              chunk.stream);
    if (step_.skipped) return;
    kernels::optimizer_update(
        {.tensors = {{.parameter = chunk.direction, .gradient = chunk.gradient}},
         .rule = UpdateRule::sgd,
         .gradient_scale = step_.gradient_scale,
         .rate = -1.0f},
        chunk.stream);
  }

  void make_steps(const Tensor& gradients) const {
    Stream& stream = device_.compute();
    const std::vector<int64_t> of_masters = limbs_of_masters();
    const TraceSpan span(stream, "factored moments", Trace::Kind::kernel);
    const PurposeScope purpose(device_, Purpose::workspace);
    const NameScope name(device_, storage_.name + " second moments");
    const Squares squares(pieces_.size(), device_, Space::device, stream);
    const Tensor epsilon = Tensor::full({1}, options_.epsilon1, DType::f32, device_);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const FlatUnit::Piece& piece = pieces_[i];
      const Tensor gradient = gradients.flat(piece.begin, piece.numel());
      const Tensor root_of_v = Tensor::empty({piece.numel()}, DType::f32, device_);
      const Tensor factors = factors_of(*piece.parameter);
      if (piece.parameter->shape.rank() == 2)
        update_matrix(gradient.view(piece.parameter->shape), factors, epsilon,
                      root_of_v.view(piece.parameter->shape));
      else
        update_vector(gradient, factors, root_of_v);
      kernels::binary({BinaryOp::maximum, root_of_v, epsilon, root_of_v}, stream);
      kernels::binary({BinaryOp::divide, gradient, root_of_v, gradient}, stream);
      squares.add(i, gradients.flat(piece.begin, FlatUnit::aligned(piece.numel())), stream);
    }
    scale(gradients, of_masters, squares.limbs());
  }

 private:
  /// The second moments of a parameter.
  Tensor factors_of(const Parameter& parameter) const {
    return storage_.shaped(storage_.optimizers->of(parameter).arrays.front(), parameter);
  }
  /// The sums of squares of the whole masters.
  std::vector<int64_t> limbs_of_masters() const {
    const std::vector<int64_t> own = squares_of_masters_.limbs();
    if (storage_.state_numel == storage_.trainable.flat.padded) return own;
    const PurposeScope purpose(device_, Purpose::comm);
    const Tensor all = Tensor::from(own, {std::ssize(own)}, device_);
    comm_.wait(comm_.all_reduce(all, storage_.name + " squares of masters"));
    return all.to_host<int64_t>();
  }

  /// The weight of the new gradient in a second moment; 0 in a skipped step.
  double weight() const {
    const auto step = static_cast<double>(step_.step);
    return step_.skipped ? 0.0 : portable::pow(step, double{options_.beta2_decay});
  }
  void average(const Tensor& squares, const Tensor& moment) const {
    kernels::axpby({.x = squares, .y = moment, .a = weight(), .b = 1.0 - weight()},
                   device_.compute());
  }

  /// Updates the factors and computes the root of v as the product of the roots of its factors.
  void update_matrix(const Tensor& gradient, const Tensor& factors, const Tensor& epsilon,
                     const Tensor& root_of_v) const {
    Stream& stream = device_.compute();
    const int64_t row_count = gradient.extent(0), column_count = gradient.extent(1);
    const Tensor rows = factors.flat(0, row_count).view({row_count, 1});
    const Tensor columns = factors.flat(row_count, column_count).view({1, column_count});
    const Tensor of_rows = Tensor::empty(rows.shape(), DType::f32, device_);
    const Tensor of_columns = Tensor::empty(columns.shape(), DType::f32, device_);
    const Tensor mean_of_rows = Tensor::empty({1, 1}, DType::f32, device_);
    const Tensor& squares = root_of_v;
    kernels::binary({BinaryOp::multiply, gradient, gradient, squares}, stream);
    mean(squares, of_rows, axis1, stream);
    mean(squares, of_columns, axis0, stream);
    average(of_rows, rows);
    average(of_columns, columns);
    mean(rows, mean_of_rows, axis0, stream);
    kernels::binary({BinaryOp::maximum, mean_of_rows, epsilon, mean_of_rows}, stream);
    kernels::binary({BinaryOp::divide, rows, mean_of_rows, of_rows}, stream);
    root(of_rows, of_rows, stream);
    root(columns, of_columns, stream);
    kernels::binary({BinaryOp::multiply, of_rows, of_columns, root_of_v}, stream);
  }

  void update_vector(const Tensor& gradient, const Tensor& moment, const Tensor& root_of_v) const {
    const Tensor& squares = root_of_v;
    kernels::binary({BinaryOp::multiply, gradient, gradient, squares}, device_.compute());
    average(squares, moment);
    root(moment, root_of_v, device_.compute());
  }

  /// Makes steps of the updates u, whose sums of squares are given.
  void scale(const Tensor& updates, const std::vector<int64_t>& of_masters,
             const std::vector<int64_t>& of_updates) const {
    std::vector<float> factors(pieces_.size());
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const FlatUnit::Piece& piece = pieces_[i];
      const auto rms = [&](const std::vector<int64_t>& limbs) {
        return std::sqrt(Squares::value(limbs, i) / static_cast<double>(piece.numel()));
      };
      const double rate =
          double{step_.rate} * numbers_of(config_.update, *piece.parameter).rate_factor;
      const double times_root = rate * std::sqrt(static_cast<double>(step_.step));
      const double size = std::max<double>(options_.epsilon2, rms(of_masters)) /
                          std::max(1.0, times_root);  // without the rate, which sgd multiplies by
      factors[i] = static_cast<float>(size / std::max(1.0, rms(of_updates) / options_.clip));
    }
    const Tensor all = Tensor::from(factors, {std::ssize(factors)}, device_);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Tensor step = updates.flat(pieces_[i].begin, pieces_[i].numel());
      kernels::binary({BinaryOp::multiply, step, all.flat(static_cast<int64_t>(i), 1), step},
                      device_.compute());
    }
  }

  const AdafactorOptions& options_;
  const Storage& storage_;
  const OptimizerStep& step_;
  const Config& config_;
  const Device device_;
  Communicator& comm_;
  const std::vector<FlatUnit::Piece> pieces_;
  const PieceIndex index_of_{pieces_};
  HostStream host_;
  const bool by_host_;
  const Squares squares_of_masters_;  // of this rank's shard
};

/// The shape of the second moments: those of rows, then of columns; of a vector, those of elements.
Shape factors_shape(const Shape& shape) {
  const bool factored = shape.rank() == 2 && shape.numel() > 0;
  return factored ? Shape{shape[0] + shape[1]} : shape;
}

class Adafactor final : public GatheredOptimizer {
 public:
  explicit Adafactor(const AdafactorOptions& options) : options_(options) {}
  std::string name() const override { return "adafactor"; }
  std::vector<State> states() const override {
    return {{.name = "moment2", .shape = factors_shape}};
  }
  std::map<std::string, double> options() const override {
    return {{"beta2_decay", options_.beta2_decay},
            {"epsilon1", options_.epsilon1},
            {"epsilon2", options_.epsilon2},
            {"clip", options_.clip}};
  }
  bool updates(const Parameter& parameter) const override { return parameter.shape.rank() <= 2; }
  void update_gathered(const Update& update) const override {
    const FactoredUpdate factored(options_, update);
    update_whole(
        update, {.directions = DType::f32,
                 .state = masters_lane,
                 .direct = [&](const WholeRule::Chunk& chunk) { factored.write_directions(chunk); },
                 .make_steps = [&](const Tensor& directions) { factored.make_steps(directions); }});
  }

 private:
  const AdafactorOptions options_;
};

}  // namespace

std::shared_ptr<const Optimizer> adafactor(const AdafactorOptions& options) {
  return std::make_shared<Adafactor>(options);
}

}  // namespace zg::zero
