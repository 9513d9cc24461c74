"""Lowering rules by operator name, and the bytes and arithmetic that they share.

Traffic is compulsory traffic: each kernel reads each input once and writes each output once,
without savings of caches or losses of poor access patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

from breakeven.cost.kernel import Family, Kernel
from breakeven.device import Precision
from breakeven.trace import Op, Settings, TensorSpec

Kernels = Kernel | tuple[Kernel, ...]
"""What a rule returns: one kernel, or several in launch order."""

Rule = Callable[[Op], Kernels]
SettingsRule = Callable[[Op, Settings], Kernels]


@cache
def base_name(op_name: str) -> str:
    """Return the name that rules are registered under: ``aten.add_.Tensor`` is ``add``.

    It drops the overload and the underscore of the in-place form, since both run the same kernel.
    Operators of other namespaces keep theirs: ``torchvision.nms``.
    """
    namespace, _, rest = op_name.partition(".")
    name = rest.partition(".")[0] or rest
    if not (name.startswith("__") and name.endswith("__")):
        name = name.removesuffix("_") or name
    return name if namespace == "aten" else f"{namespace}.{name}"


@cache
def overload_name(op_name: str) -> str:
    """Return the overload: ``Tensor`` for ``aten.add_.Tensor``, ``default`` if it has none."""
    parts = op_name.split(".")
    return parts[2] if len(parts) > 2 else "default"


@cache
def is_in_place(op_name: str) -> bool:
    """Return whether the operator writes into its first argument: ``aten.add_.Tensor``."""
    name = op_name.split(".")[1] if "." in op_name else op_name
    return name.endswith("_") and not name.endswith("__")


@cache
def has_out_argument(op_name: str) -> bool:
    """Return whether it has arguments for its results: ``aten.mm.out``, ``add.Scalar_out``."""
    overload = overload_name(op_name)
    return overload == "out" or overload.endswith("_out") or overload == "grad_input"


def names_in(text: str) -> frozenset[str]:
    """Return the names in ``text``, separated by blanks or line ends."""
    return frozenset(text.split())


class RuleTable(dict[str, SettingsRule]):
    """Rules by operator name, as `base_name` returns it."""

    def add(self, names: str | Iterable[str]) -> Callable[[Rule], Rule]:
        """Register a rule that depends only on the operator.

        Args:
            names: Operator names; in a text, separated by blanks or line ends.
        """

        def register(rule: Rule) -> Rule:
            self._set(names, lambda op, settings: rule(op))
            return rule

        return register

    def add_with_settings(
        self, names: str | Iterable[str]
    ) -> Callable[[SettingsRule], SettingsRule]:
        """Register a rule that also depends on torch's switches, as `add` does."""

        def register(rule: SettingsRule) -> SettingsRule:
            self._set(names, rule)
            return rule

        return register

    def join(self, other: RuleTable) -> None:
        """Add the rules of another table."""
        for name, rule in other.items():
            self._set((name,), rule)

    def _set(self, names: str | Iterable[str], rule: SettingsRule) -> None:
        for name in names.split() if isinstance(names, str) else names:
            assert name not in self, name
            self[name] = rule


# Widest first: torch computes mixed dtypes in the wider one. Eight-bit floats have no separate
# precision here; ``lower`` attaches a caveat to them.
_PRECISION_OF_DTYPE = {
    "float64": Precision.FP64,
    "complex128": Precision.FP64,
    "float32": Precision.FP32,
    "complex64": Precision.FP32,
    "bfloat16": Precision.BF16,
    "float16": Precision.FP16,
    "complex32": Precision.FP16,
    "float8_e4m3fn": Precision.FP16,
    "float8_e5m2": Precision.FP16,
}

# Instructions of a transcendental function (exp, tanh, erf, pow): special function units issue
# at a quarter of the FMA rate, plus range reduction. An order of magnitude; it matters only for
# float64 on devices with few fp64 units.
TRANSCENDENTAL_FLOP = 10


# Other changes of dtype choose the conversion for each element separately, which costs
# instructions rather than bandwidth. At half the fp32 peak, the rate of elementwise kernels,
# this many give the 61, 124, 138 and 150 elements per ns that P100, V100, A100 and MI100 convert
# from float32 to bool, and a third of that on a T4, which clocks down (NeuSight, torch 2.1).
_DYNAMIC_CAST_FLOP = 64
_FLOATS_WITH_COPY_KERNELS = frozenset(("float32", "float16", "bfloat16"))


def tensor_bytes(spec: TensorSpec) -> float:
    """Return the bytes of reading or writing ``spec`` once.

    An expanded tensor occupies less than its shape. The trace does not record the dimension of
    stride 0, so its longest one is assumed. This is exact for the usual gradient of a sum over one
    dimension and for a broadcast bias, and an upper bound if several dimensions are expanded.
    """
    if spec.layout == "expanded" and spec.numel:
        return spec.num_bytes / max(spec.shape)
    return float(spec.num_bytes)


def total_bytes(specs: Iterable[TensorSpec]) -> float:
    """Return the bytes of reading or writing each of ``specs`` once."""
    return sum((tensor_bytes(spec) for spec in specs), 0.0)


def broadcast_bytes(op: Op) -> float:
    """Return the bytes read by an elementwise operator; a broadcast input counts in full.

    Its repeats come from the cache, but computing their addresses slows the kernel by as much. A
    layer of a transformer, timed operator by operator (NeuSight, torch 2.1), adds a mask of
    (8, 1, S, S) to scores of (8, 32, S, S) in the time of three full tensors at the speed of
    plain additions (V100 0.91 of the datasheet, A100 0.89), not of two. Scalars travel with the
    launch.
    """
    numel = output_numel(op)
    return sum(
        (
            float(numel * spec.element_bytes) if 1 < spec.numel < numel else tensor_bytes(spec)
            for spec in op.inputs
        ),
        0.0,
    )


def copy_kernel(
    op: Op, source: TensorSpec, result: TensorSpec, *, read_bytes: float | None = None
) -> Kernel:
    """Return a copy on the device; it reads all inputs unless ``read_bytes`` says otherwise.

    Its variant is ``strided`` if the memory format changes: one side is accessed in short runs.
    """
    is_rearranged = source.layout not in (result.layout, "expanded")
    # Copies between floats of 32 and 16 bits have fast kernels, aten/src/ATen/native/cuda/Copy.cu.
    dtypes = {source.dtype, result.dtype}
    is_cast = len(dtypes) > 1 and not dtypes <= _FLOATS_WITH_COPY_KERNELS
    return streaming_kernel(
        op,
        flop=_DYNAMIC_CAST_FLOP * result.numel if is_cast else 0,
        read_bytes=read_bytes,
        variant="strided" if is_rearranged else "",
    )


def precision_of(op: Op) -> Precision:
    """Return the arithmetic of an operator that uses no tensor cores.

    Integer and boolean operators count as FP32, whose units they share. As in torch's type
    promotion, scalars do not decide the dtype if an input has dimensions.
    """
    with_dimensions = [spec for spec in op.inputs if spec.shape]
    for specs in (with_dimensions, op.inputs, op.outputs):
        dtypes = {spec.dtype for spec in specs}
        for dtype, precision in _PRECISION_OF_DTYPE.items():
            if dtype in dtypes:
                return precision
    return Precision.FP32


def tensor_core_precision(spec: TensorSpec, *, allow_tf32: bool) -> Precision:
    """Return the arithmetic of a GEMM or convolution over ``spec``.

    TF32 means that torch permits it; a device without TF32 runs FP32.
    """
    precision = _PRECISION_OF_DTYPE.get(spec.dtype, Precision.FP32)
    return Precision.TF32 if precision is Precision.FP32 and allow_tf32 else precision


def multiply_add_flop(spec: TensorSpec) -> int:
    """Return the FLOP of one multiply-add: 2, and 8 for complex numbers (four real ones)."""
    return 8 if spec.dtype.startswith("complex") else 2


def output_numel(op: Op) -> int:
    """Return the elements of the largest result; without a result, of the largest input."""
    return max((spec.numel for spec in op.outputs or op.inputs), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """A rule: one kernel, or several alike, that read all inputs and write all outputs.

    Args:
        family: Cost model of the kernels.
        flop_per_input: Arithmetic per element of the first input.
        flop_per_output: Arithmetic per element of the result.
        num_read_twice: Number of leading inputs that are read twice.
        launches: Kernels.
        variant: As in `Kernel`.
    """

    family: Family = Family.ELEMENTWISE
    flop_per_input: int = 0
    flop_per_output: int = 0
    num_read_twice: int = 0
    launches: int = 1
    variant: str = ""

    def __call__(self, op: Op) -> Kernel:
        """Return the kernel of an operator."""
        in_flop = self.flop_per_input * op.inputs[0].numel if self.flop_per_input else 0
        return streaming_kernel(
            op,
            family=self.family,
            flop=in_flop + self.flop_per_output * output_numel(op),
            read_bytes=total_bytes(op.inputs) + total_bytes(op.inputs[: self.num_read_twice]),
            launches=self.launches,
            variant=self.variant,
        )


def streaming_kernel(
    op: Op,
    *,
    flop: float,
    family: Family = Family.ELEMENTWISE,
    read_bytes: float | None = None,
    write_bytes: float | None = None,
    launches: int = 1,
    num_blocks: int = 0,
    variant: str = "",
) -> Kernel:
    """Return a streaming kernel; by default it reads all inputs and writes all outputs."""
    return Kernel(
        family=family,
        flop=float(flop),
        read_bytes=total_bytes(op.inputs) if read_bytes is None else read_bytes,
        write_bytes=total_bytes(op.outputs) if write_bytes is None else write_bytes,
        precision=precision_of(op),
        launches=launches,
        num_blocks=num_blocks,
        variant=variant,
    )


reduction_kernel = partial(streaming_kernel, family=Family.REDUCTION)
scan_kernel = partial(streaming_kernel, family=Family.REDUCTION, variant="scan")
gather_kernel = partial(streaming_kernel, family=Family.GATHER, flop=0)
scatter_kernel = partial(streaming_kernel, family=Family.GATHER, flop=0, variant="scatter")
# A kernel that only writes the outputs.
fill_kernel = partial(streaming_kernel, flop=0, read_bytes=0.0, variant="fill")
