"""Fit the polynomials of src/faststep/codegen/vector_math.h, and print their coefficients.

    python benchmarks/fit_vector_math.py

Each is the polynomial whose largest error is the smallest possible, found by the exchange algorithm
of Remez with mpmath, and then rounded to float or double. Errors are weighted so that they count
as relative errors of the function that the header computes from it. Printed with each: the largest
error before and after the rounding, in units of the last place of a result just above 1 (2^-23 or
2^-52), and whether the header has these very coefficients. Ends with 1 if it has others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpmath import mp, mpf

HEADER = Path(__file__).parents[1] / "src/faststep/codegen/vector_math.h"
GRID = 1500
mp.dps = 50
HALF_LN2 = mp.log(2) / 2
Function = Callable[[mpf], mpf]


class Fit(NamedTuple):
    """A polynomial of the header: which function it stands for, where, and how errors count."""

    name: str
    function: Function
    weight: Function
    low: mpf
    high: mpf
    degree_f32: int
    degree_f64: int
    high_f64: mpf | None = None  # where the range of double is another


def exp_tail(r: mpf) -> mpf:
    """(exp(r) - 1 - r) / r^2, by its series: the quotient itself loses all digits near 0."""
    return mp.fsum(r**k / mp.factorial(k + 2) for k in range(45))


def tanh_tail(r: mpf) -> mpf:
    """(expm1(2 r) / 2 - r) / r^2."""
    return 2 * exp_tail(2 * r)


def log_tail(f: mpf) -> mpf:
    """(log(1 + f) - f + f^2 / 2) / f^3, by its series."""
    return mp.fsum((-f) ** k / (k + 3) for k in range(110))


def erf_exponent(a: mpf) -> mpf:
    """-log(1 - erf(a)) / a - 1."""
    return -mp.log(mp.erfc(a)) / a - 1


# exp and expm1 share a polynomial, so that its error counts as that of expm1, which is the larger.
# The ranges are those of the header's reductions and a little more: the rounding of n / ln(2) lets
# an argument fall just outside.
FITS = [
    Fit("exp_tail", exp_tail, lambda r: abs(r**2 / mp.expm1(r)),
        -HALF_LN2 * mpf("1.0001"), HALF_LN2 * mpf("1.0001"), 4, 9),
    Fit("tanh_tail", tanh_tail, lambda r: abs(2 * r**2 / mp.expm1(2 * r)),
        -HALF_LN2 * mpf("0.50005"), HALF_LN2 * mpf("0.50005"), 4, 9),
    Fit("log_tail", log_tail, lambda f: f**3 / mp.log1p(f),
        -mpf(1) / 3, mpf(1) / 3, 7, 18),
    Fit("erf_exponent", erf_exponent, lambda a: a * mp.erfc(a) / mp.erf(a),
        mpf("1e-9"), mpf("3.95"), 8, 22, mpf("5.95")),
]  # fmt: skip


def evaluate(coefficients: list[mpf], x: mpf) -> mpf:
    return mp.polyval(coefficients[::-1], x)


def largest_error(fit: Fit, coefficients: list[mpf], low: mpf, high: mpf) -> mpf:
    points = chebyshev_grid(low, high)[::3]
    return max(abs((evaluate(coefficients, x) - fit.function(x)) * fit.weight(x)) for x in points)


def chebyshev_grid(low: mpf, high: mpf) -> list[mpf]:
    """Return points that lie closer towards the ends, none of them in the middle."""
    angles = (mp.pi * (2 * k + 1) / (2 * GRID) for k in range(GRID))
    return [(low + high) / 2 - (high - low) / 2 * mp.cos(angle) for angle in angles]


def minimax(fit: Fit, degree: int, low: mpf, high: mpf) -> list[mpf]:
    """Return the coefficients of the best polynomial, constant first."""
    grid = chebyshev_grid(low, high)
    wanted = [fit.function(x) for x in grid]
    weights = [fit.weight(x) for x in grid]
    count = degree + 2
    nodes = [(2 * k + 1) * GRID // (2 * count) for k in range(count)]
    while True:
        # The polynomial whose error is +e, -e, +e ... at the nodes.
        rows = mp.matrix(count, count)
        for row, node in enumerate(nodes):
            for power in range(degree + 1):
                rows[row, power] = grid[node] ** power
            rows[row, degree + 1] = (-1) ** row / weights[node]
        solution = mp.lu_solve(rows, mp.matrix([wanted[node] for node in nodes]))
        coefficients, level = list(solution)[:-1], abs(solution[degree + 1])
        errors = [
            (evaluate(coefficients, x) - want) * weight
            for x, want, weight in zip(grid, wanted, weights, strict=True)
        ]
        if max(map(abs, errors)) <= level * mpf("1.001"):
            return coefficients
        nodes = alternating_peaks(errors, count)


def alternating_peaks(errors: list[mpf], count: int) -> list[int]:
    """Return where the error is largest between its changes of sign: `count` of them."""
    peaks: list[int] = []
    for index, error in enumerate(errors):
        if peaks and (error > 0) == (errors[peaks[-1]] > 0):
            if abs(error) > abs(errors[peaks[-1]]):
                peaks[-1] = index
        else:
            peaks.append(index)
    while len(peaks) > count:
        del peaks[0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1]
    return peaks


def literal(value: mpf, suffix: str) -> str:
    """Return the shortest decimal number that is this one as float (suffix f) or double."""
    return f"{np.float32(float(value))!s}f" if suffix else repr(float(value))


def stands_in(header: str, one: str) -> bool:
    """Return whether a polynomial of the header starts with this coefficient, or adds it."""
    added = f"- {one[1:]};" if one.startswith("-") else f"+ {one};"
    return added in header or f"= {one};" in header


def main() -> int:
    header = HEADER.read_text("utf-8")
    is_same = True
    for fit in FITS:
        for kind, suffix, degree, high, bits in (
            ("f32", "f", fit.degree_f32, fit.high, 23),
            ("f64", "", fit.degree_f64, fit.high_f64 or fit.high, 52),
        ):
            exact = minimax(fit, degree, fit.low, high)
            literals = [literal(value, suffix) for value in exact]
            rounded = [mpf(float(np.float32(one[:-1]) if suffix else one)) for one in literals]
            before, after = (
                mp.nstr(largest_error(fit, coefficients, fit.low, high) * 2**bits, 3)
                for coefficients in (exact, rounded)
            )
            missing = [one for one in literals if not stands_in(header, one)]
            is_same = is_same and not missing
            print(f"{kind} {fit.name}, degree {degree}: {before} ulp, rounded {after} ulp", end="")
            print(f"; not in the header: {', '.join(missing)}" if missing else "")
            for power, one in enumerate(literals):
                print(f"  [{power}] {one}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
