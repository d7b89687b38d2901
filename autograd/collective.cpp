#include "zerograd/autograd/collective.h"

#include "zerograd/autograd/ops/op.h"
#include "zerograd/autograd/tape_state.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

struct Ranks {
  Communicator* comm;
};
struct Along {
  Communicator* comm;
  int axis;
  DType dtype = DType::f32;
};

// Runs on the communication worker, on a peer's memory. The collective checked the arguments, so
// this launches the kernel without checks and without scratch.
void add_piece(const Tensor& piece, const Tensor& sum, bool first, Stream& stream) {
  const Axpby args{.x = piece, .y = sum, .a = 1.0, .b = first ? 0.0 : 1.0};
  kernels::axpby[stream.type()].function(args, {}, stream);
}

/// Rank r gets the sum of slice r of every rank's `full`. The content of `full` is undefined
/// afterwards.
Tensor scatter_sums(const char* name, const Tensor& full, Communicator& comm) {
  const Tensor sums =
      Tensor::empty({full.numel() / comm.size()}, accumulator(full.dtype()), full.device());
  comm.wait(comm.reduce_scatter(full, sums, /*fresh=*/true, add_piece, name));
  return sums;
}

/// A tensor for n elements, padded with zeros to a multiple of the number of ranks.
Tensor padded(int64_t n, DType dtype, const Device& device, int size) {
  const int64_t shard = (n + size - 1) / size;
  const Tensor full = Tensor::empty({shard * size}, dtype, device);
  if (full.numel() > n) fill_zero(full.flat(n, full.numel() - n), device.compute());
  return full;
}

/// Starts full = its sum over the ranks, in place. The result waits until it is written.
std::function<void()> start_sum_in_place(const char* name, const Tensor& full, Communicator& comm) {
  const Tensor sums =
      Tensor::empty({full.numel() / comm.size()}, accumulator(full.dtype()), full.device());
  const Communicator::Ticket scattered =
      comm.reduce_scatter(full, sums, /*fresh=*/true, add_piece, name);
  if (sums.dtype() == full.dtype()) {
    const Communicator::Ticket gathered = comm.all_gather(sums, full, name);
    return [&comm, sums, gathered] { comm.wait(gathered); };
  }
  return [=, &comm] {
    comm.wait(scattered);
    const Tensor place = full.flat(comm.rank() * sums.numel(), sums.numel());
    kernels::cast({sums, place}, full.device().compute());
    comm.wait(comm.all_gather(place, full, name));
  };
}

/// Starts the sum of x over the ranks, in the shape of x; in place if x is `free` to be
/// overwritten. The result waits for the sum and returns it.
std::function<Tensor()> start_sum(const char* name, const Tensor& x, bool free,
                                  Communicator& comm) {
  const int64_t n = x.numel();
  if (n == 0) return [x] { return x; };
  const bool in_place = free && n % comm.size() == 0;
  const Tensor full = in_place ? x.view({n}) : padded(n, x.dtype(), x.device(), comm.size());
  const Tensor sum = full.flat(0, n).view(x.shape());
  if (!in_place) copy(x, sum, x.device().compute());
  return [sum, wait = start_sum_in_place(name, full, comm)] {
    wait();
    return sum;
  };
}

void check_divided(const char* op, const Shape& shape, int axis, const Communicator& comm) {
  if (shape[axis] % comm.size() != 0)
    refuse_shape(op, "x", shape, fmt::format("an axis {} that {} ranks divide", axis, comm.size()));
}

/// The sums over the ranks of their pieces of `full`, by the tree of neighbouring ranks.
Tensor scatter_tree(const char* name, const Tensor& full, Communicator& comm) {
  const int size = comm.size();
  if ((size & (size - 1)) != 0)
    raise<ConfigError>("{}: {} ranks; expected a power of two for sums by a tree", name, size);
  const int64_t n = full.numel() / size;
  const Tensor pieces = empty_like(full, {full.numel()});
  const std::vector<int64_t> counts(static_cast<size_t>(size), n);
  comm.wait(comm.all_to_all({full.view({full.numel()}), counts}, {pieces, counts}, name));
  add_in_tree(pieces, size, n, full.device().compute());
  return pieces.flat(0, n);
}

/// x + bias, rounded to the dtype. x has rows of the bias's length. May overwrite x.
Tensor finished(const Tensor& x, const TreeSum& to) {
  Stream& stream = x.device().compute();
  if (to.bias) {
    const Tensor bias = empty_like(x, to.bias.shape()), rows = x.view(rows_of(x.shape()));
    kernels::cast({to.bias, bias}, stream);
    kernels::binary({BinaryOp::add, rows, bias, rows}, stream);
  }
  if (x.dtype() == to.dtype) return x;
  const Tensor y = Tensor::empty(x.shape(), to.dtype, x.device());
  kernels::cast({x, y}, stream);
  return y;
}

/// The layout of the ranks' slices of a whole tensor along an axis: each slice consists of `outer`
/// runs. Collectives need the slices one after another in memory; such a tensor is called stacked
/// here.
struct SliceLayout {
  int64_t size, outer, run;

  SliceLayout(const Shape& whole, int axis, int ranks) : size(ranks) {
    const Indexed at = Indexed::split(whole, axis);
    outer = at.outer;
    run = at.extent / size * at.inner;
  }
  bool whole_is_stacked() const { return outer == 1; }
  void stack(const Tensor& whole, const Tensor& stacked, Stream& stream) const {
    kernels::strided_copy({.x = whole,
                           .y = stacked,
                           .extents = {size, outer, run},
                           .x_strides = {run, size * run, 1},
                           .y_strides = {outer * run, run, 1}},
                          stream);
  }
  void unstack(const Tensor& stacked, const Tensor& whole, Stream& stream) const {
    kernels::strided_copy({.x = stacked,
                           .y = whole,
                           .extents = {size, outer, run},
                           .x_strides = {outer * run, run, 1},
                           .y_strides = {run, size * run, 1}},
                          stream);
  }
};

/// A copy of x with the ranks' slices along an axis one after another.
Tensor stacked(const Tensor& x, int axis, int size) {
  const Tensor slices = empty_like(x);
  SliceLayout(x.shape(), axis, size).stack(x, slices, x.device().compute());
  return slices;
}

Tensor scattered(const char* name, const Tensor& x, int axis, Communicator& comm) {
  const Shape shape = x.shape().with(axis, x.extent(axis) / comm.size());
  if (x.numel() == 0) return empty_like(x, shape);
  Stream& stream = x.device().compute();
  const Tensor sums = scatter_sums(name, stacked(x, axis, comm.size()), comm).view(shape);
  if (sums.dtype() == x.dtype()) return sums;
  const Tensor slice = empty_like(x, shape);
  kernels::cast({sums, slice}, stream);
  return slice;
}

Tensor own_slice(const Tensor& x, int axis, const Communicator& comm) {
  const int64_t extent = x.extent(axis) / comm.size();
  return block(x, axis, comm.rank() * extent, (comm.rank() + 1) * extent, x.device().compute());
}

/// The rows of the ranks, of `received` in all, from x.
Tensor exchanged(const char* name, const Tensor& x, std::span<const int64_t> sent,
                 std::span<const int64_t> received, Communicator& comm) {
  int64_t rows = 0;
  for (const int64_t count : received) rows += count;
  const Tensor y = empty_like(x, x.shape().with(0, rows));
  const int64_t per_row = x.shape().with(0, 1).numel();
  const auto pieces = [&](const Tensor& tensor, std::span<const int64_t> counts) {
    Pieces all{tensor.view({tensor.numel()}), {counts.begin(), counts.end()}};
    for (int64_t& count : all.counts) count *= per_row;
    return all;
  };
  comm.wait(comm.all_to_all(pieces(x, sent), pieces(y, received), name));
  return y;
}

struct GradientsOfSeveral {
  Communicator* comm;
  int count;
  DType dtype;
  bool by_tree;
};

/// Copies the gradients that exist into one tensor, sums that over the ranks by one collective, and
/// accumulates each gradient.
void backward_of_several(const GradientsOfSeveral& n, const BackwardPass& pass) {
  int64_t numel = 0;
  for (int i = 0; i < n.count; ++i)
    if (const Tensor& dy = pass.gradient_of_output(i)) numel += dy.numel();
  const Tensor all = padded(numel, accumulator(n.dtype), pass.device(), n.comm->size());
  const auto for_each = [&](const auto& f) {
    int64_t at = 0;
    for (int i = 0; i < n.count; ++i) {
      const Tensor& dy = pass.gradient_of_output(i);
      if (!dy) continue;
      f(i, dy, all.flat(at, dy.numel()).view(dy.shape()));
      at += dy.numel();
    }
  };
  for_each([&](int, const Tensor& dy, const Tensor& place) {
    kernels::cast({dy, place}, pass.stream());
  });
  const char* name = "copy_to_ranks gradients";
  if (numel > 0 && n.by_tree)
    n.comm->wait(n.comm->all_gather(scatter_tree(name, all, *n.comm), all, name));
  else if (numel > 0)
    start_sum_in_place(name, all, *n.comm)();
  for_each([&](int i, const Tensor&, const Tensor& place) {
    const InputGradient dx(pass, i, place.dtype());
    copy(place, dx.tensor(), pass.stream());
    dx.accumulate();
  });
}

}  // namespace

Tensor gathered(const char* name, const Tensor& slice, int axis, Communicator& comm) {
  const Tensor whole =
      empty_like(slice, slice.shape().with(axis, slice.extent(axis) * comm.size()));
  if (whole.numel() == 0) return whole;
  const SliceLayout layout(whole.shape(), axis, comm.size());
  const Tensor stacked = layout.whole_is_stacked() ? whole : empty_like(whole);
  comm.wait(comm.all_gather(slice, stacked, name));
  if (!layout.whole_is_stacked()) layout.unstack(stacked, whole, slice.device().compute());
  return whole;
}

Tensor tree_sum(const Tensor& x, const TreeSum& to) {
  const int size = to.ranks->size();
  if (to.axis >= 0) check_divided(to.name, x.shape(), to.axis, *to.ranks);
  const Shape part = to.axis < 0 ? x.shape() : x.shape().with(to.axis, x.extent(to.axis) / size);
  if (x.numel() == 0) return Tensor::empty(part, to.dtype, x.device());
  if (size == 1) return finished(x, to);
  if (to.axis >= 0)
    return finished(scatter_tree(to.name, stacked(x, to.axis, size), *to.ranks).view(part), to);
  // The ranks divide the rows, so that each adds the bias to its own before they are gathered.
  const Shape rows = rows_of(x.shape());
  const int64_t own = (rows[0] + size - 1) / size;
  Tensor full = x.view(rows);
  if (own * size != rows[0]) {
    full = padded(own * size * rows[1], x.dtype(), x.device(), size);
    copy(x.view({x.numel()}), full.flat(0, x.numel()), x.device().compute());
  }
  const Tensor piece = scatter_tree(to.name, full, *to.ranks).view({own, rows[1]});
  const Tensor sum = finished(piece, to);
  const Tensor all = empty_like(sum, {own * size, rows[1]});
  to.ranks->wait(to.ranks->all_gather(sum, all, to.name));
  return all.flat(0, x.numel()).view(x.shape());
}

Var copy_to_ranks_by_tree(const Var& x, Communicator& ranks, int axis) {
  const char* op = axis < 0 ? "copy_to_ranks" : "all_gather";
  const Tensor values = floating_operand(op, "x", x);
  if (ranks.size() == 1 || (axis < 0 && !x.needs_gradient())) return x;
  const Tensor whole = axis < 0 ? values : gathered(op, values, axis, ranks);
  const Var y = record(op, {x}, whole, {}, Along{&ranks, axis, values.dtype()},
                       [](const Along& n, const BackwardPass& pass) {
                         pass.accumulate(0, tree_sum(pass.gradient_of_output(),
                                                     {.name = n.axis < 0 ? "copy_to_ranks gradient"
                                                                         : "all_gather gradient",
                                                      .ranks = n.comm,
                                                      .dtype = n.dtype,
                                                      .axis = n.axis}));
                       });
  if (!x.needs_gradient()) return y;
  TapeState::collect_in_accumulator(y);
  if (axis >= 0) TapeState::note_gathered(y, {whole.buffer(), values, &ranks, axis});
  return y;
}

Var copy_to_ranks(const Var& x, Communicator& ranks) {
  const Tensor values = floating_operand("copy_to_ranks", "x", x);
  if (ranks.size() == 1 || !x.needs_gradient()) return x;
  const Var y = record("copy_to_ranks", {x}, values, {}, Ranks{&ranks},
                       [](const Ranks&, const BackwardPass& pass) {
                         pass.accumulate(0, TapeState::finish_collective(pass));
                       });
  TapeState::note_start(y, [](const void* numbers, const Tensor& dy) {
    // If another tensor shares this buffer (the other branch of a residual), it needs this rank's
    // own gradient. So only an unshared buffer may be overwritten.
    return start_sum("copy_to_ranks gradient", dy, dy.buffer().use_count() == 1,
                     *static_cast<const Ranks*>(numbers)->comm);
  });
  return y;
}

std::vector<Var> copy_to_ranks(std::span<const Var> parameters, Communicator& ranks, bool by_tree) {
  std::vector<Var> copies(parameters.begin(), parameters.end());
  std::vector<Var> inputs;
  std::vector<size_t> places;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (ranks.size() == 1 || !copies[i].needs_gradient()) continue;
    inputs.push_back(copies[i]);
    places.push_back(i);
  }
  if (inputs.empty()) return copies;
  std::vector<Tensor> values;
  for (const Var& input : inputs) {
    values.push_back(floating_operand("copy_to_ranks", "a parameter", input));
    check_alike("copy_to_ranks", "the first parameter", values[0], "another", values.back());
  }
  const GradientsOfSeveral numbers{&ranks, static_cast<int>(inputs.size()), values[0].dtype(),
                                   by_tree};
  const std::vector<Var> outputs = record(
      "copy_to_ranks", inputs, values, {}, numbers,
      [](const GradientsOfSeveral& n, const BackwardPass& pass) { backward_of_several(n, pass); });
  for (size_t i = 0; i < outputs.size(); ++i) {
    TapeState::collect_in_accumulator(outputs[i]);
    copies[places[i]] = outputs[i];
  }
  return copies;
}

Var all_reduce(const Var& x, Communicator& ranks) {
  const Tensor values = floating_operand("all_reduce", "x", x);
  if (ranks.size() == 1) return x;
  return record("all_reduce", {x}, start_sum("all_reduce", values, /*free=*/false, ranks)(), {},
                Ranks{&ranks}, [](const Ranks&, const BackwardPass& pass) {
                  pass.accumulate(0, pass.gradient_of_output());
                });
}

Var all_gather(const Var& x, int axis, Communicator& ranks) {
  const Tensor values = floating_operand("all_gather", "x", x);
  axis = axis_of("all_gather", values.shape(), axis);
  if (ranks.size() == 1) return x;
  const Tensor whole = gathered("all_gather", values, axis, ranks);
  const Var y = record("all_gather", {x}, whole, {}, Along{&ranks, axis},
                       [](const Along& n, const BackwardPass& pass) {
                         pass.accumulate(0, scattered("all_gather gradient",
                                                      pass.gradient_of_output(), n.axis, *n.comm));
                       });
  TapeState::note_gathered(y, {whole.buffer(), values, &ranks, axis});
  return y;
}

Var reduce_scatter(const Var& x, int axis, Communicator& ranks) {
  const Tensor values = floating_operand("reduce_scatter", "x", x);
  axis = axis_of("reduce_scatter", values.shape(), axis);
  check_divided("reduce_scatter", values.shape(), axis, ranks);
  if (ranks.size() == 1) return x;
  return record("reduce_scatter", {x}, scattered("reduce_scatter", values, axis, ranks), {},
                Along{&ranks, axis}, [](const Along& n, const BackwardPass& pass) {
                  pass.accumulate(0, gathered("reduce_scatter gradient", pass.gradient_of_output(),
                                              n.axis, *n.comm));
                });
}

Var part_of_rank(const Var& x, int axis, Communicator& ranks) {
  const Tensor values = floating_operand("part_of_rank", "x", x);
  axis = axis_of("part_of_rank", values.shape(), axis);
  check_divided("part_of_rank", values.shape(), axis, ranks);
  if (ranks.size() == 1) return x;
  return record("part_of_rank", {x}, own_slice(values, axis, ranks), {}, Along{&ranks, axis},
                [](const Along& n, const BackwardPass& pass) {
                  pass.accumulate(0, gathered("part_of_rank gradient", pass.gradient_of_output(),
                                              n.axis, *n.comm));
                });
}

Var all_to_all(const Var& x, Communicator& ranks, std::vector<int64_t> sent_rows,
               std::vector<int64_t> received_rows) {
  const Tensor values = x.value();
  const auto size = static_cast<size_t>(ranks.size());
  axis_of("all_to_all", values.shape(), 0);
  if (sent_rows.empty() && received_rows.empty()) {
    check_divided("all_to_all", values.shape(), 0, ranks);
    sent_rows = received_rows = std::vector<int64_t>(size, values.extent(0) / ranks.size());
  }
  if (ranks.size() == 1) return x;
  // The numbers for backward: the communicator, then both counts of each rank.
  std::vector<int64_t> numbers = {static_cast<int64_t>(reinterpret_cast<intptr_t>(&ranks))};
  numbers.insert(numbers.end(), sent_rows.begin(), sent_rows.end());
  numbers.insert(numbers.end(), received_rows.begin(), received_rows.end());
  const Tensor y = exchanged("all_to_all", values, sent_rows, received_rows, ranks);
  return detail::record(
      "all_to_all", std::span(&x, 1), std::span(&y, 1), {}, numbers.data(),
      numbers.size() * sizeof(int64_t), [](const void* bytes, const BackwardPass& pass) {
        const auto* n = static_cast<const int64_t*>(bytes);
        auto& comm = *reinterpret_cast<Communicator*>(static_cast<intptr_t>(n[0]));
        const auto size = static_cast<size_t>(comm.size());
        pass.accumulate(0, exchanged("all_to_all gradient", pass.gradient_of_output(),
                                     {n + 1 + size, size}, {n + 1, size}, comm));
      })[0];
}

Var join_parts(const Var& x, int axis, Communicator& ranks) {
  const Tensor values = floating_operand("join_parts", "x", x);
  axis = axis_of("join_parts", values.shape(), axis);
  if (ranks.size() == 1) return x;
  return record("join_parts", {x}, gathered("join_parts", values, axis, ranks), {},
                Along{&ranks, axis}, [](const Along& n, const BackwardPass& pass) {
                  pass.accumulate(0, own_slice(pass.gradient_of_output(), n.axis, *n.comm));
                });
}

}  // namespace zg
