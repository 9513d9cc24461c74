"""Convert rows of the tables of timed operators into operators.

Letters: B batch, M rows, N columns, K contracted in GEMMs; C channels, H and W pixels in
convolutions.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence

from breakeven.trace import Op, TensorSpec

Row = dict[str, str]


def _float32(*shape: int, layout: str = "contiguous") -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0", layout=layout)


def bmm_op(row: Row) -> Op:
    """Return the operator of a batched-product row."""
    b, m, n, k = (int(row[key]) for key in ("B", "M", "N", "K"))
    # The table multiplies (B, M, N) by (B, N, K): its N is contracted.
    return Op(
        name="aten.bmm.default",
        inputs=(_float32(b, m, n), _float32(b, n, k)),
        outputs=(_float32(b, m, k),),
    )


def linear_op(row: Row) -> Op:
    """Return the operator of a linear-layer row."""
    m, n, k = int(row["B"]) * int(row["M"]), int(row["N"]), int(row["K"])
    return Op(
        name="aten.addmm.default",
        inputs=(_float32(k), _float32(m, n), _float32(n, k, layout="transposed")),
        outputs=(_float32(m, k),),
    )


def product_op(row: Row) -> Op:
    """Return the operator of a row in a table with both kinds of products."""
    return linear_op(row) if row["op"] == "linear" else bmm_op(row)


def square_convolution_op(row: Row) -> Op:
    """Return the operator of a row with a convolution of square images."""
    images, c_in, c_out = int(row["B"]), int(row["Cin"]), int(row["Cout"])
    window, pixels = int(row["ksize"]), int(row["HW"])
    stride, padding = int(row["stride"]), int(row["padding"])
    result = (pixels + 2 * padding - window) // stride + 1
    return Op(
        name="aten.convolution.default",
        inputs=(
            _float32(images, c_in, pixels, pixels),
            _float32(c_out, c_in, window, window),
        ),
        outputs=(_float32(images, c_out, result, result),),
        attributes=_convolution_attributes((stride, stride), (padding, padding)),
    )


def _convolution_attributes(stride: tuple[int, ...], padding: tuple[int, ...]) -> dict[str, object]:
    return {
        "stride": list(stride),
        "padding": list(padding),
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 1,
    }


_ELEMENTWISE_NAMES = {
    "add": "aten.add.Tensor", "mul": "aten.mul.Tensor", "div": "aten.div.Tensor",
    "pow": "aten.pow.Tensor_Tensor", "addu": "aten.add.Tensor", "mulu": "aten.mul.Tensor",
    "divu": "aten.div.Tensor", "powu": "aten.pow.Tensor_Scalar", "relu": "aten.relu.default",
    "gelu": "aten.gelu.default", "tanh": "aten.tanh.default",
}  # fmt: skip
_TWO_TENSORS = frozenset({"add", "mul", "div", "pow"})


def vector_op(row: Row) -> Op:
    """Return the operator of an elementwise, softmax or layer-normalization row."""
    x = _float32(int(row["B"]), int(row["H"]))
    if row["op"] == "softmax":
        return _softmax_op(x)
    if row["op"] == "ln":
        return _layer_norm_op(x)
    num_inputs = 2 if row["op"] in _TWO_TENSORS else 1
    return Op(name=_ELEMENTWISE_NAMES[row["op"]], inputs=(x,) * num_inputs, outputs=(x,))


def layer_op(row: Row, *, is_backward: bool) -> Op | None:
    """Return the operator of a row with a layer timed operator by operator; None to skip it.

    Skipped rows are better covered by other tables, run several kernels, or time operators that no
    training step runs: the backward pass was recorded for a second derivative, which composes
    dropout and powers of other operators.
    """
    shapes: list[list[int]] = json.loads(row["input_shapes"])
    result = tuple(int(size) for size in ast.literal_eval(row["output_shape"]))
    x = _float32(*result)
    if is_backward:
        build = {"softmax": _softmax_backward_op, "layer_norm": _layer_norm_backward_op}
        return build[row["op"]](x) if row["op"] in build else None
    match row["op"]:
        case "softmax":
            return _softmax_op(x)
        case "layer_norm":
            return _layer_norm_op(x)
        case "dropout":
            mask = TensorSpec(shape=result, dtype="bool", device="cuda:0")
            return Op(name="aten.native_dropout.default", inputs=(x,), outputs=(x, mask))
        case "contiguous":
            # A contiguous tensor needs no kernel, and its time is below the limit.
            source = _float32(*result, layout="strided")
            return Op(name="aten.clone.default", inputs=(source,), outputs=(x,))
        case "bool":
            converted = TensorSpec(shape=result, dtype="bool", device="cuda:0")
            return Op(name="aten._to_copy.default", inputs=(x,), outputs=(converted,))
        case "embedding":
            indices = TensorSpec(shape=tuple(shapes[0]), dtype="int64", device="cuda:0")
            # Only the rows of the embedding that are looked up count.
            table = _float32(1, result[-1])
            return Op(name="aten.embedding.default", inputs=(table, indices), outputs=(x,))
        case _:
            return None


def _softmax_op(x: TensorSpec) -> Op:
    return Op(
        name="aten._softmax.default",
        inputs=(x,),
        outputs=(x,),
        attributes={"dim": -1, "half_to_float": False},
    )


def _softmax_backward_op(x: TensorSpec) -> Op:
    return Op(
        name="aten._softmax_backward_data.default",
        inputs=(x, x),
        outputs=(x,),
        attributes={"dim": -1},
    )


def _layer_norm_op(x: TensorSpec) -> Op:
    weight, statistic = _float32(x.shape[-1]), _float32(*x.shape[:-1], 1)
    return Op(
        name="aten.native_layer_norm.default",
        inputs=(x, weight, weight),
        outputs=(x, statistic, statistic),
        attributes={"normalized_shape": [x.shape[-1]], "eps": 1e-5},
    )


def _layer_norm_backward_op(x: TensorSpec) -> Op:
    weight, statistic = _float32(x.shape[-1]), _float32(*x.shape[:-1], 1)
    return Op(
        name="aten.native_layer_norm_backward.default",
        inputs=(x, x, statistic, statistic, weight, weight),
        outputs=(x, weight, weight),
    )


def _dtype(row: Row) -> str:
    return "float32" if row["dtype"] == "fp32" else "float16"


# Source: PAD_KERNELS in baidu-research/DeepBench, code/nvidia/gemm_bench.cu. Its V100 computes fp16
# products with 7,133 rows as fast as those with 7,000.
_PADDED_TO = 8


def gemm_op(row: Row) -> Op:
    """Return the operator of a product row; in fp16 the sizes are padded for matrix units."""
    m, n, k = int(row["M"]), int(row["N"]), int(row["K"])
    dtype = _dtype(row)
    if dtype == "float16":
        m, n, k = (math.ceil(size / _PADDED_TO) * _PADDED_TO for size in (m, n, k))

    def tensor(*shape: int, is_transposed: bool = False) -> TensorSpec:
        layout = "transposed" if is_transposed else "contiguous"
        return TensorSpec(shape=shape, dtype=dtype, device="cuda:0", layout=layout)

    return Op(
        name="aten.mm.default",
        inputs=(
            tensor(m, k, is_transposed=row["transA"] == "T"),
            tensor(k, n, is_transposed=row["transB"] == "T"),
        ),
        outputs=(tensor(m, n),),
    )


_GRADIENT_MASKS = {"bw_input": [True, False, False], "bw_weight": [False, True, False]}


def convolution_op(row: Row) -> Op:
    """Return the operator of a convolution row, or of one of its gradients."""
    images, c_in, c_out = int(row["N"]), int(row["Cin"]), int(row["Cout"])
    size = (int(row["H"]), int(row["W"]))
    window = (int(row["kh"]), int(row["kw"]))
    padding = (int(row["pad_h"]), int(row["pad_w"]))
    stride = (int(row["stride_h"]), int(row["stride_w"]))
    result_h, result_w = (
        (s + 2 * p - w) // t + 1 for s, p, w, t in zip(size, padding, window, stride, strict=True)
    )
    dtype = _dtype(row)
    # Assume that fp16 rows have the kernels' preferred layout. With a conversion in each, more than
    # half of the forward rows would exceed the bandwidth.
    layout = "channels_last" if dtype == "float16" else "contiguous"
    source, weight, result = (
        TensorSpec(shape=shape, dtype=dtype, device="cuda:0", layout=layout)
        for shape in (
            (images, c_in, *size),
            (c_out, c_in, *window),
            (images, c_out, result_h, result_w),
        )
    )
    attributes = _convolution_attributes(stride, padding)
    if row["phase"] == "fw":
        return Op(
            name="aten.convolution.default",
            inputs=(source, weight),
            outputs=(result,),
            attributes=attributes,
        )
    return Op(
        name="aten.convolution_backward.default",
        inputs=(result, source, weight),
        outputs=(source if row["phase"] == "bw_input" else weight,),
        attributes=attributes | {"output_mask": _GRADIENT_MASKS[row["phase"]]},
    )


_RECURRENT_MODES = {"rnn_vanilla": (0, 1), "rnn_lstm": (2, 4), "rnn_gru": (3, 3)}


def recurrent_op(row: Row) -> Op:
    """Return the operator of a recurrent-layer row, or of its gradient."""
    mode, num_gates = _RECURRENT_MODES[row["op"]]
    hidden, batch, steps = (int(row[key]) for key in ("hidden", "batch", "timesteps"))
    source, weight, state = (
        TensorSpec(shape=shape, dtype=_dtype(row), device="cuda:0")
        for shape in ((steps, batch, hidden), (num_gates * hidden, hidden), (1, batch, hidden))
    )
    is_forward = row["phase"] == "fw"
    return Op(
        name="aten._cudnn_rnn.default" if is_forward else "aten._cudnn_rnn_backward.default",
        inputs=(source, weight, weight, state),
        outputs=(source, state),
        attributes={
            "mode": mode,
            "hidden_size": hidden,
            "num_layers": 1,
            "batch_first": False,
            "bidirectional": False,
        },
    )


# Operators in the table of Apple's chips; elementwise ones map a tensor to one like it.
_APPLE_NAMES = {
    "LeakyReLU": "leaky_relu.default", "PReLU": "_prelu_kernel.default", "ReLU": "relu.default",
    "SeLU": "elu.default", "Sigmoid": "sigmoid.default", "Softplus": "softplus.default",
    "BCE": "binary_cross_entropy.default", "Concat": "cat.default", "Sort": "sort.default",
    "Gather": "index_select.default", "Scatter": "index_copy_.default",
    "ScatterMax": "index_reduce_.default", "ScatterSum": "index_add_.default",
    "Argmax": "argmax.default", "Sum": "sum.dim_IntList", "SumAll": "sum.default",
}  # fmt: skip


def apple_ops(row: Row) -> tuple[Op, ...]:
    """Return the operators of a row in the table of Apple's chips.

    Its ``args`` are the shapes of the inputs, and the dimension: ``dim=64x1024 axi=1``. Images have
    their channels last.
    """
    args, name = row["args"], row["op"]
    shapes = [tuple(map(int, found.split("x"))) for found in re.findall(r"dim=([\dx]+)", args)]
    axis = re.search(r"axi=(-?\d+)", args)
    dim = int(axis[1]) if axis else None
    first, last, x = shapes[0], shapes[-1], _float32(*shapes[0])
    if name == "ScaledDotProductAttention":
        # Run operator by operator, as without a fused kernel.
        (*batch, queries, channels), keys = first, shapes[1][-2]
        scores = (*batch, queries, keys)
        left = _apple_product(first, (*batch, channels, keys))
        right = _apple_product(scores, (*batch, keys, channels))
        return left, _softmax_op(_float32(*scores)), right
    if name in ("MatMul", "Linear"):
        return (_apple_product(*shapes[:2]),)
    if name.startswith("Conv"):
        return (_apple_convolution(first, last),)
    if name in ("Softmax", "LayerNorm"):
        return ((_softmax_op if name == "Softmax" else _layer_norm_op)(x),)
    inputs, outputs = (x,), (x,)
    if name in ("Argmax", "Sum", "SumAll"):
        kept = tuple(size for place, size in enumerate(first) if dim not in (None, place))
        outputs = (_float32(*kept),)
    elif name == "Concat":
        along = dim or 0
        joined = (*first[:along], first[along] + last[along], *first[along + 1 :])
        inputs, outputs = (x, _float32(*last)), (_float32(*joined),)
    elif name == "BCE":
        inputs, outputs = (x, x), (_float32(),)
    elif name.startswith(("Gather", "Scatter")):
        # An index reads or writes one row.
        index = TensorSpec(shape=last, dtype="int64", device="cuda:0")
        rows = _float32(*last, *first[1:])
        inputs, outputs = ((x, index), (rows,)) if name == "Gather" else ((x, index, rows), (x,))
    attributes = {} if dim is None else {"dim": dim}
    operator = f"aten.{_APPLE_NAMES[name]}"
    return (Op(name=operator, inputs=inputs, outputs=outputs, attributes=attributes),)


def _apple_product(left: Sequence[int], right: Sequence[int]) -> Op:
    """Return the product of two matrices, or of two batches of matrices."""
    *batch, m, k = left
    sizes = {"B": math.prod(batch), "M": m, "N": k, "K": right[-1]}
    build = linear_op if len(right) == 2 else bmm_op
    return build({key: str(size) for key, size in sizes.items()})


def _apple_convolution(images: Sequence[int], windows: Sequence[int]) -> Op:
    """Return a convolution without padding; treat a sequence as an image of one row."""
    (count, *pixels, c_in), (c_out, *window, _) = images, windows
    (height, width), (kh, kw) = (1, *pixels)[-2:], (1, *window)[-2:]
    sizes = {"N": count, "Cin": c_in, "H": height, "W": width, "Cout": c_out, "kh": kh, "kw": kw}
    steps = {"pad_h": 0, "pad_w": 0, "stride_h": 1, "stride_w": 1}
    row = {key: str(size) for key, size in (sizes | steps).items()}
    return convolution_op(row | {"dtype": "fp32", "phase": "fw"})
