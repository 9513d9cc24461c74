/* Functions of libm under the names that generated code uses; vector_math.h has the others. */
static inline float f32_sqrt(float x) { return sqrtf(x); }
static inline double f64_sqrt(double x) { return sqrt(x); }
static inline float f32_sin(float x) { return sinf(x); }
static inline double f64_sin(double x) { return sin(x); }
static inline float f32_cos(float x) { return cosf(x); }
static inline double f64_cos(double x) { return cos(x); }
static inline float f32_tan(float x) { return tanf(x); }
static inline double f64_tan(double x) { return tan(x); }
static inline float f32_atan(float x) { return atanf(x); }
static inline double f64_atan(double x) { return atan(x); }
static inline float f32_floor(float x) { return floorf(x); }
static inline double f64_floor(double x) { return floor(x); }
static inline float f32_ceil(float x) { return ceilf(x); }
static inline double f64_ceil(double x) { return ceil(x); }
static inline float f32_trunc(float x) { return truncf(x); }
static inline double f64_trunc(double x) { return trunc(x); }
static inline float f32_log2(float x) { return log2f(x); }
static inline double f64_log2(double x) { return log2(x); }
static inline float f32_pow(float x, float y) { return powf(x, y); }
static inline double f64_pow(double x, double y) { return pow(x, y); }
static inline float f32_asin(float x) { return asinf(x); }
static inline double f64_asin(double x) { return asin(x); }
static inline float f32_acos(float x) { return acosf(x); }
static inline double f64_acos(double x) { return acos(x); }
static inline float f32_asinh(float x) { return asinhf(x); }
static inline double f64_asinh(double x) { return asinh(x); }
static inline float f32_acosh(float x) { return acoshf(x); }
static inline double f64_acosh(double x) { return acosh(x); }
static inline float f32_atanh(float x) { return atanhf(x); }
static inline double f64_atanh(double x) { return atanh(x); }
static inline float f32_sinh(float x) { return sinhf(x); }
static inline double f64_sinh(double x) { return sinh(x); }
static inline float f32_cosh(float x) { return coshf(x); }
static inline double f64_cosh(double x) { return cosh(x); }
static inline float f32_exp2(float x) { return exp2f(x); }
static inline double f64_exp2(double x) { return exp2(x); }
static inline float f32_erfc(float x) { return erfcf(x); }
static inline double f64_erfc(double x) { return erfc(x); }
static inline float f32_log10(float x) { return log10f(x); }
static inline double f64_log10(double x) { return log10(x); }
static inline float f32_lgamma(float x) { return lgammaf(x); }
static inline double f64_lgamma(double x) { return lgamma(x); }
static inline float f32_rint(float x) { return rintf(x); }
static inline double f64_rint(double x) { return rint(x); }
static inline float f32_abs(float x) { return fabsf(x); }
static inline double f64_abs(double x) { return fabs(x); }
static inline float f32_atan2(float x, float y) { return atan2f(x, y); }
static inline double f64_atan2(double x, double y) { return atan2(x, y); }
static inline float f32_copysign(float x, float y) { return copysignf(x, y); }
static inline double f64_copysign(double x, double y) { return copysign(x, y); }
static inline float f32_hypot(float x, float y) { return hypotf(x, y); }
static inline double f64_hypot(double x, double y) { return hypot(x, y); }
static inline float f32_fmod(float x, float y) { return fmodf(x, y); }
static inline double f64_fmod(double x, double y) { return fmod(x, y); }

/* Of division rounded down, as torch computes them. */
#define DEFINE_DIVISION(REAL, f)                                                                  \
  static inline REAL f##_remainder(REAL x, REAL y) {                                              \
    REAL rest = f##_fmod(x, y);                                                                   \
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;                                  \
  }                                                                                               \
  static inline REAL f##_floor_divide(REAL x, REAL y) {                                           \
    if (y == 0) return x / y;                                                                     \
    REAL rest = f##_fmod(x, y), whole = (x - rest) / y;                                           \
    if (rest != 0 && (y < 0) != (rest < 0)) whole -= 1;                                           \
    if (whole == 0) return f##_copysign(0, x / y);                                                \
    REAL down = f##_floor(whole);                                                                 \
    return whole - down > (REAL)0.5 ? down + 1 : down;                                            \
  }
DEFINE_DIVISION(float, f32)
DEFINE_DIVISION(double, f64)
#undef DEFINE_DIVISION
