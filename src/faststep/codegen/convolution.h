/* Convolutions of generated steps, for one element type REAL; included after kernels.h.

   Tensors lie with the batch innermost, [channel][y][x][sample]: vectors run along the samples, so
   that any number of channels fills them, and weights are read by single elements as they lie. With
   a stride of one, neighbours along x are one run of memory, and vectors run across them too. */

#ifndef CONVOLUTION_COMMON
#define CONVOLUTION_COMMON
#if defined(__AVX512F__) || defined(__aarch64__)
#define SUMS 24 /* of 32 registers */
#define SUM_VECTORS 4
#else
#define SUMS 12 /* of 16 registers */
#define SUM_VECTORS 2
#endif

/* One dimension: place `t` of the target reads the source through tap `k` at
   (t * up - pad + k * step) / down, where that is whole and inside. A convolution has its stride as
   `up`; the gradient of its input, as `down`. */
typedef struct {
  long source, target, taps, up, down, pad, step;
} along;
/* The taps that are inside at one place: from `first`, which reads the source at `at`, to `end`. */
typedef struct {
  long first, end, at;
} inside;

/* Taps from one that is whole to the next. */
INLINE long every(const along a) {
  long n = 1;
  while (n * a.step % a.down) n++;
  return n;
}
INLINE inside taps_at(const along a, const long target) {
  inside found = {0, 0, 0};
  for (long k = 0; k < a.taps; k++) {
    const long at = target * a.up - a.pad + k * a.step;
    if (at < 0 || at % a.down || at / a.down >= a.source) continue;
    if (found.end == 0) {
      found.first = k;
      found.at = at / a.down;
    }
    found.end = k + 1;
  }
  return found;
}
INLINE long smaller(const long a, const long b) { return a < b ? a : b; }
INLINE long larger(const long a, const long b) { return a > b ? a : b; }

/* Strides of a weight: [group][row][channel][y][x], where rows are what one target channel is. */
typedef struct {
  long group, row, channel, y, x;
} weight;
#endif

#define LANES ((long)(VECTOR_BYTES / sizeof(REAL)))

/* The sum of the elements of a vector, by halves. */
INLINE REAL NAME(total_1)(const REAL v) { return v; }
INLINE REAL NAME(total_2)(const NAME(x2) v) { return v[0] + v[1]; }
INLINE REAL NAME(total_4)(const NAME(x4) v) {
  return NAME(total_2)(__builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3));
}
INLINE REAL NAME(total_8)(const NAME(x8) v) {
  return NAME(total_4)(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                       __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
INLINE REAL NAME(total_16)(const NAME(x16) v) {
  return NAME(total_8)(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

/* out[r][j] = bias[r] + sum over c, ky, kx of w[r][c][ky][kx] x[c][at ky][at kx][j], for `rows` r
   and `vectors` vectors of j. The taps are those that are inside; x begins at the first of them. */
#define DEFINE_CORRELATE(width)                                                                   \
  INLINE void NAME(correlate_tile_##width)(                                                       \
      const int rows, const int vectors, const long channels, const inside down,                  \
      const long every_y, const inside across, const long every_x, const weight s,                \
      const REAL *w, const REAL *bias, const REAL *x, const long xc, const long xy,               \
      const long xx, REAL *out, const long or) {                                                  \
    NAME(x##width) sum[12][SUM_VECTORS];                                                          \
    UNROLL for (int r = 0; r < rows; r++)                                                         \
      UNROLL for (int j = 0; j < vectors; j++) {                                                  \
        sum[r][j] = (NAME(x##width)){0};                                                          \
        if (bias) sum[r][j] += bias[r];                                                           \
      }                                                                                           \
    for (long c = 0; c < channels; c++) {                                                         \
      const REAL *line = x + c * xc;                                                              \
      for (long ky = down.first; ky < down.end; ky += every_y, line += xy) {                      \
        const REAL *from = line;                                                                  \
        const REAL *by = w + c * s.channel + ky * s.y + across.first * s.x;                       \
        for (long kx = across.first; kx < across.end; kx += every_x) {                            \
          NAME(x##width) right[SUM_VECTORS];                                                      \
          UNROLL for (int j = 0; j < vectors; j++)                                                \
            right[j] = *(const NAME(x##width) *)(from + j * width);                               \
          UNROLL for (int r = 0; r < rows; r++) {                                                 \
            const REAL left = by[r * s.row];                                                      \
            UNROLL for (int j = 0; j < vectors; j++) sum[r][j] += left * right[j];                \
          }                                                                                       \
          from += xx;                                                                             \
          by += every_x * s.x;                                                                    \
        }                                                                                         \
      }                                                                                           \
    }                                                                                             \
    UNROLL for (int r = 0; r < rows; r++)                                                         \
      UNROLL for (int j = 0; j < vectors; j++)                                                    \
        *(NAME(x##width) *)(out + r * or + j * width) = sum[r][j];                                \
  }                                                                                               \
  INLINE void NAME(correlate_rows_##width)(                                                       \
      const long rows, const int vectors, const long channels, const inside down,                 \
      const long every_y, const inside across, const long every_x, const weight s,                \
      const REAL *w, const REAL *bias, const REAL *x, const long xc, const long xy,               \
      const long xx, REAL *out, const long or) {                                                  \
    const long most = tile_rows(rows, smaller(12, SUMS / vectors));                               \
    for (long r = 0; r + most <= rows; r += most)                                                 \
      NAME(correlate_tile_##width)(most, vectors, channels, down, every_y, across, every_x, s,    \
                                   w + r * s.row, bias ? bias + r : 0, x, xc, xy, xx,             \
                                   out + r * or, or);                                             \
    const long r = rows / most * most;                                                            \
    if (rows % most)                                                                              \
      NAME(correlate_tile_##width)(rows % most, vectors, channels, down, every_y, across,         \
                                   every_x, s, w + r * s.row, bias ? bias + r : 0, x, xc, xy,     \
                                   xx, out + r * or, or);                                         \
  }
DEFINE_CORRELATE(1)
DEFINE_CORRELATE(2)
DEFINE_CORRELATE(4)
DEFINE_CORRELATE(8)
DEFINE_CORRELATE(16)

/* A convolution, or the gradient of its input, of `groups` times `channels` planes of `n` samples;
   `bias` may be null. One of `parts` parts of its places, along y or, where that is one, along x. */
INLINE void NAME(correlate)(const along v, const along h, const long groups, const long rows,
                            const long channels, const long n, const weight s, const REAL *w,
                            const REAL *bias, const REAL *x, REAL *out, const long part,
                            const long parts) {
  const long xc = v.source * h.source * n, or = v.target * h.target * n;
  const long every_y = every(v), every_x = every(h);
  const long xy = every_y * v.step / v.down * h.source * n, xx = every_x * h.step / h.down * n;
  inside across[h.target];
  for (long i = 0; i < h.target; i++) across[i] = taps_at(h, i);
  const int is_line = v.target == 1;
  const long top = is_line ? 0 : part * v.target / parts;
  const long bottom = is_line ? 1 : (part + 1) * v.target / parts;
  const long start = is_line ? part * h.target / parts : 0;
  const long end = is_line ? (part + 1) * h.target / parts : h.target;
  for (long g = 0; g < groups; g++)
    for (long y = top; y < bottom; y++) {
      const inside down = taps_at(v, y);
      for (long i = start; i < end;) {
        const inside here = across[i];
        long run = 1;
        if (h.up == 1 && h.down == 1 && here.end - here.first == h.taps)
          while (i + run < end && across[i + run].end - across[i + run].first == h.taps) run++;
        const REAL *from = x + g * channels * xc + (down.at * h.source + here.at) * n;
        REAL *to = out + g * rows * or + (y * h.target + i) * n;
        const REAL *by = w + g * s.group, *add = bias ? bias + g * rows : 0;
        const long size = run * n;
        long j = 0;
#define SOME(width, vectors)                                                                      \
  NAME(correlate_rows_##width)(rows, vectors, channels, down, every_y, here, every_x, s, by, add, \
                               from + j, xc, xy, xx, to + j, or);                                 \
  j += vectors * width;
#define WIDE(width)                                                                               \
  for (; j + SUM_VECTORS * width <= size;) { SOME(width, SUM_VECTORS) }                           \
  if (n % (SUM_VECTORS * width)) {                                                                \
    if (SUM_VECTORS > 2 && j + 2 * width <= size) { SOME(width, 2) }                              \
    if (j + width <= size) { SOME(width, 1) }                                                     \
  }
#define NARROW(width)                                                                             \
  if (n % (2 * width) && j + width <= size) { SOME(width, 1) }
        if (LANES == 16) { WIDE(16) NARROW(8) NARROW(4) }
        if (LANES == 8) { WIDE(8) NARROW(4) }
        if (LANES == 4) WIDE(4)
        if (LANES == 2) { WIDE(2) } else { NARROW(2) }
        NARROW(1)
#undef SOME
#undef WIDE
#undef NARROW
        i += run;
      }
    }
}

/* dw[r][t] (+)= sum over places and samples of dy[r] x[tap t], for `rows` r and `taps` t, which are
   counted over (channel, y, x) from `first` on. Of each run of memory, `width` numbers at once: the
   whole vectors, or one of the narrower ones that are left. `zeros` are n zeros, which a tap reads
   that is outside. */
#define DEFINE_GRADIENT(width)                                                                    \
  INLINE void NAME(gradient_tile_##width)(                                                        \
      const int rows, const int taps, const along v, const along h, const long first,             \
      const long n, const weight s, const REAL *dy, const REAL *x, REAL *dw,                      \
      const REAL *zeros) {                                                                        \
    const long xc = v.source * h.source * n, dr = v.target * h.target * n;                        \
    NAME(x##width) sum[6][12];                                                                    \
    UNROLL for (int r = 0; r < rows; r++)                                                         \
      UNROLL for (int t = 0; t < taps; t++) sum[r][t] = (NAME(x##width)){0};                      \
    const REAL *plane[12];                                                                        \
    long up[12], left[12], place[12], begin = 0, end = h.target;                                  \
    UNROLL for (int t = 0; t < taps; t++) {                                                       \
      const long c = (first + t) / (v.taps * h.taps);                                             \
      const long ky = (first + t) / h.taps % v.taps, kx = (first + t) % h.taps;                   \
      plane[t] = x + c * xc;                                                                      \
      up[t] = ky * v.step - v.pad;                                                                \
      left[t] = kx * h.step - h.pad;                                                              \
      place[t] = c * s.channel + ky * s.y + kx * s.x;                                             \
      if (left[t] < 0) begin = larger(begin, (-left[t] + h.up - 1) / h.up);                       \
      end = smaller(end, h.source - left[t] > 0 ? (h.source - left[t] - 1) / h.up + 1 : 0);       \
    }                                                                                             \
    for (long y = 0; y < v.target; y++) {                                                         \
      int is_inside = 1;                                                                          \
      UNROLL for (int t = 0; t < taps; t++) {                                                     \
        const long at = y * v.up + up[t];                                                         \
        is_inside &= at >= 0 && at < v.source;                                                    \
      }                                                                                           \
      for (long i = 0; i < h.target;) {                                                           \
        const int is_whole = is_inside && i >= begin && i < end;                                  \
        const long run = h.up == 1 && is_whole ? end - i : 1;                                     \
        const REAL *from[12];                                                                     \
        UNROLL for (int t = 0; t < taps; t++) {                                                   \
          const long at_y = y * v.up + up[t], at_x = i * h.up + left[t];                          \
          const int is_at =                                                                       \
              is_whole || (at_y >= 0 && at_y < v.source && at_x >= 0 && at_x < h.source);         \
          from[t] = is_at ? plane[t] + (at_y * h.source + at_x) * n : zeros;                      \
        }                                                                                         \
        const REAL *by = dy + (y * h.target + i) * n;                                             \
        const long size = run * n;                                                                \
        const long start = width == LANES ? 0 : size / (2 * width) * (2 * width);                 \
        const long stop = width == LANES ? size / width * width : start + (size & width);         \
        for (long j = start; j < stop; j += width) {                                              \
          NAME(x##width) one[6];                                                                  \
          UNROLL for (int r = 0; r < rows; r++)                                                   \
            one[r] = *(const NAME(x##width) *)(by + r * dr + j);                                  \
          UNROLL for (int t = 0; t < taps; t++) {                                                 \
            const NAME(x##width) other = *(const NAME(x##width) *)(from[t] + j);                  \
            UNROLL for (int r = 0; r < rows; r++) sum[r][t] += one[r] * other;                    \
          }                                                                                       \
        }                                                                                         \
        i += run;                                                                                 \
      }                                                                                           \
    }                                                                                             \
    UNROLL for (int r = 0; r < rows; r++)                                                         \
      UNROLL for (int t = 0; t < taps; t++) {                                                     \
        const REAL more = NAME(total_##width)(sum[r][t]);                                         \
        REAL *to = dw + r * s.row + place[t];                                                     \
        *to = width == LANES ? more : *to + more;                                                 \
      }                                                                                           \
  }                                                                                               \
  INLINE void NAME(gradient_taps_##width)(                                                        \
      const int rows, const along v, const along h, const long num_taps, const long n,            \
      const weight s, const REAL *dy, const REAL *x, REAL *dw, const REAL *zeros,                 \
      const long part, const long parts) {                                                        \
    const long most = tile_rows(num_taps, smaller(12, SUMS / rows));                              \
    const long tiles = (num_taps + most - 1) / most, end = (part + 1) * tiles / parts * most;     \
    long t = part * tiles / parts * most;                                                         \
    for (; t + most <= smaller(end, num_taps); t += most)                                         \
      NAME(gradient_tile_##width)(rows, most, v, h, t, n, s, dy, x, dw, zeros);                   \
    if (num_taps % most && t < end)                                                               \
      NAME(gradient_tile_##width)(rows, num_taps % most, v, h, t, n, s, dy, x, dw, zeros);        \
  }                                                                                               \
  INLINE void NAME(gradient_##width)(                                                             \
      const along v, const along h, const long rows, const long num_taps, const long n,           \
      const weight s, const REAL *dy, const REAL *x, REAL *dw, const REAL *zeros,                 \
      const long part, const long parts) {                                                        \
    const long most = tile_rows(rows, SUMS > 12 ? 6 : 3), dr = v.target * h.target * n;           \
    long r = 0;                                                                                   \
    for (; r + most <= rows; r += most)                                                           \
      NAME(gradient_taps_##width)(most, v, h, num_taps, n, s, dy + r * dr, x, dw + r * s.row,     \
                                  zeros, part, parts);                                            \
    if (rows % most)                                                                              \
      NAME(gradient_taps_##width)(rows % most, v, h, num_taps, n, s, dy + r * dr, x,              \
                                  dw + r * s.row, zeros, part, parts);                            \
  }
DEFINE_GRADIENT(1)
DEFINE_GRADIENT(2)
DEFINE_GRADIENT(4)
DEFINE_GRADIENT(8)
DEFINE_GRADIENT(16)

/* The gradient of a convolution's weight; `v` and `h` are the convolution's. One of `parts` parts of
   its taps. */
INLINE void NAME(weight_gradient)(const along v, const along h, const long groups, const long rows,
                                  const long channels, const long n, const weight s,
                                  const REAL *dy, const REAL *x, REAL *dw, const REAL *zeros,
                                  const long part, const long parts) {
  const long num_taps = channels * v.taps * h.taps;
  for (long g = 0; g < groups; g++) {
    const REAL *by = dy + g * rows * v.target * h.target * n;
    const REAL *from = x + g * channels * v.source * h.source * n;
    REAL *to = dw + g * s.group;
#define SOME(width)                                                                               \
  if (width == LANES || (width < LANES && n % (2 * width)))                                       \
    NAME(gradient_##width)(v, h, rows, num_taps, n, s, by, from, to, zeros, part, parts);
    SOME(16)
    SOME(8)
    SOME(4)
    SOME(2)
    SOME(1)
#undef SOME
  }
}
#undef DEFINE_CORRELATE
#undef DEFINE_GRADIENT
#undef LANES
