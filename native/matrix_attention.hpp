// Attention on the matrix unit, for bf16 caches: the steps of attention.hpp in the same order, up to 16 queries at a time.
//
// Keys and values are bf16 already; queries and weights are split into two bf16 numbers each, so that their products lose
// nothing that matters. A query's result is formed in one order, whatever the other rows of a tile hold.
#pragma once
#include "attention.hpp"
#include "matrix_unit.hpp"

namespace headway::HEADWAY_ISA {

constexpr int kMatrixQueries = 16;
constexpr int kMatrixWidth = 64;  // columns of the output that are collected together, and what head_dim is a multiple of

inline bool fits_matrix_attention(const KVLayer& kv) { return kv.is_bf16 && kv.head_dim % kMatrixWidth == 0; }

// Tiles: 0 to 3 collect. For scores, 4 holds queries [rows][32 dims] and 5 keys [16 pairs of dims][16 tokens][2]; for values,
// 6 holds weights [rows][16 tokens] and 7 values [8 pairs of tokens][16 dims][2].
constexpr TileShapes attention_shapes(int rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 5; tile++) shapes.shape(tile, rows, 64);
  shapes.shape(5, 16, 64);
  shapes.shape(6, rows, 32);
  shapes.shape(7, 8, 64);
  return shapes;
}
inline void use_attention_tiles(int queries) {
  static constexpr TileShapes few = attention_shapes(8), many = attention_shapes(16);
  use_tiles(queries > 8 ? many : few);
}

// Two vectors as bf16 numbers side by side, x = high + low to 16 bits.
inline void store_split(const f32x16& x, const f32x16& y, uint16_t* high, uint16_t* low) {
  const __m512 x_high = bits<f32x16>(bits<u32x16>(x) & 0xffff0000u).part[0], y_high = bits<f32x16>(bits<u32x16>(y) & 0xffff0000u).part[0];
  _mm512_storeu_si512(high, __m512i(_mm512_cvtne2ps_pbh(y_high, x_high)));
  _mm512_storeu_si512(low, __m512i(_mm512_cvtne2ps_pbh(_mm512_sub_ps(y.part[0], y_high), _mm512_sub_ps(x.part[0], x_high))));
}

// 2^x for x <= 0, to about 2 ulp: a polynomial on the distance to the nearest whole number (fitted at Chebyshev nodes of [-0.5, 0.5]).
// What would be denormal is 0.
inline f32x16 exp2_of_negative(const f32x16& v) {
  const __m512 x = v.part[0], r = _mm512_reduce_ps(x, 0);
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  __m512 p = _mm512_set1_ps(1.546973202e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.340043217e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618025603e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550327214e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402265121e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931472067e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  f32x16 y;
  y.part[0] = _mm512_maskz_scalef_ps(counts, p, _mm512_sub_ps(x, r));
  return y;
}

// Rows lie head_dim apart, so that they share the nearest cache well.
struct MatrixScratch {
  alignas(64) uint16_t query_high[kMatrixQueries * kMaxHeadDim], query_low[kMatrixQueries * kMaxHeadDim];
  alignas(64) float scores[kMatrixQueries][kAttentionSplit];
  alignas(64) uint16_t weight_high[kMatrixQueries][kAttentionSplit], weight_low[kMatrixQueries][kAttentionSplit];
  alignas(64) float piece[kMatrixQueries * kMaxHeadDim], merged[kMatrixQueries * kMaxHeadDim];
  alignas(64) uint16_t edge[kLanes * kMaxHeadDim];
  size_t offset[kAttentionSplit / kLanes];  // of the sub-blocks of a piece
};

inline void find_sub_blocks(const AttentionTile& t, int start, int end, MatrixScratch& s) {
  const int subs = t.kv->block_size / kLanes;
  int block = start / t.kv->block_size, sub = start % t.kv->block_size / kLanes;
  for (int i = 0; start + i * kLanes < end; i++) {
    s.offset[i] = sub_block_offset(*t.kv, t.block_table[block], t.kv_head, sub);
    if (++sub == subs) sub = 0, block++;
  }
}

// scores[m][..] of all positions of one sub-block of the piece, or four.
template <int Subs> inline void matrix_scores(const AttentionTile& t, int sub, MatrixScratch& s) {
  const int head_dim = t.kv->head_dim;
  const uint16_t* keys[Subs];
  for (int i = 0; i < Subs; i++) keys[i] = static_cast<const uint16_t*>(t.kv->keys) + s.offset[sub + i];
  const auto multiply = [&](int d) {
    _tile_loadd(5, keys[0] + d * kLanes, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (Subs > 1) {
      _tile_loadd(5, keys[1] + d * kLanes, 64);
      _tile_dpbf16ps(1, 4, 5);
      _tile_loadd(5, keys[2] + d * kLanes, 64);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(5, keys[3] + d * kLanes, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < head_dim; d += 32) {
    _tile_loadd(4, &s.query_high[d], head_dim * 2);
    multiply(d);
    _tile_loadd(4, &s.query_low[d], head_dim * 2);
    multiply(d);
  }
  float* to = &s.scores[0][sub * kLanes];
  _tile_stored(0, to, sizeof s.scores[0]);
  if constexpr (Subs > 1) {
    _tile_stored(1, to + kLanes, sizeof s.scores[0]);
    _tile_stored(2, to + 2 * kLanes, sizeof s.scores[0]);
    _tile_stored(3, to + 3 * kLanes, sizeof s.scores[0]);
  }
}

// The largest of a query's scores in one piece; those of positions outside its range become minus infinity.
inline float largest_score(float* scores, Range range, int start, int count) {
  f32x16 largest = splat(kMinusInfinity);
  for (int i = 0; i < count; i += kLanes) {
    f32x16 score = load<f32x16>(scores + i);
    if (!covers(range, start + i)) {
      const i32x16 p = load<i32x16>(kLaneIds) + (start + i);
      score = select((p >= fill(range.low)) & (p < fill(range.high)), score, splat(kMinusInfinity));
      store(scores + i, score);
    }
    largest = max(score, largest);
  }
  return reduce_max(largest);
}

// Query m's scores as weights relative to the largest, split; returns their sum.
inline float weights(int m, float largest, int count, MatrixScratch& s) {
  const float* scores = s.scores[m];
  const f32x16 base = splat(largest == kMinusInfinity ? 0.0f : largest);  // all are minus infinity: they stay so
  f32x16 even = {}, odd = {};
  for (int i = 0; i < count; i += 2 * kLanes) {
    const f32x16 x = exp2_of_negative(load<f32x16>(scores + i) - base);
    const f32x16 y = i + kLanes < count ? exp2_of_negative(load<f32x16>(scores + i + kLanes) - base) : splat(0.0f);
    even += x;
    odd += y;
    store_split(x, y, &s.weight_high[m][i], &s.weight_low[m][i]);
  }
  return reduce_add(even + odd);
}

// The values of a sub-block; where no query's range reaches its end, a copy with zeros there: leftovers may be NaN, and what
// weighs nothing must be finite. (A value that is not finite fails its own request, wherever it enters.)
inline const uint16_t* values_until(const AttentionTile& t, int sub, int valid, MatrixScratch& s) {
  const int head_dim = t.kv->head_dim;
  const uint16_t* values = static_cast<const uint16_t*>(t.kv->values) + s.offset[sub];
  if (valid >= kLanes) return values;
  std::memset(s.edge, 0, sizeof(uint16_t) * kLanes * head_dim);
  for (int j = 0; j < valid; j++)
    for (int d = 0; d < head_dim; d++) {
      const size_t at = value_offset(head_dim, j, d);
      s.edge[at] = values[at];
    }
  return s.edge;
}

// piece[m][from ..] = sum of weight * value over the first `count` positions of the piece.
inline void matrix_values(const AttentionTile& t, int count, int from, MatrixScratch& s) {
  const int stride = sizeof s.weight_high[0], row_bytes = t.kv->head_dim * 4;  // of values (pairs of bf16) and of results
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int p = 0; p < count; p += kLanes) {
    const uint16_t* values = values_until(t, p / kLanes, count - p, s) + from * 2;
    const auto multiply = [&] {
      _tile_loadd(7, values, row_bytes);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(7, values + 32, row_bytes);
      _tile_dpbf16ps(1, 6, 7);
      _tile_loadd(7, values + 64, row_bytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, values + 96, row_bytes);
      _tile_dpbf16ps(3, 6, 7);
    };
    before_tile_loads();
    _tile_loadd(6, &s.weight_high[0][p], stride);
    multiply();
    _tile_loadd(6, &s.weight_low[0][p], stride);
    multiply();
  }
  _tile_stored(0, &s.piece[from], row_bytes);
  _tile_stored(1, &s.piece[from + 16], row_bytes);
  _tile_stored(2, &s.piece[from + 32], row_bytes);
  _tile_stored(3, &s.piece[from + 48], row_bytes);
}

inline void matrix_attention(const AttentionTile& t) {
  static thread_local MatrixScratch s;
  const int head_dim = t.kv->head_dim;
  const float scale = t.scale * 1.44269504088896341f;  // scores in powers of two
  use_attention_tiles(t.num_queries);
  Range range[kMatrixQueries], all = {t.queries[0].position, 0};
  Partial sum[kMatrixQueries];
  for (int m = 0; m < t.num_queries; m++) {
    range[m] = query_range(t, m);
    all = {range[m].low < all.low ? range[m].low : all.low, range[m].high > all.high ? range[m].high : all.high};
    sum[m] = {kMinusInfinity, 0.0f};
    for (int d = 0; d < head_dim; d += 2 * kLanes) {
      const float* q = t.queries[m].q + d;
      store_split(load<f32x16>(q) * scale, load<f32x16>(q + kLanes) * scale, &s.query_high[m * head_dim + d],
                  &s.query_low[m * head_dim + d]);
    }
  }
  std::memset(s.merged, 0, size_t(t.num_queries) * head_dim * sizeof(float));
  before_tile_loads();
  for (int split = all.low / kAttentionSplit * kAttentionSplit; split < all.high; split += kAttentionSplit) {
    const int end = split + kAttentionSplit < all.high ? split + kAttentionSplit : all.high;
    const int start = all.low > split ? all.low / kLanes * kLanes : split;
    const int count = (end - start + kLanes - 1) / kLanes * kLanes;
    find_sub_blocks(t, start, end, s);
    int sub = 0;
    for (; (sub + 4) * kLanes <= count; sub += 4) matrix_scores<4>(t, sub, s);
    for (; sub * kLanes < count; sub++) matrix_scores<1>(t, sub, s);
    Partial piece[kMatrixQueries];
    for (int m = 0; m < t.num_queries; m++) piece[m].largest = largest_score(s.scores[m], range[m], start, count);
    for (int m = 0; m < t.num_queries; m++) piece[m].total = weights(m, piece[m].largest, count, s);
    for (int from = 0; from < head_dim; from += kMatrixWidth) matrix_values(t, end - start, from, s);
    for (int m = 0; m < t.num_queries; m++) merge<exp2_of_negative>(sum[m], s.merged + m * head_dim, piece[m], s.piece + m * head_dim, head_dim);
  }
  for (int m = 0; m < t.num_queries; m++) finish_query(t, m, s.merged + m * head_dim, sum[m]);
}

}  // namespace headway::HEADWAY_ISA
