/* Matrix products and copies of generated steps, for one element type REAL.

   Included once for each type that a step uses, with
     REAL     the element type,
     NAME(x)  x with the type in its name.
   All sizes and strides are constants where these functions are called: with everything inlined, the
   compiler unrolls the small loops, and keeps the sums in registers. Vectors are those that gcc and
   clang offer as an extension of C, so that one source serves AVX2, AVX-512 and NEON. */

#ifndef KERNELS_COMMON
#define KERNELS_COMMON
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define TILE_ROWS 12 /* 12 x 2 sums in 32 registers */
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define TILE_ROWS 6 /* 6 x 2 sums in 16 registers */
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define TILE_ROWS 12
#else
#define VECTOR_BYTES 16
#define TILE_ROWS 6
#endif
/* Rows of a tile, so that the last one is not much smaller than the others. */
INLINE long tile_rows(long rows, long most) {
  long tiles = (rows + most - 1) / most;
  return tiles ? (rows + tiles - 1) / tiles : 1;
}
#endif

#define LANES ((long)(VECTOR_BYTES / sizeof(REAL)))
#define VECTOR(n) __attribute__((vector_size((n) * sizeof(REAL)), aligned(sizeof(REAL)), may_alias))
typedef REAL NAME(x1);
typedef REAL NAME(x2) VECTOR(2);
typedef REAL NAME(x4) VECTOR(4);
typedef REAL NAME(x8) VECTOR(8);
typedef REAL NAME(x16) VECTOR(16);
typedef REAL NAME(widest) VECTOR(LANES);

/* c[i][n] = sum over k of a[i][k] b[k][n], for `rows` i and `vectors` vectors of n; where it `adds`, to
   what is there. */
#define DEFINE_TILE(width)                                                                        \
  INLINE void NAME(tile_##width)(const int rows, const int vectors, const long depth,             \
                                 const REAL *a, const long am, const long ak, const REAL *b,      \
                                 const long bk, REAL *c, const long cm, const int adds) {         \
    NAME(x##width) sum[TILE_ROWS][2];                                                             \
    UNROLL for (int i = 0; i < rows; i++)                                                         \
      UNROLL for (int j = 0; j < vectors; j++)                                                    \
        sum[i][j] = adds ? *(const NAME(x##width) *)(c + i * cm + j * width)                      \
                         : (NAME(x##width)){0};                                                   \
    for (long k = 0; k < depth; k++) {                                                            \
      NAME(x##width) right[2];                                                                    \
      UNROLL for (int j = 0; j < vectors; j++)                                                    \
        right[j] = *(const NAME(x##width) *)(b + k * bk + j * width);                             \
      UNROLL for (int i = 0; i < rows; i++) {                                                     \
        const REAL left = a[i * am + k * ak];                                                     \
        UNROLL for (int j = 0; j < vectors; j++) sum[i][j] += left * right[j];                    \
      }                                                                                           \
    }                                                                                             \
    UNROLL for (int i = 0; i < rows; i++)                                                         \
      UNROLL for (int j = 0; j < vectors; j++)                                                    \
        *(NAME(x##width) *)(c + i * cm + j * width) = sum[i][j];                                  \
  }                                                                                               \
  INLINE void NAME(rows_##width)(const long m, const int vectors, const long depth,               \
                                 const REAL *a, const long am, const long ak, const REAL *b,      \
                                 const long bk, REAL *c, const long cm, const int adds) {         \
    const long rows = tile_rows(m, TILE_ROWS);                                                    \
    for (long i = 0; i + rows <= m; i += rows)                                                    \
      NAME(tile_##width)(rows, vectors, depth, a + i * am, am, ak, b, bk, c + i * cm, cm, adds);  \
    if (m % rows)                                                                                 \
      NAME(tile_##width)(m % rows, vectors, depth, a + m / rows * rows * am, am, ak, b, bk,       \
                         c + m / rows * rows * cm, cm, adds);                                     \
  }
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(4)
DEFINE_TILE(8)
DEFINE_TILE(16)

/* c[m][n] = sum over k of a[m][k] b[k][n]; n is contiguous in b and c, a is read by single elements. */
INLINE void NAME(product)(const long m, const long n, const long depth, const REAL *a,
                          const long am, const long ak, const REAL *b, const long bk, REAL *c,
                          const long cm, const int adds) {
  long j = 0;
#define WIDE(width)                                                                               \
  for (; j + 2 * width <= n; j += 2 * width)                                                      \
    NAME(rows_##width)(m, 2, depth, a, am, ak, b + j, bk, c + j, cm, adds);
#define NARROW(width)                                                                             \
  if (j + width <= n) {                                                                           \
    NAME(rows_##width)(m, 1, depth, a, am, ak, b + j, bk, c + j, cm, adds);                       \
    j += width;                                                                                   \
  }
  if (LANES == 16) { WIDE(16) NARROW(16) NARROW(8) NARROW(4) }
  if (LANES == 8) { WIDE(8) NARROW(8) NARROW(4) }
  if (LANES == 4) { WIDE(4) NARROW(4) }
  if (LANES == 2) WIDE(2)
  NARROW(2)
  NARROW(1)
#undef WIDE
#undef NARROW
}

/* One of `parts` parts of a product, all with about as many of its tiles; the product where it is one. */
INLINE void NAME(tiles)(const long m, const long n, const long depth, const REAL *a, const long am,
                        const long ak, const REAL *b, const long bk, REAL *c, const long cm,
                        const int adds, const long part, const long parts) {
  if (parts == 1) {
    NAME(product)(m, n, depth, a, am, ak, b, bk, c, cm, adds);
    return;
  }
  const long rows = tile_rows(m, TILE_ROWS), columns = 2 * LANES;
  const long down = (m + rows - 1) / rows, tiles = down * ((n + columns - 1) / columns);
  for (long tile = part * tiles / parts; tile < (part + 1) * tiles / parts; tile++) {
    const long i = tile % down * rows, j = tile / down * columns;
#define TILE(rows, columns)                                                                       \
  NAME(product)(rows, columns, depth, a + i * am, am, ak, b + j, bk, c + i * cm + j, cm, adds);
    if (i + rows <= m && j + columns <= n) TILE(rows, columns)
    else if (i + rows <= m) TILE(rows, n % columns)
    else if (j + columns <= n) TILE(m % rows, columns)
    else TILE(m % rows, n % columns)
#undef TILE
  }
}

/* The same by blocks of the depth: rows of b that are long and many are read from memory once. */
INLINE void NAME(product_part)(const long m, const long n, const long depth, const REAL *a,
                               const long am, const long ak, const REAL *b, const long bk, REAL *c,
                               const long cm, const long block, const long part,
                               const long parts) {
  if (block >= depth) {
    NAME(tiles)(m, n, depth, a, am, ak, b, bk, c, cm, 0, part, parts);
    return;
  }
  for (long k = 0; k < depth; k += block)
    NAME(tiles)(m, n, depth - k < block ? depth - k : block, a + k * ak, am, ak, b + k * bk, bk, c,
                cm, k > 0, part, parts);
}

/* to[r] = the sum of from[r][...]: four rows at once, as one sum waits for itself. */
INLINE REAL NAME(sum_2)(const NAME(x2) v) { return v[0] + v[1]; }
#define DEFINE_SUM(width, half)                                                                   \
  INLINE REAL NAME(sum_##width)(const NAME(x##width) v) {                                         \
    const NAME(x##half) *halves = (const NAME(x##half) *)&v;                                      \
    return NAME(sum_##half)(halves[0] + halves[1]);                                               \
  }
DEFINE_SUM(4, 2)
DEFINE_SUM(8, 4)
DEFINE_SUM(16, 8)
INLINE REAL NAME(sum_of)(const NAME(widest) *v) {
  if (LANES == 16) return NAME(sum_16)(*(const NAME(x16) *)v);
  if (LANES == 8) return NAME(sum_8)(*(const NAME(x8) *)v);
  if (LANES == 4) return NAME(sum_4)(*(const NAME(x4) *)v);
  return NAME(sum_2)(*(const NAME(x2) *)v);
}
INLINE void NAME(row_sums_of)(const int rows, const long columns, const REAL *from, const long fr,
                              REAL *to, const long tr) {
  const long whole = columns / (2 * LANES) * (2 * LANES);
  double total[4];
  UNROLL for (int i = 0; i < rows; i++) total[i] = 0;
  /* By blocks: the sum of many floats one by one loses digits that torch's, by parts, still has. */
  for (long block = 0; block < whole; block += 128 * LANES) {
    NAME(widest) sum[4][2];
    UNROLL for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (NAME(widest)){0};
    const long end = block + 128 * LANES < whole ? block + 128 * LANES : whole;
    for (long c = block; c < end; c += 2 * LANES)
      UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < 2; j++)
          sum[i][j] += *(const NAME(widest) *)(from + i * fr + c + j * LANES);
    UNROLL for (int i = 0; i < rows; i++) {
      const NAME(widest) both = sum[i][0] + sum[i][1];
      total[i] += NAME(sum_of)(&both);
    }
  }
  for (long c = whole; c < columns; c++)
    UNROLL for (int i = 0; i < rows; i++) total[i] += from[i * fr + c];
  UNROLL for (int i = 0; i < rows; i++) to[i * tr] = (REAL)total[i];
}
INLINE void NAME(row_sums)(const long rows, const long columns, const REAL *from, const long fr,
                           REAL *to, const long tr) {
  for (long r = 0; r + 4 <= rows; r += 4)
    NAME(row_sums_of)(4, columns, from + r * fr, fr, to + r * tr, tr);
  if (rows % 4)
    NAME(row_sums_of)(rows % 4, columns, from + rows / 4 * 4 * fr, fr, to + rows / 4 * 4 * tr, tr);
}

/* to[c][r] = from[r][c]: rows of `from` lie `fr` apart, those of `to` `tc` apart. */
INLINE void NAME(transpose_8)(const REAL *from, const long fr, REAL *to, const long tc) {
  NAME(x8) r[8], t[8];
  UNROLL for (int i = 0; i < 8; i++) r[i] = *(const NAME(x8) *)(from + i * fr);
  UNROLL for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  UNROLL for (int i = 0; i < 8; i += 4)
    UNROLL for (int j = 0; j < 2; j++) {
      r[i + j] = __builtin_shufflevector(t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      r[i + j + 2] = __builtin_shufflevector(t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  UNROLL for (int j = 0; j < 4; j++) {
    *(NAME(x8) *)(to + j * tc) = __builtin_shufflevector(r[j], r[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    *(NAME(x8) *)(to + (j + 4) * tc) =
        __builtin_shufflevector(r[j], r[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
INLINE void NAME(transpose)(const long rows, const long columns, const REAL *from, const long fr,
                            REAL *to, const long tc) {
  const long r8 = rows / 8 * 8, c8 = columns / 8 * 8;
  for (long c = 0; c < c8; c += 8)
    for (long r = 0; r < r8; r += 8) NAME(transpose_8)(from + r * fr + c, fr, to + c * tc + r, tc);
  for (long c = 0; c < columns; c++)
    for (long r = c < c8 ? r8 : 0; r < rows; r++) to[c * tc + r] = from[r * fr + c];
}
#undef DEFINE_TILE
#undef DEFINE_SUM
#undef LANES
#undef VECTOR
