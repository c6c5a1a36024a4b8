// Paged attention for prefill, decode and mixed steps: one code path, so a row's result never depends on how it came.
//
// A query at position p attends to positions [low, p]. They are cut at absolute multiples of kAttentionSplit; each piece gives
// a partial softmax, and the pieces are merged in ascending order. Within a piece positions are added in ascending order.
#pragma once
#include "rowwise.hpp"

namespace headway::HEADWAY_ISA {

constexpr float kMinusInfinity = -__builtin_inff();

// Where one 16-token sub-block of one kv head lies; see KVLayer for what is in it.
inline size_t sub_block_offset(const KVLayer& kv, int block, int head, int sub) {
  const int subs = kv.block_size / kLanes;
  return size_t(block) * kv.block_stride + (size_t(head) * subs + sub) * 2 * size_t(kv.head_dim) * kLanes;
}

inline size_t position_offset(const AttentionTile& t, int position) {
  const int block = t.block_table[position / t.kv->block_size];
  return sub_block_offset(*t.kv, block, t.kv_head, position % t.kv->block_size / kLanes);
}

// Within a sub-block: dimension d of token j.
inline size_t key_offset(int j, int d) { return size_t(d / 2) * 2 * kLanes + j * 2 + d % 2; }
inline size_t value_offset(int head_dim, int j, int d) { return size_t(j / 2) * 2 * head_dim + d * 2 + j % 2; }

// Two numbers that lie side by side in each lane: the pair's first halves and second halves.
struct Pair {
  f32x16 first, second;
};
template <bool Bf16> inline Pair load_pairs(const void* base, size_t at, int count = kLanes) {
  if constexpr (Bf16) {
    const float* from = reinterpret_cast<const float*>(static_cast<const uint16_t*>(base) + at);
    const u32x16 both = bits<u32x16>(load_part(from, count));
    return {bits<f32x16>(both << 16), bits<f32x16>(both & 0xffff0000u)};
  }
  float first[kLanes] = {}, second[kLanes] = {};
  const float* from = static_cast<const float*>(base) + at;
  for (int i = 0; i < count; i++) first[i] = from[2 * i], second[i] = from[2 * i + 1];
  return {load<f32x16>(first), load<f32x16>(second)};
}

inline void round_bf16_row(const float* x, int k, uint16_t* out) {
  for_lanes(k, [&](int i, int count) {
    const u16x16 rounded = to_bf16(load_part(x + i, count));
    std::memcpy(out + i, &rounded, size_t(count) * sizeof *out);
  });
}

// Writes x [head_dim] at offset_of(d) of the sub-block that starts at `at`.
template <class T, class Offset> inline void scatter(const T* x, int head_dim, void* base, size_t at, Offset offset_of) {
  for (int d = 0; d < head_dim; d++) static_cast<T*>(base)[at + offset_of(d)] = x[d];
}

// Two dimensions of a token lie side by side.
inline void scatter_key_pairs(const uint16_t* x, int head_dim, uint16_t* to) {
  for (int d = 0; d < head_dim; d += 2) std::memcpy(to + size_t(d) * kLanes, x + d, 2 * sizeof *x);
}

inline void store_key(const KVLayer& kv, int block, int offset, int head, const float* k) {
  const int j = offset % kLanes;
  const size_t at = sub_block_offset(kv, block, head, offset / kLanes);
  if (!kv.is_bf16) return scatter(k, kv.head_dim, kv.keys, at, [&](int d) { return key_offset(j, d); });
  uint16_t rounded[kMaxHeadDim];
  round_bf16_row(k, kv.head_dim, rounded);
  scatter_key_pairs(rounded, kv.head_dim, static_cast<uint16_t*>(kv.keys) + at + key_offset(j, 0));
}

// A token's values are every other number of a run: other workers may be writing those between.
inline void store_value(const KVLayer& kv, int block, int offset, int head, const float* v) {
  const int j = offset % kLanes;
  const size_t at = sub_block_offset(kv, block, head, offset / kLanes);
  const auto offset_of = [&](int d) { return value_offset(kv.head_dim, j, d); };
  if (!kv.is_bf16) return scatter(v, kv.head_dim, kv.values, at, offset_of);
  uint16_t rounded[kMaxHeadDim];
  round_bf16_row(v, kv.head_dim, rounded);
  int d = 0;
#if defined(__AVX512BW__)
  uint16_t* run = static_cast<uint16_t*>(kv.values) + at + offset_of(0) - j % 2;
  for (; d + kLanes <= kv.head_dim; d += kLanes) {
    const u32x16 words = widen(load<u16x16>(rounded + d)) << 16 * (j % 2);
    _mm512_mask_storeu_epi16(run + 2 * d, j % 2 ? 0xaaaaaaaa : 0x55555555, __m512i(words.part[0]));
  }
#endif
  for (; d < kv.head_dim; d++) static_cast<uint16_t*>(kv.values)[at + offset_of(d)] = rounded[d];
}

// One query's running softmax: largest score, sum of exponentials, weighted values [d].
struct Partial {
  float largest, total;
};

struct Scratch {
  alignas(64) float scores[kTile][kAttentionSplit];
  alignas(64) float piece[kTile][kMaxHeadDim];
  alignas(64) float merged[kTile][kMaxHeadDim];
};

struct Range {
  int low, high;  // positions low .. high - 1
};

inline Range query_range(const AttentionTile& t, int m) {
  const int p = t.queries[m].position;
  return {t.window && p + 1 > t.window ? p + 1 - t.window : 0, p + 1};
}

constexpr int32_t kLaneIds[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// scores[m][p - start] = scale * q[m] . k[p], and minus infinity outside the query's own range.
template <int M, bool Bf16>
inline void score_sub_block(const AttentionTile& t, int position, int start, const Range* range, Scratch& s) {
  const size_t at = position_offset(t, position);
  f32x16 acc[M] = {};
  for (int d = 0; d < t.kv->head_dim; d += 2) {
    const Pair k = load_pairs<Bf16>(t.kv->keys, at + size_t(d) * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) acc[m] = fma(k.first, splat(t.queries[m].q[d]), acc[m]);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) acc[m] = fma(k.second, splat(t.queries[m].q[d + 1]), acc[m]);
  }
  for (int m = 0; m < M; m++) {
    const i32x16 p = load<i32x16>(kLaneIds) + position;
    const i32x16 inside = (p >= fill(range[m].low)) & (p < fill(range[m].high));
    store(&s.scores[m][position - start], select(inside, acc[m] * t.scale, splat(kMinusInfinity)));
  }
}

// Turns scores into exponentials relative to the largest and returns both; a row with no position here gives (-inf, 0).
inline Partial softmax_piece(float* scores, int count) {
  f32x16 largest = splat(kMinusInfinity), total = {};
  for (int i = 0; i < count; i += kLanes) largest = max(load<f32x16>(scores + i), largest);
  const float m = reduce_max(largest);
  if (m == kMinusInfinity) {
    std::memset(scores, 0, size_t(count) * sizeof(float));
    return {m, 0.0f};
  }
  for (int i = 0; i < count; i += kLanes) {
    const f32x16 e = exp(load<f32x16>(scores + i) - m);
    total += e;
    store(scores + i, e);
  }
  return {m, reduce_add(total)};
}

// piece[m] += sum over the sub-block's positions of p * v, for every query whose range covers it whole.
template <int M, bool Bf16>
inline void weigh_values(const AttentionTile& t, int position, int start, int first, int last, const int* who, Scratch& s) {
  const int head_dim = t.kv->head_dim;
  const size_t at = position_offset(t, position);
  for_lanes(head_dim, [&](int d, int count) {
    f32x16 acc[M];
    for (int m = 0; m < M; m++) acc[m] = load_part(&s.piece[who[m]][d], count);
    const auto add = [&](const f32x16& v, int j) {
      if (j < first || j >= last) return;
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) acc[m] = fma(v, splat(s.scores[who[m]][position - start + j]), acc[m]);
    };
    for (int j = first / 2 * 2; j < last; j += 2) {
      const Pair v = load_pairs<Bf16>(t.kv->values, at + value_offset(head_dim, j, d), count);
      add(v.first, j);
      add(v.second, j + 1);
    }
    for (int m = 0; m < M; m++) store_part(&s.piece[who[m]][d], acc[m], count);
  });
}

inline bool covers(Range r, int position) { return r.low <= position && position + kLanes <= r.high; }

// Positions outside a query's range are never multiplied, not even by zero: another request's leftovers may be NaN.
template <int M, bool Bf16>
inline void weigh_sub_block(const AttentionTile& t, int position, int start, const Range* range, Scratch& s) {
  static constexpr int kAll[] = {0, 1, 2, 3, 4, 5, 6, 7};
  bool all = true;
  for (int m = 0; m < M; m++) all = all && covers(range[m], position);
  if (all) return weigh_values<M, Bf16>(t, position, start, 0, kLanes, kAll, s);
  for (int m = 0; m < M; m++) {
    const int first = range[m].low > position ? range[m].low - position : 0;
    const int last = range[m].high < position + kLanes ? range[m].high - position : kLanes;
    if (first < last) weigh_values<1, Bf16>(t, position, start, first, last, &kAll[m], s);
  }
}

inline void merge(Partial& into, float* merged, Partial piece, const float* values, int head_dim) {
  if (piece.total == 0.0f) return;
  const float largest = into.largest > piece.largest ? into.largest : piece.largest;
  const float old_share = into.total == 0.0f ? 0.0f : exp(splat(into.largest - largest))[0];
  const float new_share = exp(splat(piece.largest - largest))[0];
  for_lanes(head_dim, [&](int d, int count) {
    const f32x16 scaled = load_part(merged + d, count) * old_share;
    store_part(merged + d, fma(load_part(values + d, count), splat(new_share), scaled), count);
  });
  into = {largest, into.total * old_share + piece.total * new_share};
}

inline void finish_query(const AttentionTile& t, int m, const float* merged, Partial sum) {
  const f32x16 inverse = splat(1.0f / sum.total);
  for_lanes(t.kv->head_dim, [&](int d, int count) {
    store_part(t.queries[m].out + d, load_part(merged + d, count) * inverse, count);
  });
}

template <int M, bool Bf16>
void attention_tile(const AttentionTile& t) {
  static thread_local Scratch s;
  const int head_dim = t.kv->head_dim;
  Range range[M];
  Partial sum[M];
  int low = t.queries[0].position, high = 0;
  for (int m = 0; m < M; m++) {
    range[m] = query_range(t, m);
    low = range[m].low < low ? range[m].low : low;
    high = range[m].high > high ? range[m].high : high;
    sum[m] = {kMinusInfinity, 0.0f};
    std::memset(s.merged[m], 0, size_t(head_dim) * sizeof(float));
  }
  for (int split = low / kAttentionSplit * kAttentionSplit; split < high; split += kAttentionSplit) {
    const int end = split + kAttentionSplit < high ? split + kAttentionSplit : high;
    const int start = low > split ? low / kLanes * kLanes : split;
    const int count = (end - start + kLanes - 1) / kLanes * kLanes;
    for (int p = start; p < end; p += kLanes) score_sub_block<M, Bf16>(t, p, start, range, s);
    Partial piece[M];
    for (int m = 0; m < M; m++) {
      piece[m] = softmax_piece(s.scores[m], count);
      std::memset(s.piece[m], 0, size_t(head_dim) * sizeof(float));
    }
    for (int p = start; p < end; p += kLanes) weigh_sub_block<M, Bf16>(t, p, start, range, s);
    for (int m = 0; m < M; m++) merge(sum[m], s.merged[m], piece[m], s.piece[m], head_dim);
  }
  for (int m = 0; m < M; m++) finish_query(t, m, s.merged[m], sum[m]);
}

inline void vector_attention(const AttentionTile& t) {
  with_size<kTile>(t.num_queries, [&]<int M>() {
    if (t.kv->is_bf16) attention_tile<M, true>(t);
    else attention_tile<M, false>(t);
  });
}

}  // namespace headway::HEADWAY_ISA
