#include <optional>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

struct EmbeddingNumbers {
  int64_t T = 0, first_position = 0, C = 0;
};

void check_positions(const Tensor& weight, const Tensor& position, const EmbeddingNumbers& n) {
  check_alike("embedding", "weight", weight, "position", position);
  if (position.shape().rank() != 2 || position.extent(1) != n.C)
    refuse_shape("embedding", "position", position.shape(), fmt::format("[P, {}]", n.C));
  if (n.first_position < 0 || n.first_position > position.extent(0) - n.T)
    raise<ShapeError>(
        "embedding: position {} has no {} rows from {}; expected a longer table or fewer tokens",
        position.shape(), n.T, n.first_position);
}

void backward_of_embedding(const EmbeddingNumbers& n, const BackwardPass& pass) {
  const Tensor ids = pass.saved(0);
  const Tensor& dy = pass.gradient_of_output();
  // A tied head has begun the gradient: the rows are added to it, without a second table.
  const Tensor begun = pass.begun_gradient(0);
  std::optional<InputGradient> dweight;
  if (!begun) dweight.emplace(pass, 0, accumulator(dy.dtype()));
  const InputGradient dposition(pass, 1, accumulator(dy.dtype()));
  kernels::embedding_backward({.ids = ids,
                               .dy = dy.view({ids.numel(), n.C}),
                               .dweight = begun ? begun : dweight->tensor(),
                               .dposition = dposition.tensor(),
                               .T = n.T,
                               .first_position = n.first_position,
                               .adds = static_cast<bool>(begun)},
                              pass.stream());
  if (dweight) dweight->accumulate();
  dposition.accumulate();
}

/// A scalar as one element along axis 0, like PyTorch.
Shape with_axis(const Shape& shape) { return shape.rank() == 0 ? Shape{1} : shape; }
Tensor with_axis(const Tensor& x) { return x ? x.view(with_axis(x.shape())) : x; }

void check_rank_of_index(const char* op, const Shape& index, const char* name, const Tensor& x,
                         int axis) {
  if (index.rank() != x.shape().rank())
    refuse_shape(
        op, "index", index,
        fmt::format("as many axes as {} {}, none longer except axis {}", name, x.shape(), axis));
}

void check_places(const char* op, const Tensor& index) {
  check_index(op, "index", index);
  if (index.shape().rank() != 1)
    refuse_shape(op, "index", index.shape(), "rank 1: the places along the axis");
}

// The kernels do not accept an empty index. It selects nothing, for any shape of x.
void gather_unless_empty(const Gather& args, Stream& stream) {
  if (args.index.numel() > 0 && args.y.numel() > 0) kernels::gather(args, stream);
}

void scatter_add_unless_empty(const ScatterAdd& args, Stream& stream) {
  if (args.index.numel() > 0 && args.x.numel() > 0) kernels::scatter_add(args, stream);
}

/// The gradient of a source: 0 for elements outside of index.
void write_gradient_of_source(const Gather& args, Stream& stream) {
  const Shape &index = args.index.shape(), &source = args.y.shape();
  if (index == source) return gather_unless_empty(args, stream);
  fill_zero(args.y, stream);
  if (index.numel() == 0) return;
  Gather picked = args;
  picked.y = empty_like(args.y, index);
  gather_unless_empty(picked, stream);
  kernels::strided_copy({.x = picked.y,
                         .y = args.y,
                         .extents = index,
                         .x_strides = broadcast_strides(index, index),
                         .y_strides = broadcast_strides(source, source)},
                        stream);
}

Var zeros_of(const Shape& shape, const Var& like) {
  return Tensor::zeros(shape, like.dtype(), like.device());
}

}  // namespace

Var embedding(const Tensor& ids, const Var& weight, const Var& position, int64_t first_position) {
  check_index("embedding", "ids", ids);
  if (ids.shape().rank() != 2) {
    if (position) refuse_shape("embedding", "ids", ids.shape(), "rank 2 with positions: [B, T]");
    const Var rows = embedding(ids.view({1, ids.numel()}), weight);
    std::vector<int64_t> extents(ids.shape().extents().begin(), ids.shape().extents().end());
    extents.push_back(rows.shape()[2]);
    return reshape(rows, Shape(extents));
  }
  if (weight && !weight.needs_gradient() && weight.stored().dtype() != weight.dtype()) {
    // The table is stored in a narrower dtype: only the rows that are read are converted.
    const Var rows = cast(embedding(ids, weight.tape().constant(weight.stored())), weight.dtype());
    if (!position) return rows;
    return add(rows, slice(position, 0, first_position, first_position + ids.extent(1)));
  }
  const Tensor table = floating_operand("embedding", "weight", weight);
  if (table.shape().rank() != 2)
    refuse_shape("embedding", "weight", table.shape(), "rank 2: [V, C]");
  const Tensor positions = position ? position.value() : Tensor();
  const int64_t B = ids.extent(0);
  const EmbeddingNumbers n{
      .T = ids.extent(1), .first_position = first_position, .C = table.extent(1)};
  if (positions) check_positions(table, positions, n);

  const Tensor flat_ids = ids.view({ids.numel()});
  const Tensor y = empty_like(table, {B, n.T, n.C});
  const EmbeddingForward args{.ids = flat_ids,
                              .weight = table,
                              .position = positions,
                              .y = y.view({ids.numel(), n.C}),
                              .T = n.T,
                              .first_position = first_position};
  named("embedding", [&] { kernels::embedding_forward(args, y.device().compute()); });
  return record(
      "embedding", {weight, position}, y, {flat_ids}, n,
      [](const EmbeddingNumbers& p, const BackwardPass& pass) { backward_of_embedding(p, pass); },
      [](const EmbeddingNumbers& p, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        const Tensor ids = pass.saved(0);
        const Var rows = reshape(dy, {ids.numel(), p.C});
        if (pass.needs(0))
          pass.accumulate(0, index_add(zeros_of(pass.shape_of(0), dy), 0, ids, rows));
        if (pass.needs(1))
          pass.accumulate(1, pad(sum(dy, 0), 0, p.first_position,
                                 pass.shape_of(1)[0] - p.first_position - p.T));
      });
}

Var gather(const Var& x, int axis, const Tensor& index) {
  const Tensor values = with_axis(operand("gather", "x", x));
  check_index("gather", "index", index);
  axis = axis_of("gather", values.shape(), axis);
  check_rank_of_index("gather", with_axis(index).shape(), "x", values, axis);
  const Tensor y = empty_like(values, index.shape());
  const Tensor indices = with_axis(index);
  gather_unless_empty({values, indices, with_axis(y), axis}, y.device().compute());
  return recorded_gather("gather", x, axis, indices, y);
}

Var recorded_gather(const char* op, const Var& x, int axis, const Tensor& index, const Tensor& y) {
  return record(
      op, {x}, y, {index}, axis,
      [](int along, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        fill_zero(dx.tensor(), pass.stream());
        scatter_add_unless_empty({with_axis(dy), pass.saved(0), with_axis(dx.tensor()), along},
                                 pass.stream());
        dx.accumulate();
      },
      [](int along, const ComposedPass& pass) {
        const Tensor index = pass.saved(0);
        const Var dy = pass.gradient_of_output(), rows = reshape(dy, index.shape());
        const Var none = zeros_of(with_axis(pass.shape_of(0)), dy);
        pass.accumulate(0, scatter_add(none, along, index, rows));
      });
}

Var scatter_add(const Var& base, int axis, const Tensor& index, const Var& source) {
  const Tensor values = number_operand("scatter_add", "base", base);
  const Tensor added = operand("scatter_add", "source", source);
  check_index("scatter_add", "index", index);
  check_alike("scatter_add", "base", values, "source", added);
  axis = axis_of("scatter_add", with_axis(values).shape(), axis);
  check_rank_of_index("scatter_add", with_axis(index).shape(), "base", with_axis(values), axis);
  const Tensor y = empty_like(values), indices = with_axis(index);
  const ScatterAdd sum{with_axis(added), indices, with_axis(y), axis};
  if (index.numel() > 0) validate(sum);  // throws before anything is queued
  copy(values, y, y.device().compute());
  scatter_add_unless_empty(sum, y.device().compute());
  return record(
      "scatter_add", {base, source}, y, {indices}, axis,
      [](int along, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        pass.accumulate(0, dy);
        const InputGradient dsource(pass, 1, dy.dtype());
        if (!dsource) return;
        write_gradient_of_source({with_axis(dy), pass.saved(0), with_axis(dsource.tensor()), along},
                                 pass.stream());
        dsource.accumulate();
      },
      [](int along, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        pass.accumulate(0, dy);
        const Tensor index = pass.saved(0);
        if (!pass.needs(1) || index.numel() == 0) return;
        const Shape source = with_axis(pass.shape_of(1));
        Var picked = gather(reshape(dy, with_axis(dy.shape())), along, index);
        for (int axis = 0; axis < source.rank(); ++axis)
          picked = pad(picked, axis, 0, source[axis] - index.extent(axis));
        pass.accumulate(1, picked);
      });
}

// The kernels take an index [n] for all other axes.

Var index_select(const Var& x, int axis, const Tensor& index) {
  const Tensor values = operand("index_select", "x", x);
  axis = axis_of("index_select", values.shape(), axis);
  check_places("index_select", index);
  const Tensor y = empty_like(values, values.shape().with(axis, index.numel()));
  named("index_select", [&] {
    gather_unless_empty({values, index, y, axis}, y.device().compute());
  });
  return record(
      "index_select", {x}, y, {index}, axis,
      [](int along, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        fill_zero(dx.tensor(), pass.stream());
        scatter_add_unless_empty({dy, pass.saved(0), dx.tensor(), along}, pass.stream());
        dx.accumulate();
      },
      [](int along, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output(), none = zeros_of(pass.shape_of(0), dy);
        pass.accumulate(0, index_add(none, along, pass.saved(0), dy));
      });
}

Var index_add(const Var& x, int axis, const Tensor& index, const Var& source) {
  const Tensor values = number_operand("index_add", "x", x);
  const Tensor added = operand("index_add", "source", source);
  check_places("index_add", index);
  check_alike("index_add", "x", values, "source", added);
  axis = axis_of("index_add", values.shape(), axis);
  if (const Shape expected = values.shape().with(axis, index.numel()); added.shape() != expected)
    refuse_shape("index_add", "source", added.shape(), expected.str());
  const Tensor y = empty_like(values);
  copy(values, y, y.device().compute());
  named("index_add", [&] {
    scatter_add_unless_empty({added, index, y, axis}, y.device().compute());
  });
  return record(
      "index_add", {x, source}, y, {index}, axis,
      [](int along, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        pass.accumulate(0, dy);
        const InputGradient dsource(pass, 1, dy.dtype());
        if (!dsource) return;
        gather_unless_empty({dy, pass.saved(0), dsource.tensor(), along}, pass.stream());
        dsource.accumulate();
      },
      [](int along, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        pass.accumulate(0, dy);
        pass.accumulate(1, index_select(dy, along, pass.saved(0)));
      });
}

Var index_max(const Var& x, int axis, const Tensor& index, const Var& source) {
  const char* op = "index_max";
  const Shape shape = number_operand(op, "x", x).shape();
  check_places(op, index);
  check_alike(op, "x", x.value(), "source", operand(op, "source", source));
  axis = axis_of(op, shape, axis);
  const int64_t count = index.numel(), extent = shape[axis];
  if (const Shape wanted = shape.with(axis, count); source.shape() != wanted)
    refuse_shape(op, "source", source.shape(), wanted.str());
  if (count == 0) return x;
  // In the order of their places: the largest of an element and those before it with its place.
  const Tensor order = argsort(index), ones = Tensor::full({count}, 1, DType::i64, x.device());
  const Var places = index_select(index, 0, order), rows = index_select(source, axis, order);
  std::vector<int64_t> line(static_cast<size_t>(shape.rank()), 1);
  line[static_cast<size_t>(axis)] = count;
  const Var largest = scan({reshape(places, Shape(line)), rows}, axis, [](auto a, auto b) {
    const Var both = maximum(a[1], b[1]), same = equal(a[0], b[0]);
    return std::vector<Var>{b[0], where(same, both, b[1])};
  })[1];
  // The last element of each place, if it has one.
  const Var none = Tensor::zeros({extent}, DType::i64, x.device());
  const Var counts = named(op, [&] { return index_add(none, 0, index, ones); });
  const Var last = maximum(sub(cumsum(counts, 0), 1), 0);
  line[static_cast<size_t>(axis)] = extent;
  const Var exists = reshape(greater(counts, 0), Shape(line));
  const Var found = index_select(largest, axis, last.value());
  return where(exists, maximum(x, found), x);
}

}  // namespace zg
