"""Pointwise operators of ATen as expressions of C.

``{0}``, ``{1}``, ... are the operands, already of the type in which the operator computes; ``{f}``
is the prefix of functions of that type in ``vector_math.h`` (``f32_`` or ``f64_``).
"""

from __future__ import annotations

# The result has the operands' common type.
ARITHMETIC = {
    "acos": "{f}acos({0})",
    "acosh": "{f}acosh({0})",
    "add": "{0} + {1}",
    "asin": "{f}asin({0})",
    "asinh": "{f}asinh({0})",
    "atan": "{f}atan({0})",
    "atan2": "{f}atan2({0}, {1})",
    "atanh": "{f}atanh({0})",
    "ceil": "{f}ceil({0})",
    "copysign": "{f}copysign({0}, {1})",
    "cos": "{f}cos({0})",
    "cosh": "{f}cosh({0})",
    "div": "{0} / {1}",
    "erf": "{f}erf({0})",
    "erfc": "{f}erfc({0})",
    "exp": "{f}exp({0})",
    "exp2": "{f}exp2({0})",
    "expm1": "{f}expm1({0})",
    "fma": "{0} * {1} + {2}",
    "floor": "{f}floor({0})",
    "hypot": "{f}hypot({0}, {1})",
    "lgamma": "{f}lgamma({0})",
    "log": "{f}log({0})",
    "log10": "{f}log10({0})",
    "log1p": "{f}log1p({0})",
    "log2": "{f}log2({0})",
    "maximum": "({0} != {0} || {0} > {1}) ? {0} : {1}",
    "minimum": "({0} != {0} || {0} < {1}) ? {0} : {1}",
    "fmax": "({1} != {1} || {0} > {1}) ? {0} : {1}",
    "fmin": "({1} != {1} || {0} < {1}) ? {0} : {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "pow": "{f}pow({0}, {1})",
    "reciprocal": "1 / {0}",
    "relu": "{0} < 0 ? 0 : {0}",
    "round": "{f}rint({0})",
    "rsqrt": "1 / {f}sqrt({0})",
    "sigmoid": "{f}sigmoid({0})",
    "sign": "({0} > 0) - ({0} < 0)",
    "sgn": "({0} > 0) - ({0} < 0)",
    "sin": "{f}sin({0})",
    "sinh": "{f}sinh({0})",
    "sqrt": "{f}sqrt({0})",
    "sub": "{0} - {1}",
    "tan": "{f}tan({0})",
    "tanh": "{f}tanh({0})",
    "trunc": "{f}trunc({0})",
}
# The result is a bool, whatever the operands are.
COMPARISONS = {
    "eq": "{0} == {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "isinf": "{0} - {0} != {0} - {0} && {0} == {0}",
    "isnan": "{0} != {0}",
    "le": "{0} <= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_not": "{0} == 0",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "lt": "{0} < {1}",
    "ne": "{0} != {1}",
}
# Of integers and bools alone.
BITWISE = {
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
}
# Of large integers: what is too large is wrapped around, as torch does, which C leaves undefined.
WRAPPING = {
    "add": "({u}){0} + ({u}){1}",
    "mul": "({u}){0} * ({u}){1}",
    "neg": "-({u}){0}",
    "sub": "({u}){0} - ({u}){1}",
}
POINTWISE = ARITHMETIC | COMPARISONS | BITWISE
# pow with these exponents, as torch computes it; any other is libm's.
POWERS = {
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    0.5: "{f}sqrt({0})",
    1.0: "{0}",
    -0.5: "1 / {f}sqrt({0})",
    -1.0: "1 / {0}",
    -2.0: "1 / ({0} * {0})",
}
