// Attention for bf16 caches on processors with a matrix unit: the pieces of attention.hpp in the same order, with queries and
// weights rounded to bf16 like the keys and values, and the products of matrix_products.hpp.
#pragma once
#include "matrix_products.hpp"

namespace headway::HEADWAY_ISA {

constexpr int kWeighedSubs = 4;  // sub-blocks whose weights are made before their values are added: the unit is not left idle long

// 2^x for x <= 0, to about 3e-6: a polynomial on the distance to the nearest whole number (least squares of the relative error
// at the Chebyshev nodes of [-0.5, 0.5], exact at 0).
inline f32x16 exp2_of_negative(const f32x16& v) {
  const __m512 x = v.part[0], r = _mm512_reduce_ps(x, 0);
  __m512 p = _mm512_set1_ps(9.60040e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.591689e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4023718e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9312199e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  f32x16 y;
  y.part[0] = _mm512_scalef_ps(p, _mm512_sub_ps(x, r));
  return y;
}

// A tile's running softmax: of each query the largest score and the sum of exponentials.
struct Partials {
  alignas(64) float largest[kMatrixQueries], total[kMatrixQueries];
};

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

// Query m's scores at positions from .. to - 1 of the piece as weights relative to the largest; adds them to its total.
template <class Products> inline void weigh(int m, float largest, int from, int to, MatrixScratch& s) {
  const f32x16 base = splat(largest == kMinusInfinity ? 0.0f : largest);  // all are minus infinity: they stay so
  f32x16 total = from == 0 ? splat(0.0f) : s.total[m];
  for (int i = from; i < to; i += 2 * kLanes) {
    const f32x16 x = exp2_of_negative(load<f32x16>(&s.scores[m][i]) - base);
    const f32x16 y = i + kLanes < to ? exp2_of_negative(load<f32x16>(&s.scores[m][i + kLanes]) - base) : splat(0.0f);
    total = (total + x) + y;
    Products::store_weights(x, y, m, i, s);
  }
  s.total[m] = total;
}

// to[m] = sum of weight * value over the piece, of `valid` positions, and their totals.
template <class Products> inline void weigh_piece(const AttentionTile& t, int valid, Partials& piece, float* to, MatrixScratch& s) {
  for (int column = 0; column < t.kv->head_dim; column += kMatrixWidth) {
    Products::begin_values(t, column, to);
    for (int from = 0; from < valid; from += kWeighedSubs * kLanes) {
      const int end = from + kWeighedSubs * kLanes < valid ? from + kWeighedSubs * kLanes : valid;
      if (column == 0)
        for (int m = 0; m < t.num_queries; m++) weigh<Products>(m, piece.largest[m], from, (end + kLanes - 1) & -kLanes, s);
      Products::add_values(t, from, end, column, to, s);
    }
    Products::end_values(t, column, to);
  }
  for (int m = 0; m < t.num_queries; m++) piece.total[m] = reduce_add(s.total[m]);
}

// Adds a piece to what is merged so far. A query that has no position on one side takes nothing from it.
inline void merge_piece(const AttentionTile& t, Partials& sum, const Partials& piece, MatrixScratch& s) {
  const f32x16 old_largest = load<f32x16>(sum.largest), old_total = load<f32x16>(sum.total);
  const f32x16 new_largest = load<f32x16>(piece.largest), new_total = load<f32x16>(piece.total);
  const f32x16 largest = max(old_largest, new_largest), nothing = splat(0.0f);
  const f32x16 old_share = select(old_total == 0.0f, nothing, exp2_of_negative(old_largest - largest));
  const f32x16 new_share = select(new_total == 0.0f, nothing, exp2_of_negative(new_largest - largest));
  for (int m = 0; m < t.num_queries; m++) {
    float *merged = s.merged + m * t.kv->head_dim, *values = s.piece + m * t.kv->head_dim;
    const f32x16 old_part = splat(old_share[m]), new_part = splat(new_share[m]);
    for (int d = 0; d < t.kv->head_dim; d += kLanes)
      store(merged + d, fma(load<f32x16>(values + d), new_part, load<f32x16>(merged + d) * old_part));
  }
  store(sum.largest, largest);
  store(sum.total, old_total * old_share + new_total * new_share);
}

template <class Products> inline void matrix_tile(const AttentionTile& t) {
  static thread_local MatrixScratch s;
  const int head_dim = t.kv->head_dim;
  Products::begin(t, s);
  Range range[kMatrixQueries], all = {t.queries[0].position, 0};
  for (int m = 0; m < t.num_queries; m++) {
    range[m] = query_range(t, m);
    all = {range[m].low < all.low ? range[m].low : all.low, range[m].high > all.high ? range[m].high : all.high};
  }
  Partials sum, later;
  bool is_first = true;
  for (int split = all.low / kAttentionSplit * kAttentionSplit; split < all.high; split += kAttentionSplit, is_first = false) {
    const int end = split + kAttentionSplit < all.high ? split + kAttentionSplit : all.high;
    const int start = all.low > split ? all.low / kLanes * kLanes : split;
    const int count = (end - start + kLanes - 1) / kLanes * kLanes;
    find_sub_blocks(t, start, end, s);
    Products::scores(t, count / kLanes, s);
    Partials& piece = is_first ? sum : later;  // the first as merging it with nothing would give it
    for (int m = 0; m < t.num_queries; m++) piece.largest[m] = largest_score(s.scores[m], range[m], start, count);
    weigh_piece<Products>(t, end - start, piece, is_first ? s.merged : s.piece, s);
    if (!is_first) merge_piece(t, sum, later, s);
  }
  for (int m = 0; m < t.num_queries; m++) finish_query(t, m, s.merged + m * head_dim, {sum.largest[m], sum.total[m]});
}

inline void matrix_attention(const AttentionTile& t) {
  const FlushDenormals flushed;
  if (t.num_queries > kVectorQueries) return matrix_tile<MatrixProducts>(t);
  with_size<kVectorQueries>(t.num_queries, [&]<int M>() { matrix_tile<VectorProducts<M>>(t); });
}

}  // namespace headway::HEADWAY_ISA
