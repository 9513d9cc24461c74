/* Elementwise functions of float and double that compilers turn into vector code.

   A loop such as
     #pragma omp simd
     for (long i = 0; i < n; i++) y[i] = f32_exp(x[i]);
   becomes vector code for AVX2, AVX-512 and NEON with
     -O3 -march=native -fopenmp-simd -fno-math-errno -fno-trapping-math
   because nothing here is a call, a branch or a table: both sides of each ?: are computed, and one is
   selected. With multiply-add instructions each `a * b + c` is one of them; without, results are a
   little less accurate. Both keep the bounds below, which are the largest errors in units of the last
   place (ULP), and are held by tests/unit/codegen/test_vector_math.py.

              f32     f64
     exp      1.5     1.5
     expm1    2       2.5
     log      1       1
     log1p    2       2
     tanh     3       3
     sigmoid  2.5     2.5
     erf      2.5     2.5

   NaN, infinities, the sign of 0 and results out of range are as in C's <math.h>, but where a result
   would be subnormal, exp gives 0 instead, and sigmoid gives 0 from where exp(-x) is infinite (below
   -88.7 and -709.7). errno is not set, and the floating-point flags say nothing.

   The polynomials are fitted by benchmarks/fit_vector_math.py, which prints these coefficients. */

#ifndef VECTOR_MATH_H
#define VECTOR_MATH_H

#include <stdint.h>

#ifdef __FAST_MATH__
#error "-ffast-math removes the roundings and the tests for NaN that this file is made of"
#endif

#define VM_FUNCTION static inline __attribute__((always_inline))
#define VM_INF __builtin_inff()
#define VM_NAN __builtin_nanf("")

/* ---------------------------------------------------------------- float ---- */

VM_FUNCTION uint32_t vm_f32_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

VM_FUNCTION float vm_f32_from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

VM_FUNCTION float vm_f32_abs(float x) { return vm_f32_from_bits(vm_f32_bits(x) & 0x7fffffffu); }

/* y with the sign of x, for y that is 0 or has that sign: what is left to do is the sign of 0. */
VM_FUNCTION float vm_f32_add_sign(float y, float x) {
  return vm_f32_from_bits(vm_f32_bits(y) | (vm_f32_bits(x) & 0x80000000u));
}

/* Adding 1.5 * 2^23 rounds a number below 2^22 to an integer: no bits for a fraction are left. The
   integer then stands in the lowest bits, and a shift by 23 makes it an exponent. With the exponent's
   bias added as well, what the shift leaves is the power of two itself. */
#define VM_F32_ROUND 0x1.8p23f
#define VM_F32_ROUND_BIASED (0x1.8p23f + 127.0f)
#define VM_F32_LOG2_E 1.44269504f
/* ln(2) in two parts: the first has so few digits that its product with an exponent is exact. */
#define VM_F32_LN2 0.693147182f
#define VM_F32_LN2_HIGH 0x1.62e4p-1f
#define VM_F32_LN2_LOW 1.42860677e-6f

/* (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2. */
VM_FUNCTION float vm_f32_exp_tail(float r) {
  float q = 0.0013882524f;
  q = q * r + 0.0083665205f;
  q = q * r + 0.0416672f;
  q = q * r + 0.16666543f;
  q = q * r + 0.49999997f;
  return q;
}

/* exp(x) = 2^n exp(r) with n the integer next to x / ln(2), so that |r| <= ln(2) / 2. */
VM_FUNCTION float f32_exp(float x) {
  const float rounded = x * VM_F32_LOG2_E + VM_F32_ROUND;
  const float n = rounded - VM_F32_ROUND;
  float r = x - n * VM_F32_LN2_HIGH;
  r = r - n * VM_F32_LN2_LOW;
  const float p = (vm_f32_exp_tail(r) * r + 1.0f) * r + 1.0f;
  /* n is added to the exponent, not multiplied as a power of two: 2^128 is no float, but 0.9 * 2^128
     is. The bounds are those of normal results; beyond them, and for NaN, the sum is of no use. */
  float y = vm_f32_from_bits(vm_f32_bits(p) + (vm_f32_bits(rounded) << 23));
  y = x >= -87.3365402f ? y : 0.0f;
  return x <= 88.7228317f ? y : x + VM_INF;
}

VM_FUNCTION float f32_sigmoid(float x) { return 1.0f / (1.0f + f32_exp(-x)); }

/* 2^n (expm1(r) + 1) - 1 without the cancellation: 2^n expm1(r) + (2^n - 1). */
VM_FUNCTION float f32_expm1(float x) {
  /* The result is -1 from about -17 on. */
  const float limited = x > -20.0f ? x : -20.0f;
  /* Half the power of two, as 2^128 is no float. */
  const float rounded = limited * VM_F32_LOG2_E + (VM_F32_ROUND_BIASED - 1.0f);
  const float n = rounded - (VM_F32_ROUND_BIASED - 1.0f);
  float r = limited - n * VM_F32_LN2_HIGH;
  r = r - n * VM_F32_LN2_LOW;
  const float p = vm_f32_exp_tail(r) * (r * r) + r;
  const float half_power = vm_f32_from_bits(vm_f32_bits(rounded) << 23);
  const float half = half_power * p + (half_power - 0.5f);
  const float y = vm_f32_add_sign(half + half, x);
  return x <= 88.7228317f ? y : x + VM_INF;
}

/* (exp(2 a) - 1) / (exp(2 a) + 1) with exp(2 a) = 2^n (1 + 2 p): neither sum cancels. */
VM_FUNCTION float f32_tanh(float x) {
  float a = vm_f32_abs(x);
  a = a > 10.0f ? 10.0f : a; /* the result is 1 from about 9 on */
  const float rounded = a * (2.0f * VM_F32_LOG2_E) + VM_F32_ROUND_BIASED;
  const float n = rounded - VM_F32_ROUND_BIASED;
  /* One part of ln(2) will do: its error grows with n, but what it changes in the result falls as
     2^-n, and for the smallest n the product is exact. */
  const float r = a - n * (0.5f * VM_F32_LN2);
  /* (expm1(2 r) / 2 - r) / r^2 for |r| <= ln(2) / 4. */
  float q = 0.044424076f;
  q = q * r + 0.13386433f;
  q = q * r + 0.3333376f;
  q = q * r + 0.66666174f;
  q = q * r + 0.99999994f;
  const float p = q * (r * r) + r;
  const float power = vm_f32_from_bits(vm_f32_bits(rounded) << 23);
  /* Numerator and denominator are halved, which saves the doubling of p. */
  const float above = power * p + (power * 0.5f - 0.5f);
  const float below = power * p + (power * 0.5f + 0.5f);
  return vm_f32_add_sign(above / below, x);
}

/* 1 - exp(-g) with g = -log(1 - erf(a)): g / a is so smooth that one polynomial serves the whole range,
   and the relative error of the result is never larger than that of g. */
VM_FUNCTION float f32_erf(float x) {
  float a = vm_f32_abs(x);
  a = a > 4.0f ? 4.0f : a; /* the result is 1 from about 3.9 on */
  /* g / a - 1 */
  float g = -9.256253e-06f;
  g = g * a + 0.000117641175f;
  g = g * a - 0.00063283654f;
  g = g * a + 0.0016670269f;
  g = g * a - 0.00016039559f;
  g = g * a - 0.019153064f;
  g = g * a + 0.10277783f;
  g = g * a + 0.6366194f;
  g = g * a + 0.12837917f;
  g = g * a + a;
  /* As in tanh, one part of ln(2) will do. */
  const float rounded = VM_F32_ROUND_BIASED - g * VM_F32_LOG2_E;
  const float n = rounded - VM_F32_ROUND_BIASED;
  const float r = -g - n * VM_F32_LN2;
  const float p = vm_f32_exp_tail(r) * (r * r) + r;
  const float power = vm_f32_from_bits(vm_f32_bits(rounded) << 23);
  return vm_f32_add_sign((1.0f - power) - power * p, x);
}

/* log((1 + f) 2^e) for |f| <= 1/3. */
VM_FUNCTION float vm_f32_log_of_parts(float f, float e) {
  /* (log(1 + f) - f + f^2 / 2) / f^3 */
  float q = -0.12891684f;
  q = q * f + 0.13984436f;
  q = q * f - 0.12184261f;
  q = q * f + 0.1400587f;
  q = q * f - 0.16680488f;
  q = q * f + 0.20010406f;
  q = q * f - 0.24999797f;
  q = q * f + 0.33333215f;
  /* Small terms first; e times the first part of ln(2) is exact. */
  const float small = (q * f - 0.5f) * (f * f) + e * VM_F32_LN2_LOW;
  return e * VM_F32_LN2_HIGH + (f + small);
}

/* The bits of 2/3. Less these, the bits of a number hold the exponent e for which the number is m 2^e
   with m from 2/3 to 4/3, and the digits of m less those of 2/3. */
#define VM_F32_TWO_THIRDS 0x3f2aaaabu

VM_FUNCTION float f32_log(float x) {
  /* Subnormal numbers have no exponent of their own. */
  const float is_subnormal = x < 0x1p-126f ? 1.0f : 0.0f;
  const float normal = x < 0x1p-126f ? x * 0x1p23f : x;
  const uint32_t bits = vm_f32_bits(normal) - VM_F32_TWO_THIRDS;
  const float e = (float)((int32_t)bits >> 23) - 23.0f * is_subnormal;
  const float m = vm_f32_from_bits((bits & 0x7fffffu) + VM_F32_TWO_THIRDS);
  float y = vm_f32_log_of_parts(m - 1.0f, e);
  y = x < VM_INF ? y : x; /* infinity and NaN */
  y = x < 0.0f ? VM_NAN : y;
  return x == 0.0f ? -VM_INF : y;
}

/* log(u) with u = 1 + x rounded; what the rounding lost is added to m - 1. */
VM_FUNCTION float f32_log1p(float x) {
  const float u = 1.0f + x;
  const float lost = x - (u - 1.0f);
  const uint32_t bits = vm_f32_bits(u) - VM_F32_TWO_THIRDS;
  const float e = (float)((int32_t)bits >> 23);
  const float m = vm_f32_from_bits((bits & 0x7fffffu) + VM_F32_TWO_THIRDS);
  /* 2^-e. From 2^24 on nothing that matters is lost, and 2^-128 would be no float. */
  const float limited = e < 100.0f ? e : 100.0f;
  const float scale = vm_f32_from_bits(vm_f32_bits(VM_F32_ROUND_BIASED - limited) << 23);
  /* For small x this sum is x itself. */
  float y = vm_f32_log_of_parts((m - 1.0f) + lost * scale, e);
  y = vm_f32_add_sign(y, x);
  y = x < VM_INF ? y : x; /* infinity and NaN */
  y = x < -1.0f ? VM_NAN : y;
  return x == -1.0f ? -VM_INF : y;
}

/* ---------------------------------------------------------------- double ----

   The same functions with longer polynomials; comments are only where something differs. */

VM_FUNCTION uint64_t vm_f64_bits(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

VM_FUNCTION double vm_f64_from_bits(uint64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

VM_FUNCTION double vm_f64_abs(double x) {
  return vm_f64_from_bits(vm_f64_bits(x) & 0x7fffffffffffffffu);
}

VM_FUNCTION double vm_f64_add_sign(double y, double x) {
  return vm_f64_from_bits(vm_f64_bits(y) | (vm_f64_bits(x) & 0x8000000000000000u));
}

#define VM_F64_ROUND 0x1.8p52
#define VM_F64_ROUND_BIASED (0x1.8p52 + 1023.0)
#define VM_F64_LOG2_E 1.4426950408889634
#define VM_F64_LN2 0.6931471805599453
#define VM_F64_LN2_HIGH 0x1.62e42feep-1
#define VM_F64_LN2_LOW 1.9082149292705877e-10

VM_FUNCTION double vm_f64_exp_tail(double r) {
  double q = 2.50537770731996e-08;
  q = q * r + 2.762603781926261e-07;
  q = q * r + 2.755740753598852e-06;
  q = q * r + 2.4801505273986966e-05;
  q = q * r + 0.00019841269719014627;
  q = q * r + 0.0013888888931564694;
  q = q * r + 0.008333333333389549;
  q = q * r + 0.04166666666657676;
  q = q * r + 0.16666666666666588;
  q = q * r + 0.5000000000000006;
  return q;
}

VM_FUNCTION double f64_exp(double x) {
  const double rounded = x * VM_F64_LOG2_E + VM_F64_ROUND;
  const double n = rounded - VM_F64_ROUND;
  double r = x - n * VM_F64_LN2_HIGH;
  r = r - n * VM_F64_LN2_LOW;
  const double p = (vm_f64_exp_tail(r) * r + 1.0) * r + 1.0;
  double y = vm_f64_from_bits(vm_f64_bits(p) + (vm_f64_bits(rounded) << 52));
  y = x >= -708.3964185322641 ? y : 0.0;
  return x <= 709.782712893384 ? y : x + VM_INF;
}

VM_FUNCTION double f64_sigmoid(double x) { return 1.0 / (1.0 + f64_exp(-x)); }

VM_FUNCTION double f64_expm1(double x) {
  const double limited = x > -40.0 ? x : -40.0;
  const double rounded = limited * VM_F64_LOG2_E + (VM_F64_ROUND_BIASED - 1.0);
  const double n = rounded - (VM_F64_ROUND_BIASED - 1.0);
  double r = limited - n * VM_F64_LN2_HIGH;
  r = r - n * VM_F64_LN2_LOW;
  const double p = vm_f64_exp_tail(r) * (r * r) + r;
  const double half_power = vm_f64_from_bits(vm_f64_bits(rounded) << 52);
  const double half = half_power * p + (half_power - 0.5);
  const double y = vm_f64_add_sign(half + half, x);
  return x <= 709.782712893384 ? y : x + VM_INF;
}

VM_FUNCTION double f64_tanh(double x) {
  double a = vm_f64_abs(x);
  a = a > 20.0 ? 20.0 : a;
  const double rounded = a * (2.0 * VM_F64_LOG2_E) + VM_F64_ROUND_BIASED;
  const double n = rounded - VM_F64_ROUND_BIASED;
  const double r = a - n * (0.5 * VM_F64_LN2);
  double q = 2.565506772295639e-05;
  q = q * r + 0.00014144531363462456;
  q = q * r + 0.0007054696329213061;
  q = q * r + 0.0031745926750703316;
  q = q * r + 0.012698412620169361;
  q = q * r + 0.04444444458100702;
  q = q * r + 0.13333333333423278;
  q = q * r + 0.33333333333261406;
  q = q * r + 0.6666666666666635;
  q = q * r + 1.000000000000001;
  const double p = q * (r * r) + r;
  const double power = vm_f64_from_bits(vm_f64_bits(rounded) << 52);
  const double above = power * p + (power * 0.5 - 0.5);
  const double below = power * p + (power * 0.5 + 0.5);
  return vm_f64_add_sign(above / below, x);
}

VM_FUNCTION double f64_erf(double x) {
  double a = vm_f64_abs(x);
  a = a > 6.0 ? 6.0 : a;
  double g = 1.1801413570878488e-14;
  g = g * a - 4.755353737966091e-13;
  g = g * a + 8.721839754154769e-12;
  g = g * a - 9.548961653733591e-11;
  g = g * a + 6.811383558550897e-10;
  g = g * a - 3.1532865868066133e-09;
  g = g * a + 7.782783683674126e-09;
  g = g * a + 8.371298889777815e-09;
  g = g * a - 1.740959345844863e-07;
  g = g * a + 8.537221172930935e-07;
  g = g * a - 2.42981047057601e-06;
  g = g * a + 3.5647023829120668e-06;
  g = g * a + 2.7958461650098765e-06;
  g = g * a - 2.9323523582842793e-05;
  g = g * a + 6.428999946129843e-05;
  g = g * a + 2.595521415207601e-05;
  g = g * a - 0.0005901468163476474;
  g = g * a + 0.0016962105309611634;
  g = g * a - 0.00020919523049901635;
  g = g * a - 0.019128446963042247;
  g = g * a + 0.10277260330005877;
  g = g * a + 0.6366197723676116;
  g = g * a + 0.1283791670955125;
  g = g * a + a;
  const double rounded = VM_F64_ROUND_BIASED - g * VM_F64_LOG2_E;
  const double n = rounded - VM_F64_ROUND_BIASED;
  const double r = -g - n * VM_F64_LN2;
  const double p = vm_f64_exp_tail(r) * (r * r) + r;
  const double power = vm_f64_from_bits(vm_f64_bits(rounded) << 52);
  return vm_f64_add_sign((1.0 - power) - power * p, x);
}

VM_FUNCTION double vm_f64_log_of_parts(double f, double e) {
  double q = 0.08448926184128852;
  q = q * f - 0.08624283057109883;
  q = q * f + 0.04204314581693843;
  q = q * f - 0.045737846139351314;
  q = q * f + 0.06044750417641499;
  q = q * f - 0.06390852714399146;
  q = q * f + 0.06651602354785217;
  q = q * f - 0.07130796704013379;
  q = q * f + 0.07693188831737716;
  q = q * f - 0.08333971925501078;
  q = q * f + 0.0909087659757911;
  q = q * f - 0.09999979302719486;
  q = q * f + 0.11111111840311395;
  q = q * f - 0.12500000388864999;
  q = q * f + 0.14285714276535452;
  q = q * f - 0.16666666662931798;
  q = q * f + 0.2000000000005469;
  q = q * f - 0.25000000000013334;
  q = q * f + 0.3333333333333323;
  const double small = (q * f - 0.5) * (f * f) + e * VM_F64_LN2_LOW;
  return e * VM_F64_LN2_HIGH + (f + small);
}

/* With the bits of 1 added, the exponent keeps its bias and is not negative: AVX2 has no arithmetic
   shift of 64 bits, and no conversion from such integers. The exponent becomes the lowest bits of 2^52,
   which is then taken away. */
#define VM_F64_TWO_THIRDS 0x3fe5555555555555u
#define VM_F64_ONE 0x3ff0000000000000u

VM_FUNCTION double vm_f64_exponent(uint64_t biased) {
  return vm_f64_from_bits((biased >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
}

VM_FUNCTION double f64_log(double x) {
  const double is_subnormal = x < 0x1p-1022 ? 1.0 : 0.0;
  const double normal = x < 0x1p-1022 ? x * 0x1p52 : x;
  const uint64_t bits = vm_f64_bits(normal) + (VM_F64_ONE - VM_F64_TWO_THIRDS);
  const double e = vm_f64_exponent(bits) - 52.0 * is_subnormal;
  const double m = vm_f64_from_bits((bits & 0xfffffffffffffu) + VM_F64_TWO_THIRDS);
  double y = vm_f64_log_of_parts(m - 1.0, e);
  y = x < VM_INF ? y : x;
  y = x < 0.0 ? VM_NAN : y;
  return x == 0.0 ? -VM_INF : y;
}

VM_FUNCTION double f64_log1p(double x) {
  const double u = 1.0 + x;
  const double lost = x - (u - 1.0);
  const uint64_t bits = vm_f64_bits(u) + (VM_F64_ONE - VM_F64_TWO_THIRDS);
  const double e = vm_f64_exponent(bits);
  const double m = vm_f64_from_bits((bits & 0xfffffffffffffu) + VM_F64_TWO_THIRDS);
  const double limited = e < 1000.0 ? e : 1000.0;
  const double scale = vm_f64_from_bits(vm_f64_bits(VM_F64_ROUND_BIASED - limited) << 52);
  double y = vm_f64_log_of_parts((m - 1.0) + lost * scale, e);
  y = vm_f64_add_sign(y, x);
  y = x < VM_INF ? y : x;
  y = x < -1.0 ? VM_NAN : y;
  return x == -1.0 ? -VM_INF : y;
}

#endif
