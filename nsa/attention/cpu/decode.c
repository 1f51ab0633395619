/* How is one token attended on a CPU, in one call?
 *
 * What `decode.py` does in forty operations of PyTorch, for a token at t of every sequence and
 * group: compressed logits and shares, block scores (eq. 9 and 10), the choice, the selected and
 * the window branch, gates. Chosen blocks are read where they lie. Everything is computed in fp32.
 *
 * Equal keys get equal shares to the last bit, and equal shares equal scores, so ties go to the
 * smaller id as everywhere: every product is added up in the same order, whatever its place.
 *
 * Shapes: N sequences times groups, R heads a group, D head width, C compressed blocks. Vectors
 * are GCC's and Clang's, 16 numbers each, whatever the machine has.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define WIDE 16
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * WIDE)));
typedef int32_t ints __attribute__((vector_size(4 * WIDE)));
typedef uint32_t words __attribute__((vector_size(4 * WIDE)));
typedef uint16_t halves __attribute__((vector_size(2 * WIDE)));

/* 16 numbers of an array of fp32, or of bf16, from place i on. */
INLINE vec load(const void *from, long i, int half) {
    vec out;
    if (half) {
        halves raw;
        memcpy(&raw, (const uint16_t *)from + i, sizeof raw);
        words bits = __builtin_convertvector(raw, words) << 16;
        memcpy(&out, &bits, sizeof out);
    } else {
        memcpy(&out, (const float *)from + i, sizeof out);
    }
    return out;
}

INLINE vec read(const float *from) {
    vec out;
    memcpy(&out, from, sizeof out);
    return out;
}

INLINE void write(float *to, vec x) { memcpy(to, &x, sizeof x); }

INLINE const void *offset(const void *from, long i, int half) {
    return (const char *)from + i * (half ? 2 : 4);
}

/* The sum of the 16: halves upon each other, always in that order. */
INLINE float sum(vec x) {
    typedef float v8 __attribute__((vector_size(32)));
    typedef float v4 __attribute__((vector_size(16)));
    v8 lo, hi;
    v4 a, b;
    memcpy(&lo, &x, 32);
    memcpy(&hi, (const char *)&x + 32, 32);
    lo += hi;
    memcpy(&a, &lo, 16);
    memcpy(&b, (const char *)&lo + 16, 16);
    a += b;
    return (a[0] + a[2]) + (a[1] + a[3]);
}

/* e^x of x <= 0, to 2 units in the last place; NaN of NaN. Cody and Waite's reduction, and the
 * polynomial of Cephes' expf. */
INLINE vec exponential(vec x) {
    const vec least = {0};
    vec floor = least - 87.0f;
    ints low = x < floor; /* false of NaN */
    ints bits, fbits;
    memcpy(&bits, &x, sizeof bits);
    memcpy(&fbits, &floor, sizeof fbits);
    bits = (low & fbits) | (~low & bits);
    memcpy(&x, &bits, sizeof x);
    vec shifted = x * 1.44269504088896341f + 12582912.0f; /* to the nearest whole number */
    vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vec p = least + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ints power;
    memcpy(&power, &shifted, sizeof power);
    power = (power - 0x4B400000 + 127) << 23;
    vec scale;
    memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

typedef struct {
    const void *k, *v;
    long tokens;
} Piece;

/* Products of some tokens of one piece with every query: logits[r * width + x]. */
INLINE void multiply(const float *q, long R, long D, const void *k, long tokens, float *logits,
                     long width, int half) {
    long x = 0;
    for (; x + 4 <= tokens; x += 4)
        for (long r = 0; r < R; r++) {
            vec a = {0}, b = {0}, c = {0}, d = {0};
            for (long i = 0; i < D; i += WIDE) {
                vec of = read(q + r * D + i);
                a += of * load(k, (x + 0) * D + i, half);
                b += of * load(k, (x + 1) * D + i, half);
                c += of * load(k, (x + 2) * D + i, half);
                d += of * load(k, (x + 3) * D + i, half);
            }
            float *to = logits + r * width + x;
            to[0] = sum(a), to[1] = sum(b), to[2] = sum(c), to[3] = sum(d);
        }
    for (; x < tokens; x++)
        for (long r = 0; r < R; r++) {
            vec a = {0};
            for (long i = 0; i < D; i += WIDE)
                a += read(q + r * D + i) * load(k, x * D + i, half);
            logits[r * width + x] = sum(a);
        }
}

/* Shares of `tokens` logits in place, and nothing beyond them up to a whole vector. */
INLINE void share(float *row, long tokens) {
    float top = -INFINITY, total = 0;
    for (long x = 0; x < tokens; x++)
        top = row[x] > top ? row[x] : top;
    long whole = (tokens + WIDE - 1) / WIDE * WIDE;
    for (long x = tokens; x < whole; x++)
        row[x] = -INFINITY;
    vec all = {0};
    for (long x = 0; x < whole; x += WIDE) {
        vec e = exponential(read(row + x) - top);
        if (x + WIDE > tokens) {
            float part[WIDE];
            write(part, e);
            for (long i = tokens - x; i < WIDE; i++)
                part[i] = 0;
            e = read(part);
        }
        write(row + x, e);
        all += e;
    }
    total = sum(all);
    for (long x = 0; x < whole; x += WIDE)
        write(row + x, read(row + x) / total);
}

/* out[r] += shares times values, for some heads and some vectors of their width: constants. */
INLINE void gather(const float *shares, long width, const void *v, long tokens, float *out, long D,
                   long heads, long vectors, int half) {
    vec sums[6][2];
    for (long r = 0; r < heads; r++)
        for (long i = 0; i < vectors; i++)
            sums[r][i] = read(out + r * D + i * WIDE);
    for (long x = 0; x < tokens; x++)
        for (long i = 0; i < vectors; i++) {
            vec value = load(v, x * D + i * WIDE, half);
            for (long r = 0; r < heads; r++)
                sums[r][i] += shares[r * width + x] * value;
        }
    for (long r = 0; r < heads; r++)
        for (long i = 0; i < vectors; i++)
            write(out + r * D + i * WIDE, sums[r][i]);
}

INLINE void gather_heads(const float *shares, long width, const void *v, long tokens, float *out,
                         long D, long heads, int half) {
    long i = 0;
    for (; i + 2 * WIDE <= D; i += 2 * WIDE)
        gather(shares, width, offset(v, i, half), tokens, out + i, D, heads, 2, half);
    for (; i < D; i += WIDE)
        gather(shares, width, offset(v, i, half), tokens, out + i, D, heads, 1, half);
}

/* Attention of R queries over pieces of keys and values; their shares stay in `shares`. */
INLINE void attend(const float *q, long R, long D, const Piece *pieces, long count, float *shares,
                   long width, float *out, int half) {
    long tokens = 0;
    for (long i = 0; i < count; i++) {
        multiply(q, R, D, pieces[i].k, pieces[i].tokens, shares + tokens, width, half);
        tokens += pieces[i].tokens;
    }
    memset(out, 0, sizeof(float) * R * D);
    if (tokens == 0)
        return;
    for (long r = 0; r < R; r++)
        share(shares + r * width, tokens);
    long from = 0;
    for (long i = 0; i < count; i++) {
        const float *here = shares + from;
        const void *v = pieces[i].v;
        long n = pieces[i].tokens, r = 0;
        for (; r + 6 <= R; r += 6)
            gather_heads(here + r * width, width, v, n, out + r * D, D, 6, half);
        for (; r + 2 <= R; r += 2)
            gather_heads(here + r * width, width, v, n, out + r * D, D, 2, half);
        for (; r < R; r++)
            gather_heads(here + r * width, width, v, n, out + r * D, D, 1, half);
        from += pieces[i].tokens;
    }
}

typedef struct {
    int64_t N, R, D;
    int64_t t;                  /* the query's position */
    int64_t C;                  /* compressed blocks */
    int64_t blocks_apart;       /* numbers from one group's compressed keys to the next one's */
    int64_t tokens_apart, ring_apart;
    int64_t l, d, l_sel, n_sel, ring;
    int64_t first, recent;      /* the selection rule */
    int64_t width;              /* room of a row of shares, and of scores: whole vectors */
} Sizes;

/* Scores of blocks 0 .. count - 1: sums over heads and compressed blocks of each stride, then over
 * the strides of a selection block. */
static void score(const float *shares, const Sizes *s, float *of_blocks, float *scores, long count) {
    long a = s->l_sel / s->d, r = s->l / s->d;
    for (long c = 0; c < s->C; c++) {
        float all = 0;
        for (long h = 0; h < s->R; h++)
            all += shares[h * s->width + c];
        of_blocks[c] = all;
    }
    for (long j = 0; j < count; j++) {
        float all = 0;
        for (long u = j * a; u < (j + 1) * a; u++) {
            float stride = 0;
            for (long c = u - r + 1; c <= u; c++)
                stride += c >= 0 && c < s->C ? of_blocks[c] : 0.0f;
            all += stride;
        }
        scores[j] = isnan(all) ? INFINITY : all;
    }
}

/* Ids of one query in block t / l_sel, ascending, -1 behind them. Returns how many. */
static long choose(const float *shares, const Sizes *s, float *of_blocks, float *scores,
                   int64_t *ids) {
    long blocks = s->t / s->l_sel + 1, found = 0;
    if (s->n_sel >= blocks) {
        for (long j = 0; j < s->n_sel; j++)
            ids[j] = j < blocks ? j : -1;
        return blocks;
    }
    long end = blocks - s->recent;
    score(shares, s, of_blocks, scores, end);
    for (long n = s->n_sel - s->first - s->recent; n > 0; n--) {
        long best = -1;
        for (long j = s->first; j < end; j++)
            if (scores[j] >= 0 && (best < 0 || scores[j] > scores[best]))
                best = j;
        scores[best] = -1; /* taken */
    }
    for (long j = 0; j < blocks; j++)
        if (j < s->first || j >= end || scores[j] < 0)
            ids[found++] = j;
    return found;
}

INLINE void serve(const Sizes *s, long D, const void *q, const void *gates, const void *k_blocks,
                  const void *v_blocks, const void *k_sel, const void *v_sel, const void *k_ring,
                  const void *v_ring, float factor, float *room, void *out, int64_t *ids,
                  int half) {
    long R = s->R, width = s->width, last = s->t / s->l_sel;
    long most = s->n_sel < last + 1 ? s->n_sel : last + 1;
    float *queries = room, *shares = queries + R * D, *of_blocks = shares + R * width,
          *scores = of_blocks + width, *branch = scores + width, *total = branch + R * D;
    Piece pieces[most]; /* not of n_sel, which may be "all": it lies on the stack */
    for (long n = 0; n < s->N; n++) {
        for (long i = 0; i < R * D; i += WIDE)
            write(queries + i, load(q, n * R * D + i, half) * factor);
        memset(total, 0, sizeof(float) * R * D);
        for (int b = 0; b < 3; b++) {
            long count = 1;
            if (b == 0) {
                pieces[0] = (Piece){offset(k_blocks, n * s->blocks_apart, half),
                                    offset(v_blocks, n * s->blocks_apart, half), s->C};
            } else if (b == 1) {
                int64_t *chosen = ids + n * s->n_sel;
                count = choose(shares, s, of_blocks, scores, chosen);
                for (long i = 0; i < count; i++) {
                    long at = n * s->tokens_apart + chosen[i] * s->l_sel * D;
                    pieces[i] = (Piece){offset(k_sel, at, half), offset(v_sel, at, half),
                                        chosen[i] == last ? s->t % s->l_sel + 1 : s->l_sel};
                }
            } else {
                pieces[0] = (Piece){offset(k_ring, n * s->ring_apart, half),
                                    offset(v_ring, n * s->ring_apart, half),
                                    s->t + 1 < s->ring ? s->t + 1 : s->ring};
            }
            attend(queries, R, D, pieces, count, shares, width, branch, half);
            for (long r = 0; r < R; r++) {
                float gate;
                if (half) {
                    uint32_t bits = (uint32_t)((const uint16_t *)gates)[(n * R + r) * 3 + b] << 16;
                    memcpy(&gate, &bits, 4);
                } else {
                    gate = ((const float *)gates)[(n * R + r) * 3 + b];
                }
                for (long i = 0; i < D; i += WIDE)
                    write(total + r * D + i,
                          read(total + r * D + i) + gate * read(branch + r * D + i));
            }
        }
        if (!half) {
            memcpy((float *)out + n * R * D, total, sizeof(float) * R * D);
            continue;
        }
        for (long i = 0; i < R * D; i++) { /* to nearest, ties to even */
            uint32_t bits;
            memcpy(&bits, total + i, 4);
            uint16_t rounded = isnan(total[i]) ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
            ((uint16_t *)out)[n * R * D + i] = rounded;
        }
    }
}

#define SERVE(NAME, HALF)                                                                          \
    void NAME(const Sizes *s, const void *q, const void *gates, const void *k_blocks,              \
              const void *v_blocks, const void *k_sel, const void *v_sel, const void *k_ring,      \
              const void *v_ring, float factor, float *room, void *out, int64_t *ids) {            \
        if (s->D == 64)                                                                            \
            serve(s, 64, q, gates, k_blocks, v_blocks, k_sel, v_sel, k_ring, v_ring, factor, room, \
                  out, ids, HALF);                                                                 \
        else if (s->D == 128)                                                                      \
            serve(s, 128, q, gates, k_blocks, v_blocks, k_sel, v_sel, k_ring, v_ring, factor,      \
                  room, out, ids, HALF);                                                           \
        else                                                                                       \
            serve(s, s->D, q, gates, k_blocks, v_blocks, k_sel, v_sel, k_ring, v_ring, factor,     \
                  room, out, ids, HALF);                                                           \
    }

SERVE(nsa_decode_fp32, 0)
SERVE(nsa_decode_bf16, 1)
