#include "zerograd/zero/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/optimizer/whole_update.h"

namespace zg::zero {
namespace {

constexpr double linear = 3.4445, cubic = -4.775, quintic = 2.0315;
constexpr int iterations = 5;
constexpr double smallest_norm = 1e-7;

/// Computes c, which is symmetric and whose rows follow each other. On a CPU the elements before
/// the diagonal blocks are copies; accelerators would lose more time by the launches than they
/// save.
void symmetric_matmul(const Matmul& whole, Stream& stream) {
  constexpr int64_t parts = 4, fewest_rows = 96;
  const int64_t side = whole.M;
  const bool has_parts = whole.c.device().traits().backend == Device::Type::cpu;
  const int64_t step = has_parts ? std::max((side + parts - 1) / parts, fewest_rows) : side;
  const auto from = [](const Tensor& x, int64_t element) {
    return x.flat(element, x.numel() - element);
  };
  for (int64_t first = 0; first < side; first += step) {
    const int64_t height = std::min(step, side - first), width = side - first;
    Matmul part = whole;
    part.M = height;
    part.N = width;
    part.lda = whole.transpose_a ? side : whole.K;
    part.ldb = whole.transpose_b ? whole.K : side;
    part.ldc = side;
    part.a = from(whole.a, whole.transpose_a ? first : first * part.lda);
    part.b = from(whole.b, whole.transpose_b ? first * part.ldb : first);
    part.c = from(whole.c, first * side + first);
    kernels::matmul(part, stream);
    if (width == height) continue;
    kernels::strided_copy({.x = part.c,
                           .y = part.c,
                           .extents = {width - height, height},
                           .x_strides = {1, side},
                           .y_strides = {side, 1},
                           .x_offset = height,
                           .y_offset = height * side},
                          stream);
  }
}

/// The update of one storage's matrices.
class MatrixUpdate {
 public:
  MatrixUpdate(const MuonOptions& options, const GatheredOptimizer::Update& update)
      : options_(options),
        storage_(update.storage),
        step_(update.step),
        config_(update.config),
        device_(update.device),
        comm_(update.comm) {}

  /// Updates the first moments. sgd's kernel adds the momentum, as its direction, to zeros.
  void write_directions(const WholeRule::Chunk& chunk) const {
    if (step_.skipped) return;
    const double momentum = options_.momentum;
    kernels::optimizer_update(
        {.tensors = {{.parameter = chunk.direction,
                      .gradient = chunk.gradient,
                      .moment1 = chunk.state}},
         .rule = UpdateRule::sgd,
         .gradient_scale = static_cast<float>(step_.gradient_scale * (1.0 - momentum)),
         .rate = -1.0f,
         .beta1 = options_.momentum,
         .nesterov = options_.nesterov,
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
                      rate_factor(options_.rate, parameter.shape[0], parameter.shape[1]),
                      device_.compute(), config_.compute);
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

  const MuonOptions& options_;
  const Storage& storage_;
  const OptimizerStep& step_;
  const Config& config_;
  const Device device_;
  Communicator& comm_;
};

class Muon final : public GatheredOptimizer {
 public:
  Muon(const MuonOptions& options, std::shared_ptr<const Optimizer> others)
      : options_(options), others_(std::move(others)) {}
  std::string name() const override { return "muon"; }
  std::vector<State> states() const override { return {{.name = "moment1"}}; }
  std::map<std::string, double> options() const override {
    return {{"momentum", options_.momentum},
            {"nesterov", options_.nesterov},
            {"match_rms_adamw", options_.rate == MuonRate::match_rms_adamw}};
  }
  bool updates(const Parameter& parameter) const override {
    return parameter.hidden_matrix && parameter.shape.numel() > 0;
  }
  std::shared_ptr<const Optimizer> others() const override { return others_; }
  void update_gathered(const Update& update) const override {
    const MatrixUpdate matrices(options_, update);
    const Parameter& first = *whole_pieces(update.storage.trainable.flat).front().parameter;
    update_whole(
        update,
        {.directions = update.config.optimizer,
         .state = first_state_lane + update.storage.optimizers->of(first).arrays.front(),
         .direct = [&](const WholeRule::Chunk& chunk) { matrices.write_directions(chunk); },
         .make_steps = [&](const Tensor& directions) { matrices.make_orthogonal(directions); }});
  }

 private:
  const MuonOptions options_;
  const std::shared_ptr<const Optimizer> others_;
};

}  // namespace

std::shared_ptr<const Optimizer> muon(const MuonOptions& options, const AdamOptions& adam) {
  AdamOptions others = adam;
  others.rate *= options.adam_rate;
  return std::make_shared<Muon>(options, zero::adam(others));
}

double rate_factor(MuonRate rate, int64_t rows, int64_t columns) {
  const double height = static_cast<double>(rows), width = static_cast<double>(columns);
  return rate == MuonRate::original ? std::sqrt(std::max(1.0, height / width))
                                    : 0.2 * std::sqrt(std::max(height, width));
}

void orthogonalise(const Tensor& matrix, double norm, double factor, Stream& stream,
                   DType compute) {
  const Device& device = matrix.device();
  const PurposeScope purpose(device, Purpose::workspace);
  const NameScope name(device, "Newton-Schulz");
  const TraceSpan span(stream, "Newton-Schulz",
                       Trace::Kind::kernel);  // its products are not a pass
  const int64_t rows = matrix.extent(0), columns = matrix.extent(1);
  const bool tall = rows > columns;
  const int64_t side = std::min(rows, columns), length = std::max(rows, columns);
  const DType dtype = compute == DType::bf16 ? DType::bf16 : DType::f32;
  Tensor x = Tensor::empty({rows, columns}, dtype, device);
  Tensor next = Tensor::empty({rows, columns}, dtype, device);
  const Tensor gram = Tensor::empty({side, side}, dtype, device);
  const Tensor polynomial = Tensor::empty({side, side}, dtype, device);
  kernels::axpby({.x = matrix, .y = x, .a = 1.0 / std::max(norm, smallest_norm), .b = 0.0}, stream);
  for (int i = 0; i < iterations; ++i) {
    symmetric_matmul({.a = x,
                      .b = x,
                      .c = gram,
                      .M = side,
                      .N = side,
                      .K = length,
                      .transpose_a = tall,
                      .transpose_b = !tall},
                     stream);
    symmetric_matmul({.a = gram, .b = gram, .c = polynomial, .M = side, .N = side, .K = side},
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

}  // namespace zg::zero
