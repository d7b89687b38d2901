#include "zerograd/zero/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/optimizer/whole_update.h"

namespace zg::zero {
namespace {

constexpr double linear = 3.4445, cubic = -4.775, quintic = 2.0315;
constexpr int iterations = 5;
constexpr double smallest_norm = 1e-7;

/// The update of one storage's matrices.
class MatrixUpdate {
 public:
  MatrixUpdate(const Storage& storage, const OptimizerStep& step, const Config& config,
               const Device& device, Communicator& comm)
      : storage_(storage), step_(step), config_(config), device_(device), comm_(comm) {}

  /// Updates the first moments. sgd's kernel adds the momentum, as its direction, to zeros.
  void write_directions(const WholeRule::Chunk& chunk) const {
    if (step_.skipped) return;
    const double momentum = config_.update.muon.momentum;
    kernels::optimizer_update(
        {.tensors = {{.parameter = chunk.direction,
                      .gradient = chunk.gradient,
                      .moment1 = chunk.state}},
         .rule = OptimizerRule::sgd,
         .gradient_scale = static_cast<float>(step_.gradient_scale * (1.0 - momentum)),
         .rate = -1.0f,
         .beta1 = config_.update.muon.momentum,
         .nesterov = config_.update.muon.nesterov,
         .step = step_.step},
        chunk.stream);
  }

  /// Replaces directions by steps. The owners work at the same time.
  void make_orthogonal(const Tensor& directions) const {
    const std::vector<FlatUnit::Piece> matrices = whole_pieces(storage_.trainable.flat);
    const std::vector<int> owners = owners_of_matrices(storage_.trainable.flat);
    const std::vector<double> norms = own_norms(directions, matrices, owners);
    std::optional<Communicator::Ticket> last;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Parameter& parameter = *matrices[i].parameter;
      const Tensor matrix = directions.flat(matrices[i].begin, matrices[i].numel());
      if (owners[i] == comm_.rank())
        orthogonalise(matrix.view(parameter.shape), norms[i],
                      rate_factor(config_.update.muon.rate, parameter.shape[0], parameter.shape[1]),
                      device_.compute());
      if (comm_.size() == 1) continue;
      const int64_t bucket = config_.allgather_bucket_size;
      for (int64_t begin = 0; begin < matrix.numel(); begin += bucket)
        last = comm_.broadcast(matrix.flat(begin, std::min(bucket, matrix.numel() - begin)),
                               owners[i], parameter.name + " step");
    }
    if (last) comm_.wait(*last);
  }

 private:
  /// The norms of the matrices that this rank owns, read from the device together; 0 for others.
  std::vector<double> own_norms(const Tensor& directions,
                                const std::vector<FlatUnit::Piece>& matrices,
                                const std::vector<int>& owners) const {
    constexpr int64_t limb_count = SumOfSquares::limb_count;
    std::vector<double> norms(matrices.size());
    const int64_t count = std::count(owners.begin(), owners.end(), comm_.rank());
    if (count == 0) return norms;
    const PurposeScope purpose(device_, Purpose::workspace);
    const NameScope name(device_, storage_.name + " norms");
    const Tensor totals = Tensor::zeros({count * limb_count + 1}, DType::i64, device_);
    int64_t row = 0;
    SumOfSquares all;
    for (size_t i = 0; i < matrices.size(); ++i)
      if (owners[i] == comm_.rank())
        // The padding after a matrix is zero.
        all.parts.push_back(
            {.x = directions.flat(matrices[i].begin, FlatUnit::aligned(matrices[i].numel())),
             .limbs = totals.flat(row++ * limb_count, limb_count),
             .non_finite = totals.flat(count * limb_count, 1)});
    kernels::sum_of_squares(all, device_.compute());
    const std::vector<int64_t> limbs = totals.to_host<int64_t>();
    row = 0;
    for (size_t i = 0; i < matrices.size(); ++i)
      if (owners[i] == comm_.rank())
        norms[i] = std::sqrt(value_of_limbs(limbs.data() + row++ * limb_count));
    return norms;
  }

  const Storage& storage_;
  const OptimizerStep& step_;
  const Config& config_;
  const Device device_;
  Communicator& comm_;
};

}  // namespace

void check_matrices(const ParameterStore& store, const Config& config) {
  for (const auto& parameter : store.parameters())
    if (is_muon_matrix(*parameter, config.update) && !parameter->slice.is_whole())
      throw Unsupported(fmt::format(
          "engine: the optimizer is muon, and tensor ranks divide the matrix '{}' {}: this one has "
          "{}; expected whole matrices; try --tensor-parallel 1, or data and pipeline ranks",
          parameter->name, parameter->whole, parameter->shape));
}

double rate_factor(MuonRate rate, int64_t rows, int64_t columns) {
  const double height = static_cast<double>(rows), width = static_cast<double>(columns);
  return rate == MuonRate::original ? std::sqrt(std::max(1.0, height / width))
                                    : 0.2 * std::sqrt(std::max(height, width));
}

void orthogonalise(const Tensor& matrix, double norm, double factor, Stream& stream) {
  const Device& device = matrix.device();
  const PurposeScope purpose(device, Purpose::workspace);
  const NameScope name(device, "Newton-Schulz");
  const TraceSpan span(stream, "Newton-Schulz",
                       Trace::Kind::kernel);  // its products are not a pass
  const int64_t rows = matrix.extent(0), columns = matrix.extent(1);
  const bool tall = rows > columns;
  const int64_t side = std::min(rows, columns), length = std::max(rows, columns);
  Tensor x = Tensor::empty({rows, columns}, DType::f32, device);
  Tensor next = Tensor::empty({rows, columns}, DType::f32, device);
  const Tensor gram = Tensor::empty({side, side}, DType::f32, device);
  const Tensor polynomial = Tensor::empty({side, side}, DType::f32, device);
  kernels::axpby({.x = matrix, .y = x, .a = 1.0 / std::max(norm, smallest_norm), .b = 0.0}, stream);
  for (int i = 0; i < iterations; ++i) {
    kernels::matmul({.a = x,
                     .b = x,
                     .c = gram,
                     .M = side,
                     .N = side,
                     .K = length,
                     .transpose_a = tall,
                     .transpose_b = !tall},
                    stream);
    kernels::matmul({.a = gram, .b = gram, .c = polynomial, .M = side, .N = side, .K = side},
                    stream);
    kernels::axpby({.x = gram, .y = polynomial, .a = cubic, .b = quintic}, stream);
    kernels::matmul({.a = tall ? x : polynomial,
                     .b = tall ? polynomial : x,
                     .c = next,
                     .M = rows,
                     .N = columns,
                     .K = side},
                    stream);
    kernels::axpby({.x = x, .y = next, .a = linear, .b = 1.0}, stream);
    std::swap(x, next);
  }
  kernels::axpby({.x = x, .y = matrix, .a = factor, .b = 0.0}, stream);
}

std::vector<int> owners_of_matrices(const FlatUnit& flat) {
  std::vector<double> work;
  for (const FlatUnit::Piece& piece : whole_pieces(flat)) {
    const Shape& shape = piece.parameter->shape;
    work.push_back(static_cast<double>(shape.numel()) *
                   static_cast<double>(std::min(shape[0], shape[1])));
  }
  std::vector<size_t> order(work.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return work[a] > work[b]; });
  std::vector<double> loads(static_cast<size_t>(flat.world));
  std::vector<int> owners(work.size());
  for (const size_t matrix : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += work[matrix];
    owners[matrix] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

void update_matrices(Storage& storage, const Tensor& all_sums, const OptimizerStep& step,
                     const Config& config, const Device& device, Communicator& comm) {
  const MatrixUpdate update(storage, step, config, device, comm);
  update_whole(
      storage, all_sums,
      {.directions = config.optimizer,
       .state = moment1,
       .direct = [&](const WholeRule::Chunk& chunk) { update.write_directions(chunk); },
       .make_steps = [&](const Tensor& directions) { update.make_orthogonal(directions); }},
      step, config, device, comm);
}

}  // namespace zg::zero
