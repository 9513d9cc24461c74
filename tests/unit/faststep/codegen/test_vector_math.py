"""The functions of vector_math.h, in the vector code that the compiler makes of them.

Held to the bounds that the header states: those of float against numpy and torch in double, those
of double against mpmath.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from faststep import codegen

HEADER = Path(codegen.__path__[0]) / "vector_math.h"
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
]
# The largest error of float and of double, in units of the last place.
LARGEST_ULP = {
    "exp": (1.5, 1.5),
    "expm1": (2, 2.5),
    "log": (1, 1),
    "log1p": (2, 2),
    "tanh": (3, 3),
    "sigmoid": (2.5, 2.5),
    "erf": (2.5, 2.5),
}
FUNCTIONS = list(LARGEST_ULP)
# With the instructions of this processor, multiply-add among them, and with those that all have.
TARGETS = {"native": ["-march=native"], "baseline": []}
LOOP = """
void loop_{name}(const {type} *restrict x, {type} *restrict y, long n) {{
  #pragma omp simd
  for (long i = 0; i < n; i++) y[i] = {name}(x[i]);
}}
"""
SOURCE = f'#include "{HEADER}"\n' + "".join(
    LOOP.format(name=f"{prefix}_{name}", type=kind)
    for prefix, kind in (("f32", "float"), ("f64", "double"))
    for name in FUNCTIONS
)

Array = np.ndarray[Any, Any]


def compiler() -> str:
    named = os.environ.get("CC", "").split()[:1] or ["gcc", "clang", "cc"]
    found = next(filter(None, map(shutil.which, named)), None)
    if found is None:
        pytest.skip(f"no C compiler: none of {', '.join(named)}")
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vector_math") / "loops.c"
    path.write_text(SOURCE, "utf-8")
    return path


@pytest.fixture(scope="module", params=TARGETS)
def library(request: pytest.FixtureRequest, source: Path) -> ctypes.CDLL:
    target = TARGETS[request.param]
    made = source.with_name(f"{request.param}.so")
    subprocess.run([compiler(), *FLAGS, *target, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):  # the logarithms of negative numbers are meant
        yield


def applied(library: ctypes.CDLL, name: str, x: Array) -> Array:
    y = np.empty_like(x)
    prefix = "f32" if x.dtype == np.float32 else "f64"
    loop = getattr(library, f"loop_{prefix}_{name}")
    loop(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(len(x)))
    return y


@functools.cache
def samples(kind: type, count: int) -> Array:
    """Return numbers of every exponent, and more of where the functions change."""
    rng = np.random.default_rng(0)
    info = np.finfo(kind)
    bits = rng.integers(0, 2**info.bits, count, dtype=np.uint64)
    any_bits = bits.astype(f"u{info.bits // 8}").view(kind)
    largest = np.log(float(info.max))
    signs = rng.choice([-1, 1], count)
    x = np.concatenate([
        any_bits.astype(np.float64),
        rng.uniform(-1.2 * largest, largest * 1.01, count // 2),
        rng.uniform(-10, 10, count // 2),
        rng.uniform(-1, 1, count),
        rng.uniform(0.5, 2, count // 2),
        signs * 2.0 ** rng.uniform(-30, 5, count),
        rng.uniform(-1, -0.99, count // 10),
    ]).astype(kind)  # fmt: skip
    # Next to where results reach 0, 1 and infinity, or another branch is taken.
    edges = [info.tiny, 1, 2 / 3, 4 / 3, -1 / 3, 1 / 3, -1, largest, -largest]
    edges += [np.log(float(info.tiny)), 4, 6, 9, 10, 17, 20, 40, info.max]
    steps = np.arange(-20, 21)
    near = [edge + steps * np.spacing(abs(edge)) for edge in np.array(edges, kind)]
    x = np.concatenate([x, *near]).astype(kind)
    return x[np.isfinite(x)]


def ulp_errors(got: Array, low: Array, high: Array, reference: Array) -> Array:
    """Return |got - (high + low)| in units of the last place of `reference`, in got's type."""
    info = np.finfo(got.dtype)
    exponents = np.frexp(np.abs(reference).astype(np.float64))[1] - info.nmant - 1
    exponents = np.maximum(exponents, info.minexp - info.nmant)
    # In two steps: no scale of its own leaves the range of double.
    difference = (got.astype(np.float64) - high) - low
    return np.ldexp(np.ldexp(np.abs(difference), -exponents // 2), -exponents - (-exponents // 2))


def assert_within(name: str, x: Array, got: Array, high: Array, low: Array) -> None:
    kind = got.dtype
    wanted = high.astype(kind)
    is_number = np.isfinite(wanted)
    # What exp and sigmoid give where C gives a subnormal number.
    if name in ("exp", "sigmoid"):
        is_flushed = (np.abs(wanted) < np.finfo(kind).tiny) & (got == 0)
        is_number &= ~is_flushed
    errors = np.where(is_number, ulp_errors(got, low, high, wanted), 0)
    worst = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
    bound = LARGEST_ULP[name][kind == np.float64]
    assert errors[worst] <= bound, f"{errors[worst]:.2f} ulp at {x[worst]!r}: {got[worst]!r}"
    others = ~np.isfinite(wanted)
    np.testing.assert_array_equal(got[others], wanted[others])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FLOAT_REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
}
EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "erf": mpmath.erf,
}
LOWEST = {"log": 0, "log1p": -1}


@functools.cache
def exact_results(name: str) -> tuple[Array, Array, Array]:
    """Return arguments, and what is exact for them as the sum of two doubles."""
    x = samples(np.float64, 300)
    x = x[x > LOWEST.get(name, -np.inf)]
    high, low = np.empty_like(x), np.empty_like(x)
    with mpmath.workprec(120):
        for i, one in enumerate(x):
            # Results do not change beyond 800, but mpmath would take ever longer.
            near = one if name in LOWEST else np.clip(one, -800, 800)
            exact = EXACT[name](mpmath.mpf(float(near)))
            high[i] = float(exact)
            low[i] = float(exact - high[i]) if np.isfinite(high[i]) else 0
    return x, high, low


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float_functions_keep_their_bounds(library: ctypes.CDLL, name: str) -> None:
    x = samples(np.float32, 100_000)
    wanted = np.asarray(FLOAT_REFERENCES[name](x.astype(np.float64)))
    assert_within(name, x, applied(library, name, x), wanted, np.zeros_like(wanted))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_functions_keep_their_bounds(library: ctypes.CDLL, name: str) -> None:
    x, high, low = exact_results(name)
    assert_within(name, x, applied(library, name, x), high, low)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_c(library: ctypes.CDLL, name: str, kind: type) -> None:
    info = np.finfo(kind)
    word = f"u{info.bits // 8}"
    quiet_nan = int(np.array(np.nan, kind).view(word))
    nans = np.array([quiet_nan, quiet_nan + 1, quiet_nan | 0xFFFFF, quiet_nan // 2 * 2 + 3], word)
    x = np.array([0.0, -0.0, np.inf, -np.inf, info.max, -info.max, 1, -1], kind)
    x = np.concatenate([x, nans.view(kind), -nans.view(kind)])
    got = applied(library, name, x)
    wanted = np.asarray(FLOAT_REFERENCES[name](x.astype(np.float64))).astype(kind)
    special = ~np.isfinite(wanted) | np.isin(wanted, [0, 1, -1])
    np.testing.assert_array_equal(got[special], wanted[special])
    zero = wanted == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(wanted[zero]))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid"])
def test_bounded_functions_keep_within_1(library: ctypes.CDLL, name: str, kind: type) -> None:
    x = np.linspace(-40, 40, 400_001).astype(kind)
    assert np.abs(applied(library, name, x)).max() == 1


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["tanh", "erf", "expm1", "log1p"])
def test_tiny_arguments_keep_their_digits(library: ctypes.CDLL, name: str, kind: type) -> None:
    info = np.finfo(kind)
    x = np.ldexp(np.linspace(1, 2, 1000), info.minexp + 1).astype(kind)
    x = np.concatenate([x, -x])
    slope = 2 / np.sqrt(np.pi) if name == "erf" else 1
    wanted = (slope * x).astype(kind)
    np.testing.assert_allclose(applied(library, name, x), wanted, rtol=4 * info.eps)


def test_no_loop_calls_a_function(source: Path) -> None:
    for target in TARGETS.values():
        made = source.with_suffix(".s")
        command = [compiler(), *FLAGS, *target, "-S", str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        assert not re.findall(r"^\s+(?:call|bl)\s.*", made.read_text("utf-8"), re.MULTILINE)


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="reads the code of x86-64 Linux",
)
def test_loops_are_vector_code(source: Path) -> None:
    made = source.with_name("avx2.s")
    command = [compiler(), *FLAGS, "-mavx2", "-mfma", "-S", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    for prefix, suffix in (("f32", "ps"), ("f64", "pd")):
        for name in FUNCTIONS:
            body = made.read_text("utf-8").split(f"\nloop_{prefix}_{name}:")[1].split(".size")[0]
            assert re.search(rf"\bvfn?m(add|sub)\d+{suffix}\b.*%ymm", body), name


def test_stated_bounds_are_those_held_to() -> None:
    stated = re.findall(r"^ +(\w+) +([\d.]+) +([\d.]+)$", HEADER.read_text("utf-8"), re.MULTILINE)
    assert {name: (float(f32), float(f64)) for name, f32, f64 in stated} == LARGEST_ULP
