/* Pooling of generated steps, for one element type REAL; included after kernels.h. Tensors lie with
   the batch innermost, as in convolution.h. Each is one of `parts` parts of the planes. */

#ifndef POOLING_COMMON
#define POOLING_COMMON
/* What one place of the result is made of along one dimension: `taps` places from `from` on, counted
   as `count` in an average. */
typedef struct {
  int from, taps, count;
} window;
/* One dimension: its size, the results and their windows, the places of a whole window, and from one
   of them to the next. */
typedef struct {
  long size, results;
  const window *windows;
  long taps, step;
} pooled;
#endif
#define LANES ((long)(VECTOR_BYTES / sizeof(REAL)))
#define FOR_PLACES                                                                                \
  for (long p = part * planes / parts; p < (part + 1) * planes / parts; p++)                      \
    for (long y = 0; y < v.results; y++)                                                          \
      for (long x = 0; x < h.results; x++)
#define PLACE                                                                                     \
  const window down = v.windows[y], across = h.windows[x];                                        \
  const long inner = ((p * v.size + down.from) * h.size + across.from) * n;                       \
  const long outer = ((p * v.results + y) * h.results + x) * n;                                   \
  (void)down, (void)across;
#define FOR_TAPS                                                                                  \
  for (long ky = 0; ky < down.taps; ky++)                                                         \
    for (long kx = 0; kx < across.taps; kx++)
#define ZEROS                                                                                     \
  for (long p = part * planes / parts; p < (part + 1) * planes / parts; p++)                      \
    memset(to + p * v.size * h.size * n, 0, v.size * h.size * n * sizeof(REAL));
#define SIMD _Pragma("omp simd")

/* An integer as wide as REAL, so that both fill a vector. */
typedef __typeof__(__builtin_choose_expr(sizeof(REAL) == 8, (long long)0, (int)0)) NAME(tap);
typedef NAME(tap) NAME(tags) __attribute__((vector_size(LANES * sizeof(REAL))));

/* Where a tap of a whole window is, from the first one. */
INLINE long NAME(tap_at)(const pooled v, const pooled h, const long k) {
  return k / h.taps * v.step * h.size + k % h.taps * h.step;
}

/* The largest of each window, and in `best` which tap of the window it is: the first of equal ones;
   a NaN is larger than all. */
#define DEFINE_MAX_POOL(suffix, TAP)                                                              \
  typedef TAP NAME(suffix) __attribute__((vector_size(LANES * sizeof(TAP)), aligned(sizeof(TAP)), may_alias));\
  INLINE void NAME(max_pool_##suffix)(const pooled v, const pooled h, const long planes,          \
                                      const long n, const REAL *from, REAL *to, TAP *best,        \
                                      const long part, const long parts) {                        \
    FOR_PLACES {                                                                                  \
      PLACE                                                                                       \
      const REAL *source = from + inner;                                                          \
      if (v.taps * h.taps <= 16 && down.taps == v.taps && across.taps == h.taps) {                \
        long b = 0;                                                                               \
        for (; b + LANES <= n; b += LANES) {                                                      \
          NAME(widest) most = *(const NAME(widest) *)(source + b);                                \
          NAME(tags) tap = {0};                                                                   \
          UNROLL for (long k = 1; k < v.taps * h.taps; k++) {                                     \
            const NAME(widest) one = *(const NAME(widest) *)(source + NAME(tap_at)(v, h, k) * n + b);\
            const NAME(tags) more = (NAME(tags))(one > most) | (NAME(tags))(one != one);          \
            tap = (more & (NAME(tap))k) | (~more & tap);                                          \
            most = (NAME(widest))((more & (NAME(tags))one) | (~more & (NAME(tags))most));         \
          }                                                                                       \
          *(NAME(widest) *)(to + outer + b) = most;                                               \
          *(NAME(suffix) *)(best + outer + b) = __builtin_convertvector(tap, NAME(suffix));       \
        }                                                                                         \
        for (; b < n; b++) {                                                                      \
          REAL most = source[b];                                                                  \
          TAP tap = 0;                                                                            \
          for (long k = 1; k < v.taps * h.taps; k++) {                                            \
            const REAL one = source[NAME(tap_at)(v, h, k) * n + b];                               \
            const int is_more = (one > most) | (one != one);                                      \
            tap = is_more ? (TAP)k : tap;                                                         \
            most = is_more ? one : most;                                                          \
          }                                                                                       \
          to[outer + b] = most;                                                                   \
          best[outer + b] = tap;                                                                  \
        }                                                                                         \
      } else {                                                                                    \
        SIMD for (long b = 0; b < n; b++) {                                                       \
          to[outer + b] = source[b];                                                              \
          best[outer + b] = 0;                                                                    \
        }                                                                                         \
        FOR_TAPS {                                                                                \
          const REAL *other = source + (ky * v.step * h.size + kx * h.step) * n;                  \
          SIMD for (long b = 0; b < n; b++) {                                                     \
            const REAL one = other[b], most = to[outer + b];                                      \
            const int is_more = (one > most) | (one != one);                                      \
            to[outer + b] = is_more ? one : most;                                                 \
            best[outer + b] = is_more ? (TAP)(ky * h.taps + kx) : best[outer + b];                \
          }                                                                                       \
        }                                                                                         \
      }                                                                                           \
    }                                                                                             \
  }                                                                                               \
  /* Its gradient; `adds` where windows overlap or leave places out: the result is zeros first. */\
  INLINE void NAME(max_pool_gradient_##suffix)(                                                   \
      const pooled v, const pooled h, const long planes, const long n, const int adds,            \
      const REAL *from, const TAP *best, REAL *to, const long part, const long parts) {           \
    if (adds) ZEROS                                                                               \
    FOR_PLACES {                                                                                  \
      PLACE                                                                                       \
      FOR_TAPS {                                                                                  \
        REAL *restrict place = to + inner + (ky * v.step * h.size + kx * h.step) * n;             \
        const NAME(tap) tap = ky * h.taps + kx;                                                   \
        SIMD for (long b = 0; b < n; b++) {                                                       \
          const REAL one = best[outer + b] == tap ? from[outer + b] : 0;                          \
          place[b] = adds ? place[b] + one : one;                                                 \
        }                                                                                         \
      }                                                                                           \
    }                                                                                             \
  }
DEFINE_MAX_POOL(small, uint8_t)
DEFINE_MAX_POOL(large, int32_t)
#undef DEFINE_MAX_POOL

/* The average of each window. */
INLINE void NAME(average_pool)(const pooled v, const pooled h, const long planes, const long n,
                               const REAL *from, REAL *to, const long part, const long parts) {
  FOR_PLACES {
    PLACE
    const REAL by = (REAL)1 / (REAL)((long)down.count * across.count);
    const REAL *source = from + inner;
    if (v.taps * h.taps <= 16 && down.taps == v.taps && across.taps == h.taps) {
      SIMD for (long b = 0; b < n; b++) {
        REAL sum = source[b];
        UNROLL for (long k = 1; k < v.taps * h.taps; k++)
          sum += source[(k / h.taps * h.size + k % h.taps) * n + b];
        to[outer + b] = sum * by;
      }
    } else {
      SIMD for (long b = 0; b < n; b++) to[outer + b] = 0;
      FOR_TAPS {
        const REAL *other = source + (ky * h.size + kx) * n;
        SIMD for (long b = 0; b < n; b++) to[outer + b] += other[b];
      }
      SIMD for (long b = 0; b < n; b++) to[outer + b] *= by;
    }
  }
}
/* Its gradient. */
INLINE void NAME(average_pool_gradient)(const pooled v, const pooled h, const long planes,
                                        const long n, const int adds, const REAL *from, REAL *to,
                                        const long part, const long parts) {
  if (adds) ZEROS
  FOR_PLACES {
    PLACE
    const REAL by = (REAL)1 / (REAL)((long)down.count * across.count);
    FOR_TAPS {
      REAL *restrict place = to + inner + (ky * h.size + kx) * n;
      SIMD for (long b = 0; b < n; b++) {
        const REAL one = from[outer + b] * by;
        place[b] = adds ? place[b] + one : one;
      }
    }
  }
}
#undef FOR_PLACES
#undef PLACE
#undef FOR_TAPS
#undef ZEROS
#undef SIMD
#undef LANES
