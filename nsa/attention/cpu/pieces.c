/* How are the pieces of a plan attended on a CPU, forward and backward?
 *
 * What `pieces.py` does with PyTorch's operations, in one call for a pair: a tile of rows meets 64
 * keys at a time, and its scores, powers, masks and products stay in the first two caches. Every
 * product is one small kernel, six rows by a few vectors in registers; keys and values are turned once
 * a call, so that it always reads along rows. Everything is computed and added up in fp32, for each
 * row in an order that does not depend on its neighbours.
 *
 * Shapes: a pair has P rows of queries (R of each of its tokens) and K keys, all D wide, D a
 * multiple of 16. A row sees the keys [lo, hi). Scores are powers of two: p = 2^(score - lse).
 * Rows are read and written where they lie, a tile at a time, so that nobody packs them.
 * Vectors are GCC's and Clang's, as wide as the machine's, and the product's kernel is as large as
 * its registers hold: what spills over takes many times as long.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined __AVX512F__ || defined __FMA__
#include <immintrin.h>
#endif

#if defined __AVX512F__ /* 32 registers */
#define WIDE 16         /* numbers of a vector */
#define ACROSS 4        /* vectors across the product's kernel */
#define OF_WIDTHS(M) OF_WIDTH(M, 1) OF_WIDTH(M, 2) OF_WIDTH(M, 3) OF_WIDTH(M, 4)
#else /* 16 registers, of AVX or of what every processor has */
#if defined __AVX__
#define WIDE 8
#else
#define WIDE 4
#endif
#define ACROSS 2
#define OF_WIDTHS(M) OF_WIDTH(M, 1) OF_WIDTH(M, 2)
#endif
#define HIGH 6  /* rows of that kernel */
#define KEYS 64 /* of a block */
#define TILE 60 /* most rows of a tile */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * WIDE)));
typedef int32_t ints __attribute__((vector_size(4 * WIDE)));

INLINE vec read(const float *from) {
    vec out;
    memcpy(&out, from, sizeof out);
    return out;
}

INLINE void write(float *to, vec x) { memcpy(to, &x, sizeof x); }

INLINE vec splat(float x) { return x - (vec){0}; }

/* x y + z in one rounding where the processor can, and not where a compiler likes it: rows of one
 * tile, and columns of one block, would round differently from others. */
INLINE vec fused(vec x, vec y, vec z) {
#if defined __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined __FMA__
    return (vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
    return x * y + z;
#endif
}

INLINE vec only(ints where, vec x) {
    ints bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= where;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE float sum(vec x) {
    float out = 0;
    for (int i = 0; i < WIDE; i++) out += x[i];
    return out;
}

/* 2^x, to 2 units in the last place; 0 below the normal numbers, infinity above, NaN of NaN.
 * The polynomial of Cephes' exp2f. */
INLINE vec power(vec x) {
    const vec whole = splat(12582912.0f);
    ints low = x >= -126.0f, much = x >= 128.0f, numbers = x == x;
    vec n = (x + whole) - whole;
    vec r = x - n;
    vec y = splat(1.535336188319500e-4f);
    y = y * r + 1.339887440266574e-3f;
    y = y * r + 9.618437357674640e-3f;
    y = y * r + 5.550332471162809e-2f;
    y = y * r + 2.402264791363012e-1f;
    y = y * r + 6.931472028550421e-1f;
    y = y * r + 1.0f;
    ints bits = __builtin_convertvector(only(low & ~much, n), ints);
    bits = (bits + 127) << 23;
    vec scale;
    memcpy(&scale, &bits, sizeof scale);
    ints large = (much & 0x7f800000) | (~much & -1);
    vec out = y * scale, inf;
    memcpy(&inf, &large, sizeof inf);
    ints obits, ibits = much & 0x7f800000;
    memcpy(&obits, &out, sizeof obits);
    obits = (numbers & ((low & ~much & obits) | ibits)) | (~numbers & obits);
    memcpy(&out, &obits, sizeof out);
    return out;
}

/* c [m, wide vectors] = a [m, count] b [count, wide vectors], added to it if `add`. */
INLINE void small(int m, int wide, const float *a, long row, long column, const float *b, long b_row,
                  long count, float *c, long c_row, int add) {
    vec sums[HIGH][ACROSS];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < wide; j++)
            sums[i][j] = add ? read(c + i * c_row + j * WIDE) : (vec){0};
    for (long k = 0; k < count; k++) {
        vec line[ACROSS];
        for (int j = 0; j < wide; j++) line[j] = read(b + k * b_row + j * WIDE);
        for (int i = 0; i < m; i++) {
            vec x = splat(a[i * row + k * column]);
            for (int j = 0; j < wide; j++) sums[i][j] = fused(x, line[j], sums[i][j]);
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < wide; j++) write(c + i * c_row + j * WIDE, sums[i][j]);
}

#define OF_WIDTH(M, W)                                                                             \
    case W:                                                                                        \
        small(M, W, a, row, column, b, b_row, count, c, c_row, add);                               \
        break;
#define OF_HEIGHT(M)                                                                               \
    static void small_##M(int wide, const float *a, long row, long column, const float *b,         \
                          long b_row, long count, float *c, long c_row, int add) {                 \
        switch (wide) { OF_WIDTHS(M) }                                                             \
    }
OF_HEIGHT(1)
OF_HEIGHT(2)
OF_HEIGHT(3)
OF_HEIGHT(4)
OF_HEIGHT(5)
OF_HEIGHT(6)

typedef void (*heights)(int, const float *, long, long, const float *, long, long, float *, long,
                        int);
static const heights of_height[] = {0, small_1, small_2, small_3, small_4, small_5, small_6};

/* c [m, wide vectors] (+)= a [m, count] b [count, wide vectors]; a's steps from row to row and from
 * column to column are given, so that it may lie turned. */
static void multiply(long m, long wide, const float *a, long row, long column, const float *b,
                     long b_row, long count, float *c, long c_row, int add) {
    for (long j = 0; j < wide; j += ACROSS) {
        int across = wide - j < ACROSS ? (int)(wide - j) : ACROSS;
        for (long i = 0; i < m; i += HIGH) {
            long high = m - i < HIGH ? m - i : HIGH;
            of_height[high](across, a + i * row, row, column, b + j * WIDE, b_row, count,
                            c + i * c_row + j * WIDE, c_row, add);
        }
    }
}

typedef struct {
    int64_t K, R, D, w, l, d, spans, groups; /* query t sees key s if t - w < s and s d + l <= t + 1 */
} sizes;

typedef struct {
    int64_t t0, t1, k0, k1;
} span;

typedef struct {
    int64_t k0, k1, count, first; /* keys, and its queries' numbers: `count` from place `first` on */
} gathered;

/* D numbers a row: so far from a token's to the next one's, and from a head's to the next one's. */
typedef struct {
    float *at;
    int64_t token, head;
} rows;

INLINE float *row_of(const rows *x, const sizes *s, long r) {
    return x->at + r / s->R * x->token + r % s->R * x->head;
}

/* Copy m rows from number r0 on, to or from a tile. */
INLINE void fetch(float *to, const rows *from, const sizes *s, long r0, long m) {
    for (long i = 0; i < m; i++)
        memcpy(to + i * s->D, row_of(from, s, r0 + i), sizeof(float) * s->D);
}

INLINE void store(const rows *to, const float *from, const sizes *s, long r0, long m) {
    for (long i = 0; i < m; i++)
        memcpy(row_of(to, s, r0 + i), from + i * s->D, sizeof(float) * s->D);
}

INLINE void add_to(const rows *to, const float *from, const sizes *s, long r0, long m) {
    for (long i = 0; i < m; i++) {
        float *row = row_of(to, s, r0 + i);
        for (long d = 0; d < s->D; d += WIDE)
            write(row + d, read(row + d) + read(from + i * s->D + d));
    }
}

/* A number a row: the next row's is `step` further. */
typedef struct {
    float *at;
    int64_t step;
} column;

/* Blocks of 64 keys [D, 64], turned; zeros beyond the last key. */
static void turn(const float *x, long K, long D, float *out) {
    for (long k0 = 0; k0 < K; k0 += KEYS) {
        float *block = out + k0 * D;
        long here = K - k0 < KEYS ? K - k0 : KEYS;
        if (here < KEYS) memset(block, 0, sizeof(float) * KEYS * D);
        for (long d0 = 0; d0 < D; d0 += WIDE)
            for (long k = 0; k < here; k++)
                for (long d = d0; d < d0 + WIDE; d++) block[d * KEYS + k] = x[(k0 + k) * D + d];
    }
}

/* The keys that some row of a tile sees, of one block: columns [from, until), whole vectors. */
typedef struct {
    long at;          /* its first key */
    long from, until; /* vectors of it */
    long keys;        /* numbers of keys in these vectors that there are */
} part;

INLINE part part_of(long block, long lo, long hi, long K) {
    part out = {block * KEYS, 0, KEYS / WIDE, 0};
    if (lo > out.at) out.from = (lo - out.at) / WIDE;
    if (hi < out.at + KEYS) out.until = (hi - out.at + WIDE - 1) / WIDE;
    long end = out.at + out.until * WIDE;
    out.keys = (end < K ? end : K) - (out.at + out.from * WIDE);
    return out;
}

/* Where a vector of keys from `key` on is seen by a row. */
INLINE ints seen(long key, long lo, long hi) {
    ints count;
    for (int i = 0; i < WIDE; i++) count[i] = i;
    return (count >= (int32_t)(lo - key)) & (count < (int32_t)(hi - key));
}

INLINE vec shown(vec x, long key, long lo, long hi) {
    return lo <= key && key + WIDE <= hi ? x : only(seen(key, lo, hi), x);
}

typedef struct {
    long m;             /* rows */
    long least, most;   /* keys that some row sees */
    long lo[TILE], hi[TILE];
    float offset[TILE]; /* what is taken from a row's scores */
    float gate[TILE], dot[TILE];
    int lone[TILE];     /* whether a row sees one key in the whole plan */
    vec sums[TILE], others[TILE];
    float p[TILE * KEYS], s[TILE * KEYS];
} tile;

static void bound(tile *t) {
    t->least = t->lo[0];
    t->most = t->hi[0];
    for (long i = 1; i < t->m; i++) {
        if (t->lo[i] < t->least) t->least = t->lo[i];
        if (t->hi[i] > t->most) t->most = t->hi[i];
    }
}

/* out [m, D] = the unnormalised output of a tile, t->sums what it is to be divided by. */
static void attend_tile(tile *t, const float *q, const float *turned, const float *v, long K, long D,
                        float *out) {
    for (long i = 0; i < t->m; i++) t->sums[i] = (vec){0};
    bound(t);
    int add = 0;
    for (long block = t->least / KEYS; block * KEYS < t->most; block++) {
        part b = part_of(block, t->least, t->most, K);
        long x = b.from * WIDE;
        multiply(t->m, b.until - b.from, q, D, 1, turned + b.at * D + x, KEYS, D, t->p + x, KEYS, 0);
        for (long i = 0; i < t->m; i++)
            for (long j = b.from; j < b.until; j++) {
                float *at = t->p + i * KEYS + j * WIDE;
                vec p = power(read(at) - t->offset[i]);
                p = shown(p, b.at + j * WIDE, t->lo[i], t->hi[i]);
                t->sums[i] += p;
                write(at, p);
            }
        multiply(t->m, D / WIDE, t->p + x, KEYS, 1, v + (b.at + x) * D, D, b.keys, out, D, add);
        add = 1;
    }
}

/* Rows [r0, r0 + m) of a span. */
static void of_span(tile *t, const sizes *s, const span *where, long r0, long m) {
    t->m = m;
    for (long i = 0; i < m; i++) {
        long query = (r0 + i) / s->R, lo = query - s->w + 1, hi = (query + 1 - s->l) / s->d + 1;
        t->lo[i] = lo > where->k0 ? lo : where->k0;
        t->hi[i] = hi < where->k1 ? hi : where->k1;
    }
}

/* Numbers of a tile's rows, which lie `step` apart; nothing given: 0. */
INLINE void numbers(float *to, column from, long r0, long m) {
    for (long i = 0; i < m; i++) to[i] = from.at ? from.at[(r0 + i) * from.step] : 0.0f;
}

/* Attend for one pair: `out` unnormalised and `total` [P], written for the rows of spans, then
 * added to. `room` holds the turned keys and two tiles. */
void nsa_attend(const sizes *s, const span *spans, const gathered *groups, const int64_t *queries,
                int64_t first_query, const rows *q, const float *k, const float *v,
                const float *reference, const rows *out, float *total, float *room) {
    const long D = s->D, R = s->R, K = s->K, at_once = TILE / R;
    const column offsets = {(float *)reference, 1};
    float *turned = room, *own = turned + (K + KEYS - 1) / KEYS * KEYS * D, *made = own + TILE * D;
    tile t;
    turn(k, K, D, turned);
    for (long n = 0; n < s->spans; n++)
        for (long r0 = spans[n].t0 * R; r0 < spans[n].t1 * R; r0 += TILE) {
            long rest = spans[n].t1 * R - r0, m = rest < TILE ? rest : TILE;
            of_span(&t, s, spans + n, r0, m);
            numbers(t.offset, offsets, r0, m);
            fetch(own, q, s, r0, m);
            attend_tile(&t, own, turned, v, K, D, made);
            store(out, made, s, r0, m);
            for (long i = 0; i < m; i++) total[r0 + i] = sum(t.sums[i]);
        }
    for (long n = 0; n < s->groups; n++) {
        const gathered *g = groups + n;
        const int64_t *of = queries + g->first;
        for (long begin = 0; begin < g->count; begin += at_once) {
            long many = g->count - begin < at_once ? g->count - begin : at_once;
            t.m = many * R;
            for (long i = 0; i < t.m; i++) t.lo[i] = g->k0, t.hi[i] = g->k1 < K ? g->k1 : K;
            for (long i = 0; i < many; i++) {
                long r0 = (of[begin + i] - first_query) * R;
                fetch(own + i * R * D, q, s, r0, R);
                numbers(t.offset + i * R, offsets, r0, R);
            }
            attend_tile(&t, own, turned, v, K, D, made);
            for (long i = 0; i < many; i++) {
                long r0 = (of[begin + i] - first_query) * R;
                add_to(out, made + i * R * D, s, r0, R);
                for (long h = 0; h < R; h++) total[r0 + h] += sum(t.sums[i * R + h]);
            }
        }
    }
}

/* The largest of a vector. */
INLINE float largest(vec x) {
    float out = x[0];
    for (int i = 1; i < WIDE; i++) out = x[i] > out || x[i] != x[i] ? x[i] : out;
    return out;
}

INLINE vec greater(vec a, vec b) {
    ints first = (a > b) | (a != a), abits, bbits;
    memcpy(&abits, &a, sizeof abits);
    memcpy(&bbits, &b, sizeof bbits);
    abits = (first & abits) | (~first & bbits);
    memcpy(&a, &abits, sizeof a);
    return a;
}

/* Shares of a tile's rows, in `p` [m, row], zeros where a row sees nothing; of each row what was
 * taken from its scores, and its sum, in t->offset and t->dot. */
static void compressed_rows(tile *t, const float *q, const float *turned, long K, long D,
                            float factor, float *p, long row) {
    bound(t);
    for (long block = 0; block * KEYS < t->most; block++) {
        part b = part_of(block, 0, t->most, K);
        multiply(t->m, b.until, q, D, 1, turned + b.at * D, KEYS, D, p + b.at, row, 0);
    }
    const long wide = (t->most + WIDE - 1) / WIDE * WIDE;
    for (long i = 0; i < t->m; i++) {
        float *line = p + i * row;
        vec top = splat(-INFINITY), total = {0};
        for (long k = 0; k < wide; k += WIDE) {
            vec x = read(line + k) * factor;
            write(line + k, x);
            for (int lane = 0; k + WIDE > t->hi[i] && lane < WIDE; lane++)
                if (k + lane >= t->hi[i]) x[lane] = -INFINITY;
            top = greater(x, top);
        }
        t->offset[i] = largest(top);
        for (long k = 0; k < wide; k += WIDE) {
            vec x = shown(power(read(line + k) - t->offset[i]), k, 0, t->hi[i]);
            total += x;
            write(line + k, x);
        }
        t->dot[i] = sum(total);
        const vec share = splat(1.0f / t->dot[i]);
        for (long k = 0; k < wide; k += WIDE) write(line + k, read(line + k) * share);
    }
}

/* Attend to compressed keys, of one pair: `out` and `lse` [P] of the queries `begin` to `end`, from
 * the first that sees one on; and `scores` [those from `start` on, blocks] of the selection blocks
 * (eq. 9 and 10): `counts` says how much counts each of the `many` compressed blocks from `ahead` before a
 * selection block's first one on; selection blocks are `apart` of them apart. The factor is applied to products, not
 * to keys, and every column is computed alike: blocks of equal keys get equal scores. */
void nsa_attend_compressed(const sizes *s, const rows *q, const float *k, const float *v,
                           float factor, int64_t start, int64_t begin, int64_t end,
                           int64_t blocks, int64_t apart, int64_t ahead, int64_t many, const float *counts,
                           const rows *out, float *lse, float *scores, int64_t row, float *room) {
    const long D = s->D, R = s->R, K = s->K, at_once = TILE / R;
    const long first = start > begin ? start : begin;
    float *turned = room, *own = turned + (K + KEYS - 1) / KEYS * KEYS * D, *made = own + TILE * D;
    float *p = made + TILE * D, *heads = p + TILE * row;
    tile t;
    turn(k, K, D, turned);
    for (long t0 = begin < s->l - 1 ? s->l - 1 : begin; t0 < end; t0 += at_once) {
        const long here = end - t0 < at_once ? end - t0 : at_once;
        t.m = here * R;
        for (long i = 0; i < t.m; i++) {
            long hi = (t0 + i / R + 1 - s->l) / s->d + 1;
            t.lo[i] = 0, t.hi[i] = hi < K ? hi : K;
        }
        fetch(own, q, s, t0 * R, t.m);
        compressed_rows(&t, own, turned, K, D, factor, p, row);
        multiply(t.m, D / WIDE, p, row, 1, v, D, t.most, made, D, 0);
        store(out, made, s, t0 * R, t.m);
        for (long i = 0; i < t.m; i++) lse[t0 * R + i] = log2f(t.dot[i]) + t.offset[i];
        for (long n = t0 < first ? first - t0 : 0; n < here; n++) {
            float *to = scores + (t0 + n - first) * blocks;
            const long seen = (t.hi[n * R] + WIDE - 1) / WIDE * WIDE;
            for (long c = 0; c < seen; c += WIDE) {
                vec all = {0};
                for (long h = 0; h < R; h++) all += read(p + (n * R + h) * row + c);
                write(heads + ahead + c, all);
            }
            memset(heads, 0, sizeof(float) * ahead);
            memset(heads + ahead + seen, 0, sizeof(float) * many);
            for (long j = 0; j < blocks && j * apart < ahead + seen; j++) {
                float score = 0;
                for (long o = 0; o < many; o++) score += counts[o] * heads[j * apart + o];
                to[j] = score;
            }
        }
    }
}

typedef struct {
    const float *k, *v;         /* [K, D] */
    const float *k_turned, *v_turned;
    float *dk, *dv;             /* [K, D], added to */
    long K, D;
} keys;

/* t->p = shares of one part; t->s = what the gradient of the output says of each. */
INLINE void shares(tile *t, const keys *x, const part *b, const float *q, const float *grad, float *p,
                   float *s, long row) {
    long from = b->from * WIDE, wide = b->until - b->from;
    const long at = b->at * x->D + from;
    multiply(t->m, wide, q, x->D, 1, x->k_turned + at, KEYS, x->D, p, row, 0);
    multiply(t->m, wide, grad, x->D, 1, x->v_turned + at, KEYS, x->D, s, row, 0);
}

/* Gradients of a tile of which each row may be in several: `dot` is known. dq [m, D] is added to. */
static void parts_backward(tile *t, const keys *x, const float *q, const float *grad, float *dq) {
    bound(t);
    for (long block = t->least / KEYS; block * KEYS < t->most; block++) {
        part b = part_of(block, t->least, t->most, x->K);
        float *p = t->p + b.from * WIDE, *s = t->s + b.from * WIDE;
        const long first = b.at + b.from * WIDE, wide = b.until - b.from, D = x->D;
        shares(t, x, &b, q, grad, p, s, KEYS);
        for (long i = 0; i < t->m; i++)
            for (long j = 0; j < wide; j++) {
                float *at = p + i * KEYS + j * WIDE, *to = s + i * KEYS + j * WIDE;
                vec share = power(read(at) + t->offset[i]) * t->gate[i];
                share = shown(share, first + j * WIDE, t->lo[i], t->hi[i]);
                write(at, share);
                write(to, t->lone[i] ? (vec){0} : share * (read(to) - t->dot[i]));
            }
        multiply(b.keys, D / WIDE, p, 1, KEYS, grad, D, t->m, x->dv + first * D, D, 1);
        multiply(b.keys, D / WIDE, s, 1, KEYS, q, D, t->m, x->dk + first * D, D, 1);
        multiply(t->m, D / WIDE, s, KEYS, 1, x->k + first * D, D, b.keys, dq, D, 1);
    }
}

/* Gradients of a tile that holds all keys of its rows: `dot` is found, dq [m, D] added to. `room`
 * holds its queries and gradients times the gate, dq before it, and shares and what is said of them,
 * `row` apart. */
static void rows_backward(tile *t, const keys *x, const float *q, const float *grad, float *dq,
                          float *room, long row) {
    const long D = x->D, m = t->m;
    float *gated_q = room, *gated = gated_q + TILE * D, *made = gated + TILE * D;
    float *p = made + TILE * D, *s = p + TILE * row;
    bound(t);
    for (long i = 0; i < m; i++) {
        t->sums[i] = t->others[i] = (vec){0};
        for (long d = 0; d < D; d += WIDE) {
            write(gated_q + i * D + d, read(q + i * D + d) * t->gate[i]);
            write(gated + i * D + d, read(grad + i * D + d) * t->gate[i]);
        }
    }
    const long begin = t->least / KEYS * KEYS;
    for (long block = t->least / KEYS; block * KEYS < t->most; block++) {
        part b = part_of(block, t->least, t->most, x->K);
        const long first = b.at + b.from * WIDE, wide = b.until - b.from;
        float *ps = p + first - begin, *ss = s + first - begin;
        shares(t, x, &b, q, grad, ps, ss, row);
        for (long i = 0; i < m; i++)
            for (long j = 0; j < wide; j++) {
                float *at = ps + i * row + j * WIDE, *to = ss + i * row + j * WIDE;
                vec share = power(read(at) + t->offset[i]);
                share = shown(share, first + j * WIDE, t->lo[i], t->hi[i]);
                vec said = read(to) * share;
                t->sums[i] += share;
                t->others[i] += said;
                write(at, share);
                write(to, said);
            }
        multiply(b.keys, D / WIDE, ps, 1, row, gated, D, m, x->dv + first * D, D, 1);
    }
    for (long i = 0; i < m; i++) t->dot[i] = sum(t->others[i]) / sum(t->sums[i]);
    int add = 0;
    for (long block = t->least / KEYS; block * KEYS < t->most; block++) {
        part b = part_of(block, t->least, t->most, x->K);
        const long first = b.at + b.from * WIDE, wide = b.until - b.from;
        float *ps = p + first - begin, *ss = s + first - begin;
        for (long i = 0; i < m; i++)
            for (long j = 0; j < wide; j++) {
                float *to = ss + i * row + j * WIDE;
                vec said = read(to) - read(ps + i * row + j * WIDE) * t->dot[i];
                write(to, t->lone[i] ? (vec){0} : said);
            }
        multiply(b.keys, D / WIDE, ss, 1, row, gated_q, D, m, x->dk + first * D, D, 1);
        multiply(m, D / WIDE, ss, row, 1, x->k + first * D, D, b.keys, made, D, add);
        add = 1;
    }
    for (long i = 0; i < m; i++)
        for (long d = 0; d < D; d += WIDE)
            write(dq + i * D + d, read(dq + i * D + d) + read(made + i * D + d) * t->gate[i]);
}

/* Gradients of one pair; dq, dk [K, D] and dv [K, D] are added to. `minus_lse`, `gate` and `dot`
 * have a number a row; where each row is whole in one span (`row` > 0: the most keys of a tile, in
 * whole blocks) `dot` is written, else read. `lone`: queries of the first that see one key. */
void nsa_attend_backward(const sizes *s, const span *spans, const gathered *groups,
                         const int64_t *queries, int64_t first_query, const rows *q,
                         const float *k, const float *v, const rows *grad,
                         const column *minus_lse, const column *gate, const column *dot,
                         const rows *dq, float *dk, float *dv, int64_t lone, int64_t row,
                         float *room) {
    const long D = s->D, R = s->R, K = s->K, at_once = TILE / R;
    const long turned = (K + KEYS - 1) / KEYS * KEYS * D;
    keys x = {k, v, room, room + turned, dk, dv, K, D};
    float *own = room + 2 * turned, *grads = own + TILE * D, *made = grads + TILE * D;
    tile t;
    turn(k, K, D, room);
    turn(v, K, D, room + turned);
    for (long n = 0; n < s->spans; n++)
        for (long r0 = spans[n].t0 * R; r0 < spans[n].t1 * R; r0 += TILE) {
            long rest = spans[n].t1 * R - r0, m = rest < TILE ? rest : TILE;
            of_span(&t, s, spans + n, r0, m);
            numbers(t.offset, *minus_lse, r0, m);
            numbers(t.gate, *gate, r0, m);
            for (long i = 0; i < m; i++) t.lone[i] = (r0 + i) / R < lone;
            fetch(own, q, s, r0, m);
            fetch(grads, grad, s, r0, m);
            fetch(made, dq, s, r0, m);
            if (row) {
                rows_backward(&t, &x, own, grads, made, made + TILE * D, row);
                for (long i = 0; i < m; i++) dot->at[(r0 + i) * dot->step] = t.dot[i];
            } else {
                numbers(t.dot, *dot, r0, m);
                parts_backward(&t, &x, own, grads, made);
            }
            store(dq, made, s, r0, m);
        }
    memset(t.lone, 0, sizeof t.lone);
    for (long n = 0; n < s->groups; n++) {
        const gathered *g = groups + n;
        const int64_t *of = queries + g->first;
        for (long begin = 0; begin < g->count; begin += at_once) {
            long many = g->count - begin < at_once ? g->count - begin : at_once;
            t.m = many * R;
            for (long i = 0; i < t.m; i++) t.lo[i] = g->k0, t.hi[i] = g->k1 < K ? g->k1 : K;
            for (long i = 0; i < many; i++) {
                long r0 = (of[begin + i] - first_query) * R;
                fetch(own + i * R * D, q, s, r0, R);
                fetch(grads + i * R * D, grad, s, r0, R);
                numbers(t.offset + i * R, *minus_lse, r0, R);
                numbers(t.gate + i * R, *gate, r0, R);
                numbers(t.dot + i * R, *dot, r0, R);
            }
            memset(made, 0, sizeof(float) * t.m * D);
            parts_backward(&t, &x, own, grads, made);
            for (long i = 0; i < many; i++)
                add_to(dq, made + i * R * D, s, (of[begin + i] - first_query) * R, R);
        }
    }
}
