"""For op-db: the tensors and arguments of zerograd's ops, in the order of op_db.cpp, of PyTorch's samples. An adapter
throws Skip, with the reason, for a sample that zerograd has no call for."""
import torch


class Skip(Exception):
    pass


# Conditions of equal results, not of a call: error inputs need not meet them.
OF_RESULTS = {"two dtypes", "an axis of a scalar", "a scalar", "an empty part of another rank",
              "a weight of rank 1", "ceil_mode or return_indices", "without a batch",
              "of numbers: cast() here", "an axis of another extent: an error here", "low > high: an error here",
              "more counts than axes", "places from the end", "four axes and more"}
for_errors = False


def need(condition, reason):
    if not condition and not (for_errors and reason in OF_RESULTS):
        raise Skip(reason)


def plain(kwargs, *known):
    for name in kwargs:
        need(name in known, f"argument {name}")


def unary(x, *args, **kwargs):
    plain(kwargs)
    need(not args, "an argument of its own")
    return [x], []


def binary(a, b, **kwargs):
    plain(kwargs)
    need(isinstance(a, torch.Tensor), "a number before a tensor")
    if isinstance(b, torch.Tensor):
        need(a.dtype == b.dtype, "two dtypes")
        return [a, b], []
    need(not for_errors, "a tensor and a number")
    need(isinstance(b, (int, float)) and not isinstance(b, bool), "a complex number or bool")
    return [a], [float(b)]


def div(a, b, rounding_mode=None, **kwargs):
    need(rounding_mode == (None if a.is_floating_point() else "trunc"), f"rounding_mode {rounding_mode}")
    return binary(a, b, **kwargs)


def axes(x, dim=None, keepdim=False, dtype=None, **kwargs):
    plain(kwargs)
    need(dtype is None or dtype == x.dtype, "argument dtype")
    dim = [] if dim is None else list(dim) if isinstance(dim, (tuple, list)) else [dim]
    need(x.dim() > 0 or not dim, "an axis of a scalar")
    need(len(dim) < 4, "four axes and more")
    return [x], [dim, keepdim]


def norm(x, ord=2, dim=None, keepdim=False, **kwargs):  # noqa: A002
    need(ord in (1, 2, float("inf")), "a p other than 1, 2 and infinity")
    tensors, arguments = axes(x, dim, keepdim, **kwargs)
    return tensors, [None if ord == float("inf") else float(ord), *arguments]


def variance(x, dim=None, unbiased=True, keepdim=False, correction=None, **kwargs):
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    tensors, arguments = axes(x, dim, keepdim, **kwargs)
    correction = float(correction if correction is not None else unbiased)
    need(correction.is_integer(), "a correction that is not an integer")
    count = x.numel() if not arguments[0] else torch.tensor([x.shape[d] for d in arguments[0]]).prod().item()
    need(count > correction, "too few elements: an error here, NaN there")
    return tensors, arguments + [int(correction)]


def axis(default):
    def of(x, dim=default, *args, dtype=None, **kwargs):
        plain(kwargs)
        need(not args and (dtype is None or dtype == x.dtype), "argument dtype")
        need(x.dim() > 0, "an axis of a scalar")
        return [x], [dim]
    return of


def argmax(x, dim=None, keepdim=False):
    need(dim is not None and x.dim() > 0, "over all axes")
    return [x], [dim, keepdim]


def topk(x, k, dim=-1, largest=True, sorted=True):  # noqa: A002
    need(x.dim() > 0, "an axis of a scalar")
    need(x.dtype in (torch.float64, torch.float32) or x.unique().numel() == x.numel(), "equal elements in any order")
    return [x], [k, dim, largest]


def ordered(x, dim=-1, descending=False, stable=False):
    need(stable or x.dtype in (torch.float64, torch.float32) or x.unique().numel() == x.numel(), "equal elements in any order")
    need(x.dim() > 0, "an axis of a scalar")
    return [x], [dim, descending]


def index_add(x, dim, index, source, alpha=1):
    need(x.dim() > 0 and index.dim() == 1, "a scalar")
    return [x, index, source], [dim, float(alpha)]


def logcumsumexp(x, dim):
    need(x.dtype == torch.float64 or x.numel() == 0 or x.max() < 1000, "PyTorch's gradient in f32 beside 10000 is 7e-4 from that in f64")
    return axis(0)(x, dim)


def nonzero(x, as_tuple=False):
    need(not as_tuple, "an index for each axis")
    return [x], []


def clamp(x, low=None, high=None, **kwargs):
    low, high = kwargs.get("min", low), kwargs.get("max", high)
    need(not isinstance(low, torch.Tensor) and not isinstance(high, torch.Tensor), "limits that are tensors")
    need(low is not None and high is not None, "one limit")
    need(low <= high, "low > high: an error here")
    return [x], [float(low), float(high)]


def pad(x, sizes, mode="constant", value=None):
    need(mode == "constant" and len(sizes) == 2, "several axes, or not by a constant")
    need(min(sizes) >= 0, "a negative size: slice() here")
    return [x], [*sizes, value or 0.0]


def masked_fill(x, mask, value):
    need(not isinstance(value, torch.Tensor) and not isinstance(value, complex), "a value that is a tensor")
    return [x, mask], [float(value)]


def matmul(a, b, **kwargs):
    return [a, b], []


def shape(x, *sizes):
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    need(all(isinstance(size, int) for size in sizes), "a tensor in place of a shape")
    return [x], [list(sizes)]


def expand(x, *sizes):
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    return [x], [list(torch.empty(x.shape).expand(sizes).shape)]


def narrow(x, dim, start, length):
    need(not isinstance(start, torch.Tensor) or start.numel() == 1 and start.dtype != torch.bool, "a tensor as start")
    start = int(start)
    start += x.shape[dim] if start < 0 and -x.dim() <= dim < x.dim() else 0
    return [x], [dim, start, start + length]


def where(x, condition, other):
    return [condition, x, other], []


def sequence(parts, dim=0, **kwargs):
    plain(kwargs, "axis")
    dim = kwargs.get("axis", dim)
    need(len({part.dtype for part in parts}) == 1, "two dtypes")
    need(len({part.dim() for part in parts}) == 1, "an empty part of another rank")
    return list(parts), [dim]


def squeeze(x, *dims):
    need(len(dims) == 1 and isinstance(dims[0], int), "all axes, or several")
    need(x.dim() > 0 and not for_errors and x.shape[dims[0]] == 1, "an axis of another extent: an error here")
    return [x], list(dims)


def of_indices(x, dim, index, *rest, **kwargs):
    plain(kwargs)
    need(x.dim() > 0, "a scalar")
    return [x, index, *rest], [dim]


def flip(x, *dims, **kwargs):
    dims = dims or (kwargs["dims"],)
    return [x], [list(dims[0]) if isinstance(dims[0], (tuple, list)) else list(dims)]


def roll(x, shifts, dims=None):
    dims = dims[0] if isinstance(dims, (tuple, list)) and len(dims) == 1 else dims
    shifts = shifts[0] if isinstance(shifts, (tuple, list)) and len(shifts) == 1 else shifts
    need(isinstance(dims, int) and isinstance(shifts, int), "all axes, or several")
    return [x], [shifts, dims]


def reduction_of_one(x, *args, **kwargs):
    need(x.dim() > 0 or not (args or kwargs), "an axis of a scalar")
    return axes(x, *args, **kwargs)


def repeat(x, *counts):
    tensors, (counts,) = flip(x, *counts)
    need(len(counts) == x.dim(), "more counts than axes")
    return tensors, [counts]


def transpose(x, a, b):
    need(x.dim() > 0, "a scalar")
    return [x], [a, b]


def take(x, index):
    need(index.numel() == 0 or index.min() >= 0, "places from the end")
    return [x, index], []


def meshgrid(*axes, indexing="ij"):
    axes = list(axes[0]) if isinstance(axes[0], (list, tuple)) else list(axes)
    need(all(axis.dim() == 1 for axis in axes) and indexing == "ij", "scalars, or xy")
    return axes, []


def linear(x, weight, bias=None):
    need(weight.dim() == 2, "a weight of rank 1")
    return [x, weight] + ([] if bias is None else [bias]), []


def one(number):
    return number[0] if isinstance(number, (tuple, list)) and len(number) == 1 else number


def convolution(rank, transposed=False):
    def of(x, weight, bias=None, stride=1, padding=0, *rest, dilation=1, groups=1, output_padding=0):
        if rest:
            output_padding, groups, dilation = [*rest, 1, 1][:3] if transposed else (0, *[*rest[1:], 1][:1], rest[0])
        need(x.dim() == rank, "without a batch")
        if padding == "same":
            reach = [(size - 1) * step for size, step in zip(weight.shape[2:], [dilation] * 2 if isinstance(dilation, int) else dilation)]
            need(all(size % 2 == 0 for size in reach), "more padding at one end than at the other")
            padding = [size // 2 for size in reach]
        padding = 0 if padding == "valid" else padding
        numbers = [stride, padding, dilation, groups] + ([output_padding] if transposed else [])
        return [x, weight] + ([] if bias is None else [bias]), [one(number) for number in numbers]
    return of


def avg_pool(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    need(not ceil_mode and divisor_override is None, "ceil_mode or divisor_override")
    return [x], [one(kernel_size), one(stride) or 0, one(padding), count_include_pad]


def max_pool(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    need(not ceil_mode and not return_indices, "ceil_mode or return_indices")
    return [x], [one(kernel_size), one(stride) or 0, one(padding), one(dilation)]


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    return [x] + [t for t in (weight, bias) if t is not None], [groups, eps, weight is not None, bias is not None]


def gelu(x, approximate="none"):
    need(approximate in ("none", "tanh"), "an enumeration here")
    return [x], [approximate]


def tensordot(a, b, dims=2):
    if isinstance(dims, int):
        dims = [list(range(a.dim() - dims, a.dim())), list(range(dims))]
    return [a, b], [list(dims[0]), list(dims[1])]


def einsum(operands, equation):
    return list(operands), [equation]


def booleans(*args, **kwargs):
    need(args[0].dtype == torch.bool, "of numbers: cast() here")
    return (reduction_of_one if args[1:] or kwargs else lambda x: ([x], [[], False]))(*args, **kwargs)


def logical(*tensors):
    need(all(isinstance(t, torch.Tensor) and t.dtype == torch.bool for t in tensors), "of numbers: cast() here")
    return list(tensors), []


def layer_norm(x, normalized, weight=None, bias=None, eps=1e-5):
    need(weight is not None and bias is not None and len(normalized) == 1, "without weights, or over several axes")
    return [x, weight, bias], [eps]


def rms_norm(x, normalized, weight=None, eps=None):
    need(weight is not None and len(normalized) == 1, "without weights, or over several axes")
    return [x, weight], [torch.finfo(x.dtype).eps if eps is None else eps]


def huber(x, y, reduction="mean", delta=1.0):
    need(reduction in REDUCTIONS, "a reduction of another name")
    return [x, y], [delta, REDUCTIONS.index(reduction)]


def embedding(weight, index, **kwargs):
    plain(kwargs)
    return [weight, index], []


def one_hot(x, num_classes=-1):
    need(num_classes > 0, "the number of classes from the values")
    return [x], [num_classes]


def cross_entropy(x, y, weight=None, reduction="mean", ignore_index=-100, label_smoothing=0.0):
    need(weight is None and x.dim() == 2 and not y.is_floating_point(), "weights, probabilities, or other axes")
    return [x, y], [REDUCTIONS.index(reduction), ignore_index, label_smoothing]


def binary_cross_entropy(x, y, weight=None, pos_weight=None, reduction="mean"):
    need(weight is None and pos_weight is None, "weights")
    return [x, y], [REDUCTIONS.index(reduction)]


def kl_divergence(x, y, reduction="mean", log_target=False):
    need(reduction in REDUCTIONS and x.shape == y.shape, "reduction batchmean, or broadcasting")
    return [x, y], [REDUCTIONS.index(reduction), log_target]


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    need(attn_mask is None and not dropout_p, "a mask or dropout")
    need(q.dim() == 4 and v.shape[-1] == q.shape[-1], "rank 3, or values of another width")
    need(not is_causal or q.shape[2] == k.shape[2], "causal with other keys than queries: aligned at the end here")
    return [q, k, v], [is_causal, scale or 0.0]


REDUCTIONS = ["none", "sum", "mean"]
ADAPTERS = {
    **dict.fromkeys("add sub mul pow remainder maximum minimum logaddexp equal not_equal less less_equal greater "
                    "greater_equal".split(), binary),
    **dict.fromkeys("sum mean max min logsumexp prod".split(), axes),
    **dict.fromkeys(("any", "all"), booleans), **dict.fromkeys(("logical_and", "logical_or", "logical_not"), logical),
    "div": div, "std": variance, "argmin": argmax, "cumprod": axis(0), "logcumsumexp": logcumsumexp, "flip": flip, "roll": roll,
    "diag": lambda x, diagonal=0: ([x], [diagonal]), "index_select": of_indices, "einsum": einsum, "tensordot": tensordot,
    "take": take, **dict.fromkeys(("dot", "outer"), lambda a, b: ([a, b], [])), "norm": norm, "permute": flip, "repeat": repeat,
    "meshgrid": meshgrid,
    "full_like": lambda x, value, **kwargs: (plain(kwargs), ([x], [float(value)]))[1], "layer_norm": layer_norm,
    "rms_norm": rms_norm, "embedding": embedding, "one_hot": one_hot, "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy, "kl_divergence": kl_divergence, "attention": attention,
    "matmul": matmul, "var": variance, "argmax": argmax, "topk": topk, "sort": ordered, "argsort": ordered, "index_add": index_add,
    **dict.fromkeys(("cummax", "cummin"), axis(0)),
    "nonzero": nonzero, "masked_select": lambda x, mask, **kwargs: (plain(kwargs), ([x, mask], []))[1], "slice_scatter":
    lambda x, source, dim=0, start=None, end=None, step=1: ([x, source], [dim, start, end, step]), "softmax": axis(-1), "log_softmax": axis(-1),
    "cumsum": axis(0), "clamp": clamp, "pad": pad, "masked_fill": masked_fill, "where": where,
    "reshape": shape, "broadcast_to": expand, "slice": narrow, "concat": sequence, "stack": sequence, "squeeze": squeeze,
    "elu": lambda x, alpha=1.0: ([x], [alpha]), "leaky_relu": lambda x, negative_slope=0.01: ([x], [negative_slope]),
    "gelu": gelu,
    "transpose": transpose, "unsqueeze": lambda x, dim: ([x], [dim]),
    "split": lambda x, sizes, dim=0: ([x], [list(sizes), dim]),
    "tril": lambda x, diagonal=0: ([x], [diagonal]), "triu": lambda x, diagonal=0: ([x], [diagonal]),
    "gather": of_indices, "scatter_add": of_indices,
    "linear": linear, "conv1d": convolution(3), "conv2d": convolution(4), "conv_transpose1d": convolution(3, True),
    "conv_transpose2d": convolution(4, True), **dict.fromkeys(("avg_pool1d", "avg_pool2d"), avg_pool),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), max_pool), "group_norm": group_norm,
    "multinomial": lambda x, num_samples, replacement=False, **kwargs: (plain(kwargs), ([x], [num_samples, replacement]))[1],
    "mse": lambda x, y, reduction="mean": ([x, y], [REDUCTIONS.index(reduction)]),
    "huber": huber,
}
