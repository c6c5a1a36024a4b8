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

struct SplitBf16 {
  __m256i high, low;
};
inline SplitBf16 split_bf16(const f32x16& x) {  // x = high + low, to 16 bits
  const u32x16 high = bits<u32x16>(x) & 0xffff0000u;
  const f32x16 rest = x - bits<f32x16>(high);
  return {_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits<__m512i>(high), 16)),
          _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits<__m512i>(rest), 16))};
}

struct MatrixScratch {
  alignas(64) uint16_t query_high[kMatrixQueries][kMaxHeadDim], query_low[kMatrixQueries][kMaxHeadDim];
  alignas(64) float scores[kMatrixQueries][kAttentionSplit];
  alignas(64) uint16_t weight_high[kMatrixQueries][kAttentionSplit], weight_low[kMatrixQueries][kAttentionSplit];
  alignas(64) float piece[kMatrixQueries][kMaxHeadDim], merged[kMatrixQueries][kMaxHeadDim];
  alignas(64) uint16_t edge[kLanes * kMaxHeadDim];
};

inline void store_split(const f32x16& x, uint16_t* high, uint16_t* low) {
  const SplitBf16 split = split_bf16(x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(high), split.high);
  _mm256_store_si256(reinterpret_cast<__m256i*>(low), split.low);
}

// scores[m][p - start] of all positions of up to four sub-blocks, unscaled.
template <int Subs> inline void matrix_scores(const AttentionTile& t, int position, int start, MatrixScratch& s) {
  const int head_dim = t.kv->head_dim;
  const uint16_t* keys[Subs];
  for (int i = 0; i < Subs; i++) keys[i] = static_cast<const uint16_t*>(t.kv->keys) + position_offset(t, position + i * kLanes);
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
    _tile_loadd(4, &s.query_high[0][d], sizeof s.query_high[0]);
    multiply(d);
    _tile_loadd(4, &s.query_low[0][d], sizeof s.query_low[0]);
    multiply(d);
  }
  float* to = &s.scores[0][position - start];
  _tile_stored(0, to, sizeof s.scores[0]);
  if constexpr (Subs > 1) {
    _tile_stored(1, to + kLanes, sizeof s.scores[0]);
    _tile_stored(2, to + 2 * kLanes, sizeof s.scores[0]);
    _tile_stored(3, to + 3 * kLanes, sizeof s.scores[0]);
  }
}

// A query's scores of one piece become weights; positions outside its range weigh nothing.
inline Partial weigh_piece(const AttentionTile& t, int m, Range range, int start, int count, MatrixScratch& s) {
  float* scores = s.scores[m];
  for (int i = 0; i < count; i += kLanes) {
    const f32x16 scaled = load<f32x16>(scores + i) * t.scale;
    const i32x16 p = load<i32x16>(kLaneIds) + (start + i);
    const i32x16 inside = (p >= fill(range.low)) & (p < fill(range.high));
    store(scores + i, select(inside, scaled, splat(kMinusInfinity)));
  }
  const Partial piece = softmax_piece(scores, count);
  for (int i = 0; i < count; i += kLanes) store_split(load<f32x16>(scores + i), &s.weight_high[m][i], &s.weight_low[m][i]);
  return piece;
}

// The values of a sub-block; where no query's range reaches its end, a copy with zeros there: leftovers may be NaN, and what
// weighs nothing must be finite. (A value that is not finite fails its own request, wherever it enters.)
inline const uint16_t* values_until(const AttentionTile& t, int position, int high, MatrixScratch& s) {
  const int head_dim = t.kv->head_dim, valid = high - position;
  const uint16_t* values = static_cast<const uint16_t*>(t.kv->values) + position_offset(t, position);
  if (valid >= kLanes) return values;
  std::memset(s.edge, 0, sizeof(uint16_t) * kLanes * head_dim);
  for (int j = 0; j < valid; j++)
    for (int d = 0; d < head_dim; d++) {
      const size_t at = value_offset(head_dim, j, d);
      s.edge[at] = values[at];
    }
  return s.edge;
}

// piece[m][from ..] = sum over the positions of [start, end) of weight * value.
inline void matrix_values(const AttentionTile& t, int start, int end, int high, int from, MatrixScratch& s) {
  const int stride = sizeof s.weight_high[0];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int p = start; p < end; p += kLanes) {
    const uint16_t* values = values_until(t, p, high, s) + from * 2;
    const int row_bytes = t.kv->head_dim * 4;
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
    _tile_loadd(6, &s.weight_high[0][p - start], stride);
    multiply();
    _tile_loadd(6, &s.weight_low[0][p - start], stride);
    multiply();
  }
  _tile_stored(0, &s.piece[0][from], sizeof s.piece[0]);
  _tile_stored(1, &s.piece[0][from + 16], sizeof s.piece[0]);
  _tile_stored(2, &s.piece[0][from + 32], sizeof s.piece[0]);
  _tile_stored(3, &s.piece[0][from + 48], sizeof s.piece[0]);
}

inline void matrix_attention(const AttentionTile& t) {
  static thread_local MatrixScratch s;
  const int head_dim = t.kv->head_dim;
  use_attention_tiles(t.num_queries);
  Range range[kMatrixQueries], all = {t.queries[0].position, 0};
  Partial sum[kMatrixQueries];
  for (int m = 0; m < t.num_queries; m++) {
    range[m] = query_range(t, m);
    all = {range[m].low < all.low ? range[m].low : all.low, range[m].high > all.high ? range[m].high : all.high};
    sum[m] = {kMinusInfinity, 0.0f};
    std::memset(s.merged[m], 0, size_t(head_dim) * sizeof(float));
    for (int d = 0; d < head_dim; d += kLanes)
      store_split(load<f32x16>(t.queries[m].q + d), &s.query_high[m][d], &s.query_low[m][d]);
  }
  before_tile_loads();
  for (int split = all.low / kAttentionSplit * kAttentionSplit; split < all.high; split += kAttentionSplit) {
    const int end = split + kAttentionSplit < all.high ? split + kAttentionSplit : all.high;
    const int start = all.low > split ? all.low / kLanes * kLanes : split;
    const int count = (end - start + kLanes - 1) / kLanes * kLanes;
    int p = start;
    for (; p + 4 * kLanes <= start + count; p += 4 * kLanes) matrix_scores<4>(t, p, start, s);
    for (; p < end; p += kLanes) matrix_scores<1>(t, p, start, s);
    Partial piece[kMatrixQueries];
    for (int m = 0; m < t.num_queries; m++) piece[m] = weigh_piece(t, m, range[m], start, count, s);
    for (int from = 0; from < head_dim; from += kMatrixWidth) matrix_values(t, start, end, all.high, from, s);
    for (int m = 0; m < t.num_queries; m++) merge(sum[m], s.merged[m], piece[m], s.piece[m], head_dim);
  }
  for (int m = 0; m < t.num_queries; m++) finish_query(t, m, s.merged[m], sum[m]);
}

}  // namespace headway::HEADWAY_ISA
