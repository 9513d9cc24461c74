"""Single operators with arguments that show where they differ, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {}


def op(name: str, function: Callable[..., Any], *arguments: Tensor) -> None:
    CASES[name] = function, arguments


def words(text: str) -> list[str]:
    return text.split()


def _set(t):
    t = t.clone()
    t[1:3, ::2] = 5
    t[0] += 1
    return t * 2


def _set2(t):
    t = t * 1
    t[:, 1] = t[:, 2]
    t[:, 0].mul_(3)
    return t


def _set3(t, m):
    t = t * 1
    t[m] = 0
    return t


def _fd(t):
    t = t.clone()
    t.fill_diagonal_(0)
    return t


def add_cases() -> None:
    """Fill the table."""
    nan, inf = float("nan"), float("inf")
    x = torch.randn(5, 7)
    y = torch.randn(5, 7)
    v = torch.randn(7)
    k3 = torch.randn(3, 5, 7)
    z = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -2.5])
    w = torch.tensor([1.0, nan, 0.0, -0.0, inf, -inf, 2.0])
    d = torch.randn(5, 7, dtype=torch.float64)
    i = torch.randint(-5, 6, (5, 7))
    j = torch.randint(1, 6, (5, 7))
    ix = torch.randint(0, 5, (4, 7))
    ir = torch.randint(0, 5, (6,))
    b = torch.rand(5, 7) > 0.5
    c = torch.rand(5, 7) > 0.3
    u = torch.randint(0, 255, (5, 7)).to(torch.uint8)
    big = torch.tensor([2**62, -(2**63), 2**53 + 1, 7])
    s0 = torch.tensor(1.5)
    e = torch.empty(0, 7)
    i32 = i.int()

    sq = torch.randn(5, 5)
    for n in words("""
        abs neg exp expm1 sin cos tan atan tanh sigmoid erf floor ceil trunc round sign sgn relu
        reciprocal square asinh sinh cosh frac isnan isinf isfinite signbit logical_not exp2
        erfc atan asin acos acosh atanh positive rad2deg
    """):
        fn = getattr(torch, n)
        op(n, fn, x * 0.4)
        op(n + "_nan", fn, z)
    for n in ["log", "log1p", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma"]:
        op(n, getattr(torch, n), x.abs() + 0.1)
        op(n + "_nan", getattr(torch, n), z)
    for n in words("""
        relu elu selu celu gelu silu mish softplus softsign hardswish hardtanh hardsigmoid relu6
        leaky_relu logsigmoid softshrink hardshrink tanhshrink threshold glu
    """):
        fn = getattr(F, n)
        if n == "threshold":
            op("F.threshold", lambda t: F.threshold(t, 0.1, 0.5), x)
            continue
        if n == "glu":
            op(n, lambda t: F.glu(t, 0), torch.randn(6, 7))
            continue
        op("F." + n, fn, x * 3)
        if n != "gelu":  # eager torch has NaN for infinity
            op("F." + n + "_nan", fn, z)
    op("gelu_tanh", lambda t: F.gelu(t, approximate="tanh"), x)
    for n in words("""
        add sub mul div maximum minimum fmax fmin atan2 remainder fmod floor_divide eq ne lt le
        gt ge logical_and logical_or logical_xor copysign hypot pow xlogy
    """):
        fn = getattr(torch, n)
        op(n, fn, x, y if n != "pow" else y.round())
        op(n + "_nan", fn, z, w)
        op(n + "_i", fn, i if n != "pow" else x, j) if n != "hypot" else None
        op(n + "_mix", fn, x, j)
        op(n + "_d", fn, x, d)
        op(n + "_0d64", fn, x, torch.tensor(0.1, dtype=torch.float64))
        if n not in ("sub", "copysign", "hypot", "atan2"):
            op(n + "_b", fn, b, c) if n not in words("""
                remainder fmod floor_divide fmax fmin xlogy div pow
            """) else None
        if n not in words("""
            copysign hypot atan2 maximum minimum logical_and logical_or logical_xor fmax fmin
        """):
            op(n + "_s", lambda t, fn=fn: fn(t, 2), x)
            op(n + "_sf", lambda t, fn=fn: fn(t, 0.3), i)
    for m in ("floor", "trunc"):
        op("div_" + m, lambda a, bb, m=m: torch.div(a, bb, rounding_mode=m), x * 5, y)
        op("div_i_" + m, lambda a, bb, m=m: torch.div(a, bb, rounding_mode=m), i, j)
        op("div_ineg_" + m, lambda a, bb, m=m: torch.div(a, bb, rounding_mode=m), i, -j)
    op("rem_neg", torch.remainder, i, -j)
    op("fmod_neg", torch.fmod, i, -j)
    for n in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
        op(n, getattr(torch, n), i, j)
        op(n + "_b", getattr(torch, n), b, c)
    op("bitwise_not", torch.bitwise_not, i)
    op("bitwise_not_b", torch.bitwise_not, b)
    op("shl", lambda t: t << 2, i)
    op("shr", lambda t: t >> 1, i)
    op("lerp", lambda p, q: torch.lerp(p, q, 0.3), x, y)
    op("lerp_t", lambda p, q: torch.lerp(p, q, q), x, y)
    op("addcmul", lambda p, q: torch.addcmul(p, q, p, value=2), x, y)
    op("addcdiv", lambda p, q: torch.addcdiv(p, q, p, value=2), x, y)
    op("clamp", lambda t: t.clamp(-0.3, 0.4), x)
    op("clamp_nan", lambda t: t.clamp(-0.3, 0.4), z)
    op("clamp_t", lambda t, low: torch.clamp(t, low, low + 1), x, y)
    op("clamp_tnan", lambda t, low: torch.clamp(t, min=low), z, w)
    op("clamp_tnan2", lambda t, low: torch.clamp(t, max=low), z, w)
    op("clamp_i", lambda t: t.clamp(-2, 3), i)
    op("clamp_if", lambda t: t.clamp(-1.5, 2.5), i)
    op("clip1", lambda t: t.clamp(min=0.2), x)
    op("clamp_snan", lambda t: t.clamp(min=nan), x)
    op("where", torch.where, b, x, y)
    op("where_s", lambda m, t: torch.where(m, t, 0.0), b, x)
    op("where_mix", lambda m, t, q: torch.where(m, t, q), b, x, i)
    op("where_nan", lambda p, q: torch.where(p > q, p, q), z, w)
    op("where_d", torch.where, b, x, d)
    op("masked_fill", lambda t, m: t.masked_fill(m, -inf), x, b)
    op("masked_fill_t", lambda t, m, s: t.masked_fill(m, s), x, b, s0)
    op("softmax", lambda t: t.softmax(-1), x)
    op("softmax0", lambda t: t.softmax(0), x)
    op("softmax_ninf", lambda t: torch.stack([t, torch.full_like(t, -inf)]).softmax(-1), v)
    op("softmax_nan", lambda t: t.softmax(0), z)
    op("log_softmax", lambda t: t.log_softmax(1), k3)
    op("softmin", lambda t: F.softmin(t, 1), k3)
    for n in words("""
        sum mean amax amin prod std var logsumexp cumsum cumprod argmax argmin all any max min
        norm nansum median count_nonzero flip cummax logcumsumexp aminmax sort topk argsort mode
        kthvalue unbind softmax var_mean std_mean diff
    """):
        fn = getattr(torch, n)
        dimless = n in words("""
            cumsum cumprod logsumexp cummax logcumsumexp flip topk softmax
        """)
        if n not in ("logsumexp", "flip", "softmax") and not dimless:
            op("R." + n, lambda t, fn=fn: fn(t), x) if n != "kthvalue" else None
        if n == "flip":
            op("flip", lambda t: t.flip(0, 2), k3)
            continue
        if n == "topk":
            op("topk", lambda t: t.topk(2, -1), x)
            continue
        if n == "kthvalue":
            op("kthvalue", lambda t: t.kthvalue(2, -1), x)
            continue
        if n == "norm":
            for p in (1, 2, inf, 3, 0, 0.5):
                op(f"norm{p}", lambda t, p=p: torch.norm(t, p, 1), x)
                op(f"vnorm{p}", lambda t, p=p: torch.linalg.vector_norm(t, p), x)
            continue
        if n == "diff":
            op("diff", torch.diff, x)
            continue
        if n == "aminmax":
            op("aminmax", lambda t: torch.aminmax(t, dim=1), x)
            continue
        for q in (0, 1, 2):
            op(f"R.{n}{q}", lambda t, q=q, fn=fn: fn(t, dim=q), k3)
        if n in ("sum", "mean", "amax", "amin", "std", "var", "logsumexp", "all", "any"):
            op(f"R.{n}02", lambda t, fn=fn: fn(t, dim=(0, 2)), k3)
            op(f"R.{n}k", lambda t, fn=fn: fn(t, dim=(1, 2), keepdim=True), k3)
        if n not in words("""
            mean std var logsumexp std_mean var_mean logcumsumexp softmax
        """):
            op(f"R.{n}i", lambda t, fn=fn: fn(t, dim=1), i)
        if (
            n in ("sum", "prod", "all", "any", "cumsum", "argmax", "amax", "max", "cumprod")
            and n != "argmax"
        ):
            op(f"R.{n}b", lambda t, fn=fn: fn(t, dim=1), b)
        if n in words("""
            sum mean amax amin prod max min argmax argmin cumsum cumprod logsumexp any all
            nansum cummax std var
        """):
            op(f"R.{n}nan", lambda t, fn=fn: fn(t, dim=0), z)
            op(f"R.{n}nan2", lambda t, fn=fn: fn(t, dim=0), z[2:])
        if n in words("""
            sum mean std var prod max min argmax amax cumsum any
        """):
            op(f"R.{n}0d", lambda t, fn=fn: fn(t, dim=0), s0)
    op("sum_dtype", lambda t: t.sum(dtype=torch.float64), x)
    op("mean_dtype", lambda t: t.mean(1, dtype=torch.float64), x)
    op("sum_i32", lambda t: t.sum(0), i32)
    op("sum_empty", lambda t: t.sum(0), e)
    op("sum_empty_all", lambda t: t.sum(), e)
    op("mean_empty", lambda t: t.mean(0), e)
    op("prod_empty", lambda t: t.prod(0), e)
    op("var1", lambda t: t[:1].var(0), x)
    op("sum_u8", lambda t: t.sum(), u)
    op("max_ties", lambda t: t.max(1), i)
    op("min_ties", lambda t: t.min(0), i)
    op("boolsum_mean", lambda t: t.float().mean(), b)
    op("bool_add", lambda p, q: (p + q) + p, b, c)
    op("bool_mul", lambda p, q: p * q, b, c)
    op("bool_add_sum", lambda p, q: (p + q).sum(), b, c)
    op("bool_eq", lambda p, q: (p + q) == p, b, c)
    op("ovf", lambda t: t * 3, big)
    op("ovf2", lambda t: t + t, big)
    op("ovf_cmp", lambda t: (t + 1) > t, big)
    op("int_const", lambda t: t + (2**53 + 1), big)
    op("int_eq", lambda t: t == 2**53 + 1, big)
    op("intmin", lambda t: t.clamp(min=-(2**63)), big)
    op("u8ovf", lambda t: t + t, u)
    op("u8neg", lambda t: -t, u)
    op("big2f", lambda t: t.float(), big)
    op("sumovf", lambda t: (t + t).sum(), big)
    op("i32ovf", lambda t: t * 1000000000, i32)
    op("to_bool", lambda t: (t * 0.4).bool(), x)
    op("to_int", lambda t: (t * 9).long(), x)
    op("to_u8", lambda t: (t.abs() * 9).to(torch.uint8), x)
    op("const_to_int", lambda t: t + torch.full((7,), 0.7).long().float(), v)
    op("const_to_bool", lambda t: t + torch.full((7,), 0.7).bool().float(), v)
    op("const_f32_f64", lambda t: t.double() + torch.full((7,), 0.1).double(), v)
    op("view_dtype", lambda t: t.view(torch.int32), x)
    op("cat", lambda a_, b_: torch.cat([a_, b_, a_], 1), x, y)
    op("cat0", lambda a_, b_: torch.cat([a_ * 2, b_], 0).sum(1), x, y)
    op("cat_mix", lambda a_, b_: torch.cat([a_, b_], 0), x, i)
    op("stack", lambda a_, b_: torch.stack([a_, b_], -1), x, y)
    op("cat_empty", lambda a_, b_: torch.cat([a_, b_], 0), x, e)
    op("hstack", lambda a_, b_: torch.hstack([a_, b_]), x, y)
    op("split", lambda t: [q * 1 for q in t.split([2, 4, 1], 1)], x)
    op("chunk", lambda t: t.chunk(3, 1)[1] + 1, x)
    op("unbind", lambda t: t.unbind(0)[1] * 2, x)
    op("slice_neg", lambda t: t[-3:-1, 1::3], x)
    op("slice_empty", lambda t: t[3:1], x)
    op("cat_slice_empty", lambda t: torch.cat([t, t])[7:3].sum(0) + t[0], x)
    op("narrow", lambda t: t.narrow(1, 2, 3), x)
    op("tile", lambda t: t.repeat(2, 3), x)
    op("repint", lambda t: t.repeat_interleave(3, 1), x)
    op("expand", lambda t: t.expand(4, 5, 7) * 1, x)
    op("roll", lambda t: t.roll((1, -2), (0, 1)), x)
    op("roll_flat", lambda t: t.roll(3), x)
    op("rot90", lambda t: torch.rot90(t), x)
    op("tril", lambda t: t.tril(-1), x)
    op("triu", lambda t: t.triu(1), k3)
    op("diag", lambda t: t.diagonal() * 2, x)
    op("diag_embed", torch.diag_embed, x)
    op("diagm", torch.diag, v)
    op("movedim", lambda t: t.movedim(0, 2).contiguous() + 1, k3)
    op("pad", lambda t: F.pad(t, (1, 2, 0, 3), value=0.5), x)
    op("padneg", lambda t: F.pad(t, (-1, -2)), x)
    op("padneg2", lambda t: F.pad(t, (-1, 2, 3, -1)), x)
    op("pad_reflect", lambda t: F.pad(t, (2, 1), mode="reflect"), k3)
    op("pad_rep", lambda t: F.pad(t, (2, 1), mode="replicate"), k3)
    op("pad_circ", lambda t: F.pad(t, (2, 1), mode="circular"), k3)
    op("unfold", lambda t: t.unfold(1, 3, 2) * 1, x)
    op("as_strided", lambda t: t.as_strided((3, 3), (7, 2), 1) * 2, x)
    op("meshgrid", lambda t: torch.meshgrid(t, t, indexing="ij")[0] * 1, v)
    op("outer", torch.outer, v, v)
    op("kron", torch.kron, x, x[:2, :2])
    op("trace", torch.trace, x)
    op("cdist", lambda p, q: torch.cdist(p, q), x, y)
    op("pairwise", F.pairwise_distance, x, y)
    op("cos_sim", F.cosine_similarity, x, y)
    op("normalize", F.normalize, x)
    op("cross", lambda t: torch.linalg.cross(t[:, :3], t[:, 1:4]), x)
    op("select_mid", lambda t: t.select(1, -2), k3)
    op("flatten", lambda t: t.transpose(0, 2).flatten(1) * 1, k3)
    op("squeeze", lambda t: t[:1].squeeze() + 1, x)
    op("t", lambda t: t.t() @ t, x)
    op("block_diag", lambda p, q: torch.block_diag(p, q), x, y)
    op("vander", lambda t: torch.vander(t, 3), v)
    op("tensor_split", lambda t: torch.tensor_split(t, 3, 1)[1] * 1, x)
    op("unflatten", lambda t: t.unflatten(1, (1, 7)) + 1, x)
    op("mm", lambda a_, b_: a_ @ b_.t(), x, y)
    op("mm1", lambda a_: a_[:, :1] @ a_[:1], x)
    op("bmm", lambda t: t @ t.transpose(1, 2), k3)
    op("bmm4", lambda t: t.view(1, 3, 5, 7) @ t.view(3, 1, 7, 5), k3)
    op("mv", lambda a_, b_: a_ @ b_, x, v)
    op("dot", torch.dot, v, v)
    op("addmm", lambda a_, b_: torch.addmm(a_[:, :5], a_, b_.t(), alpha=0.5, beta=2), x, y)
    op("addmm_b0", lambda a_, b_: torch.addmm(a_[:, :5], a_, b_.t(), beta=0), x, y)
    op(
        "baddbmm",
        lambda t: torch.baddbmm(t[:, :, :5], t, t.transpose(1, 2), alpha=0.5, beta=0.3),
        k3,
    )
    op("addmv", lambda a_, b_: torch.addmv(a_[:, 0], a_, b_, alpha=2), x, v)
    op("einsum", lambda t: torch.einsum("bij,bkj->bik", t, t), k3)
    op("einsum2", lambda t, q: torch.einsum("bij,ij->b", t, q), k3, x)
    op("matmul3", lambda t, q: t @ q.t(), k3, x)
    op("mm_int", lambda t: t @ t.t(), i)
    op("mm_d", lambda t: t @ t.t(), d)
    op("mm_empty", lambda t: t.t() @ t, e)
    op("mm_empty2", lambda t, q: t @ q.t(), e, x)
    op("tensordot", lambda t: torch.tensordot(t, t, dims=([1, 2], [1, 2])), k3)
    op("chain_matmul", lambda t: t @ t.t() @ t, x)
    op("addr", lambda t: torch.addr(t, t[:, 0], t[0]), x)
    op("baddbmm_v", lambda t: torch.bmm(t, t.mT), k3)
    op("gather", lambda t, n: t.gather(0, n), x, ix)
    op("gather1", lambda t, n: t.gather(1, n.t()[:5]), x, ix)
    op("index_select", lambda t, n: t.index_select(0, n), x, ir)
    op("index_select1", lambda t, n: t.index_select(1, n), x, ir)
    op("index", lambda t, n: t[n], x, ir)
    op("index1", lambda t, n: t[:, n], k3, ir % 5)
    op("index2", lambda t, n: t[n, n], x, ir)
    op("index2b", lambda t, n: t[:, n, n], k3, ir % 5)
    op("index_gap", lambda t, n: t[n % 3, :, n], k3, ir)
    op("index_bc", lambda t, n: t[n[:, None], n[None]], x, ir)
    op("index_neg", lambda t, n: t[-n - 1], x, ir)
    op("index_2d", lambda t, n: t[n], x, ix)
    op("index_bool", lambda t, m: t[m], x, b)
    op("take", lambda t, n: t.take(n), x, ix)
    op("take_along", lambda t, n: torch.take_along_dim(t, n, 0), x, ix)
    op("embedding", lambda t, n: F.embedding(n, t), x, ix)
    op("embedding_pad", lambda t, n: F.embedding(n, t, padding_idx=1), x, ix)
    op("embedding_bag", lambda t, n: F.embedding_bag(n, t, mode="sum"), x, ix)
    op("one_hot", lambda n: F.one_hot(n, 6), ix)
    op("arange_eq", lambda n: (n[..., None] == torch.arange(5)).float(), ix)
    op(
        "scatter",
        lambda t, n, q: t.scatter(0, n, q[:4]),
        x,
        torch.stack([torch.randperm(5)[:4] for _ in range(7)], 1),
        y,
    )
    op("scatter_s", lambda t, n: t.scatter(1, n, 2.5), x, ix.t()[:5, :1])
    op("scatter_s2", lambda t, n: t.scatter(0, n, 2.5), x, ix)
    op("scatter_add", lambda t, n, q: t.scatter_add(0, n, q[:4]), x, ix, y)
    op("scatter_add1", lambda t, n, q: t.scatter_add(1, n[:, :4].t(), q[:4, :4]), x, ix, y)
    for r in ("sum", "prod", "amax", "amin", "mean"):
        op("scatter_reduce_" + r, lambda t, n, q, r=r: t.scatter_reduce(0, n, q[:4], r), x, ix, y)
    op("index_add", lambda t, n, q: t.index_add(0, n, q[:4], alpha=2), x, ir[:4], y)
    op("index_add1", lambda t, n, q: t.index_add(1, n[:3], q[:, :3]), x, ir, y)
    op("index_copy", lambda t, q: t.index_copy(0, torch.tensor([3, 1]), q[:2]), x, y)
    op("index_copy2", lambda t, n, q: t.index_copy(0, n, q[:2]), x, torch.tensor([3, 1]), y)
    op("index_fill", lambda t, n: t.index_fill(0, n, 7.0), x, ir)
    op("index_put", lambda t, n, q: t.index_put((n,), q[:4]), x, torch.tensor([3, 1, 0, 2]), y)
    op("index_put_acc", lambda t, n, q: t.index_put((n,), q[:4], accumulate=True), x, ir[:4], y)
    op("index_put_acc2", lambda t, n, q: t.index_put((n, n), q[0, :6], accumulate=True), x, ir, y)
    op("index_put_bool", lambda t, m: t.index_put((m,), torch.tensor(0.0)), x, b)
    op("setitem", lambda t: _set(t), x)
    op("setcol", lambda t: _set2(t), x)
    op("setmask", lambda t, m: _set3(t, m), x, b)
    op("masked_scatter", lambda t, m, q: t.masked_scatter(m, q), x, b, y)
    op("select_scatter", lambda t: torch.select_scatter(t, t[0] * 2, 0, -1), x)
    op("slice_scatter", lambda t: torch.slice_scatter(t, t[:, :2] * 3, 1, 1, 6, 3), x)
    op("diagonal_scatter", lambda t: torch.diagonal_scatter(t, t[:, 0]), x)
    op("fill", lambda t: torch.zeros_like(t).fill_(3) + t, x)
    op("fill_diag", lambda t: _fd(t), sq)
    op("searchsorted", lambda t: torch.bucketize(t, torch.tensor([-1.0, 0.0, 1.0])), x)
    op("bincount", lambda n: torch.bincount(n, minlength=8), ir)
    op("histc", lambda t: torch.histc(t, 5), x)
    op("nan_to_num", lambda t: torch.nan_to_num(t), z)
    op("isclose", torch.isclose, x, y)
    op("heaviside", lambda p, q: torch.heaviside(p, q), z, w)
    op("full_t", lambda s: torch.full((3,), 2.0) * s, s0)
    op("zeros_0", lambda t: t + torch.zeros(()), x)
    op("item_like", lambda s, t: s * t, s0, x)
    op("0d_arith", lambda s: (s * 2).exp() + s, s0)
    op("size1", lambda t: (t[:1] * t[:, :1]).sum(0), x)
    op("polar", lambda t: torch.polar(t.abs(), t).real, x)
    op("complex", lambda t: torch.fft.rfft(t).abs(), x)
    op("renorm", lambda t: torch.renorm(t, 2, 0, 1.0), x)
    op("quantile", lambda t: t.quantile(0.5, 1), x)
    op("bernoulli", lambda t: torch.sigmoid(t), x)
    op("linspace", lambda t: t + torch.linspace(0, 1, 7), x)
    op("logspace", lambda t: t + torch.logspace(0, 1, 7), x)
    op("eye", lambda t: t + torch.eye(5, 7), x)
    op("arange_f", lambda t: t + torch.arange(0.5, 4.0, 0.5), x)
    op("arange_d", lambda t: t + torch.arange(10, 3, -1), x)
    op(
        "tri",
        lambda t: t.masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(1), -inf).softmax(-1),
        x,
    )
    op("trapz", torch.trapezoid, x)
    op("det", torch.det, sq)
    op("inv", torch.linalg.inv, sq)
    op("cumsum_rev", lambda t: t.flip(0).cumsum(0).flip(0), x)
    op("gaussian", lambda t: torch.special.erfinv(t.clamp(-0.9, 0.9)), x)
    op("nll", lambda t, n: F.nll_loss(t, n), x, ir[:5])
    op("interp", lambda t: F.interpolate(t, size=9, mode="linear"), k3)
    op("interp_n", lambda t: F.interpolate(t, scale_factor=2), k3)
    op(
        "sdpa",
        lambda t: F.scaled_dot_product_attention(
            t[:, None], t[:, None], t[:, None], is_causal=True
        ),
        k3,
    )
    op("group_norm", lambda t: F.group_norm(t, 5), k3)
    op("layer_norm", lambda t: F.layer_norm(t, (7,)), k3)
    op("rms_norm", lambda t: F.rms_norm(t, (7,)), k3)
    op("inst_norm", lambda t: F.instance_norm(t), k3)
    op("local_resp", lambda t: F.local_response_norm(t, 3), k3)
    op("bilinear", lambda p, q: F.bilinear(p, q, torch.ones(2, 7, 7)), x, y)
    op("pixel_shuffle", lambda t: F.pixel_shuffle(t.view(1, 4, 3, 2), 2), torch.randn(24))
    op("fold_im", lambda t: F.unfold(t.view(1, 1, 5, 7), 2), x)
    op("kl", lambda p, q: F.kl_div(p.log_softmax(1), q.softmax(1), reduction="batchmean"), x, y)


with torch.random.fork_rng():
    torch.manual_seed(0)
    add_cases()
