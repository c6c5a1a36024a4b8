// Products of bf16 queries and keys, and of weights and values, in the matrix unit's order (Intel's description of TDPBF16PS):
// 32 inputs at a time, even and odd ones each added up with fused multiply-adds, then both, then to what there is. Denormal
// numbers are zeros. A few queries take the same steps with vector instructions, which are sooner at work: equal bits.
#pragma once
#include "attention.hpp"
#include "matrix_unit.hpp"

namespace headway::HEADWAY_ISA {

constexpr int kMatrixQueries = 16, kVectorQueries = 4;
constexpr int kSubsAhead = 4;    // sub-blocks that vector instructions take at once, while they fetch as many
constexpr int kMatrixWidth = 64;  // columns of the output that are collected together, and what head_dim is a multiple of

inline bool fits_matrix_attention(const KVLayer& kv) { return kv.is_bf16 && kv.head_dim % kMatrixWidth == 0; }

// Vector instructions treat denormal numbers as the matrix unit does, while this lives.
struct FlushDenormals {
  const unsigned before = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(before | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before); }
};

// Rows of `queries`, `piece` and `merged` lie head_dim apart, so that they share the nearest cache well.
struct MatrixScratch {
  alignas(64) uint16_t queries[kMatrixQueries * kMaxHeadDim];
  alignas(64) float wide_queries[kVectorQueries * kMaxHeadDim];  // the same numbers
  alignas(64) float scores[kMatrixQueries][kAttentionSplit];     // with vector instructions, then the weights
  alignas(64) uint16_t weights[kMatrixQueries][kAttentionSplit];
  alignas(64) float piece[kMatrixQueries * kMaxHeadDim], merged[kMatrixQueries * kMaxHeadDim];
  f32x16 total[kMatrixQueries];  // of the weights
  alignas(64) uint16_t edge[kLanes * kMaxHeadDim];
  size_t offset[kAttentionSplit / kLanes + kSubsAhead];  // of the sub-blocks of a piece, and some more to be fetched
};

inline void find_sub_blocks(const AttentionTile& t, int start, int end, MatrixScratch& s) {
  const int subs = t.kv->block_size / kLanes;
  int block = start / t.kv->block_size, sub = start % t.kv->block_size / kLanes;
  int i = 0;
  for (; start + i * kLanes < end; i++) {
    s.offset[i] = sub_block_offset(*t.kv, t.block_table[block], t.kv_head, sub);
    if (++sub == subs) sub = 0, block++;
  }
  for (int ahead = 0; ahead < kSubsAhead; ahead++) s.offset[i + ahead] = s.offset[i - 1];
}

inline const uint16_t* keys_of(const AttentionTile& t, int sub, const MatrixScratch& s) {
  return static_cast<const uint16_t*>(t.kv->keys) + s.offset[sub];
}

// The values of a sub-block; where no query's range reaches its end, a copy with zeros there: leftovers may be NaN, and what
// weighs nothing must be finite. (A value that is not finite fails its own request, wherever it enters.)
inline const uint16_t* values_until(const AttentionTile& t, int sub, int valid, MatrixScratch& s) {
  const int head_dim = t.kv->head_dim;
  const uint16_t* values = static_cast<const uint16_t*>(t.kv->values) + s.offset[sub];
  if (valid >= kLanes) return values;
  const size_t row = size_t(head_dim) * 2;  // two positions
  std::memcpy(s.edge, values, (valid + 1) / 2 * row * sizeof *values);
  std::memset(s.edge + (valid + 1) / 2 * row, 0, (kLanes - valid) / 2 * row * sizeof *values);
  if (valid % 2)
    for (size_t d = 1; d < row; d += 2) s.edge[valid / 2 * row + d] = 0;
  return s.edge;
}

inline __m512i bf16_pair(const f32x16& x, const f32x16& y) { return __m512i(_mm512_cvtne2ps_pbh(y.part[0], x.part[0])); }

inline void round_queries(const AttentionTile& t, MatrixScratch& s) {
  const float scale = t.scale * 1.44269504088896341f;  // scores in powers of two
  for (int m = 0; m < t.num_queries; m++)
    for (int d = 0; d < t.kv->head_dim; d += 2 * kLanes) {
      const float* q = t.queries[m].q + d;
      _mm512_storeu_si512(&s.queries[m * t.kv->head_dim + d], bf16_pair(load<f32x16>(q) * scale, load<f32x16>(q + kLanes) * scale));
    }
}

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

struct MatrixProducts {
  static void begin(const AttentionTile& t, MatrixScratch& s) {
    static constexpr TileShapes few = attention_shapes(8), many = attention_shapes(16);
    use_tiles(t.num_queries > 8 ? many : few);
    round_queries(t, s);
    before_tile_loads();
  }

  static void scores(const AttentionTile& t, int subs, MatrixScratch& s) {
    int sub = 0;
    for (; sub + 4 <= subs; sub += 4) some_scores<4>(t, sub, s);
    for (; sub < subs; sub++) some_scores<1>(t, sub, s);
  }

  // scores[m][..] of all positions of one sub-block of the piece, or four.
  template <int Subs> static void some_scores(const AttentionTile& t, int sub, MatrixScratch& s) {
    const int head_dim = t.kv->head_dim;
    const uint16_t* keys[Subs];
    for (int i = 0; i < Subs; i++) keys[i] = keys_of(t, sub + i, s);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < head_dim; d += 32) {
      _tile_loadd(4, &s.queries[d], head_dim * 2);
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
    }
    float* to = &s.scores[0][sub * kLanes];
    _tile_stored(0, to, sizeof s.scores[0]);
    if constexpr (Subs > 1) {
      _tile_stored(1, to + kLanes, sizeof s.scores[0]);
      _tile_stored(2, to + 2 * kLanes, sizeof s.scores[0]);
      _tile_stored(3, to + 3 * kLanes, sizeof s.scores[0]);
    }
  }

  static void store_weights(const f32x16& x, const f32x16& y, int m, int at, MatrixScratch& s) {
    _mm512_storeu_si512(&s.weights[m][at], bf16_pair(x, y));
  }

  static void begin_values(const AttentionTile&, int, float*) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  static void add_values(const AttentionTile& t, int from, int end, int column, float*, MatrixScratch& s) {
    const int row_bytes = t.kv->head_dim * 4;
    for (int p = from; p < end; p += kLanes) {
      const uint16_t* values = values_until(t, p / kLanes, end - p, s) + column * 2;
      before_tile_loads();
      _tile_loadd(6, &s.weights[0][p], sizeof s.weights[0]);
      _tile_loadd(7, values, row_bytes);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(7, values + 32, row_bytes);
      _tile_dpbf16ps(1, 6, 7);
      _tile_loadd(7, values + 64, row_bytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, values + 96, row_bytes);
      _tile_dpbf16ps(3, 6, 7);
    }
  }

  static void end_values(const AttentionTile& t, int column, float* to) {
    const int row_bytes = t.kv->head_dim * 4;
    _tile_stored(0, to + column, row_bytes);
    _tile_stored(1, to + column + 16, row_bytes);
    _tile_stored(2, to + column + 32, row_bytes);
    _tile_stored(3, to + column + 48, row_bytes);
  }
};

// M queries. Enough sums have to be under way at once to hide how long each takes.
template <int M> struct VectorProducts {
  static constexpr int kSubs = M == 1 ? 4 : M < 4 ? 2 : 1;

  static void begin(const AttentionTile& t, MatrixScratch& s) {
    round_queries(t, s);
    for (int i = 0; i < M * t.kv->head_dim; i += kLanes) store(s.wide_queries + i, from_bf16(load<u16x16>(s.queries + i)));
  }

  static void scores(const AttentionTile& t, int subs, MatrixScratch& s) {
    int sub = 0;
    for (; sub + kSubs <= subs; sub += kSubs) some_scores<kSubs>(t, sub, s);
    for (; sub < subs; sub++) some_scores<1>(t, sub, s);
  }

  template <int Subs> static void some_scores(const AttentionTile& t, int sub, MatrixScratch& s) {
    const int head_dim = t.kv->head_dim;
    f32x16 sum[Subs][M] = {};
    for (int chunk = 0; chunk < head_dim; chunk += 32) {
      f32x16 even[Subs][M] = {}, odd[Subs][M] = {};
      for (int d = chunk; d < chunk + 32; d += 2)
#pragma GCC unroll 4
        for (int i = 0; i < Subs; i++) {
          const uint16_t* from = keys_of(t, sub + i, s) + size_t(d) * kLanes;
          __builtin_prefetch(from + size_t(head_dim) * kLanes);  // values
          __builtin_prefetch(keys_of(t, sub + i + Subs, s) + size_t(d) * kLanes);
          const Pair keys = load_pairs<true>(from, 0);
#pragma GCC unroll 4
          for (int m = 0; m < M; m++) {
            even[i][m] = fma(keys.first, splat(s.wide_queries[m * head_dim + d]), even[i][m]);
            odd[i][m] = fma(keys.second, splat(s.wide_queries[m * head_dim + d + 1]), odd[i][m]);
          }
        }
      for (int i = 0; i < Subs; i++)
        for (int m = 0; m < M; m++) sum[i][m] += even[i][m] + odd[i][m];
    }
    for (int i = 0; i < Subs; i++)
      for (int m = 0; m < M; m++) store(&s.scores[m][(sub + i) * kLanes], sum[i][m]);
  }

  static void store_weights(const f32x16& x, const f32x16& y, int m, int at, MatrixScratch& s) {
    const __m512i both = bf16_pair(x, y);
    store(&s.scores[m][at], from_bf16(bits<u16x16>(_mm512_castsi512_si256(both))));
    store(&s.scores[m][at + kLanes], from_bf16(bits<u16x16>(_mm512_extracti64x4_epi64(both, 1))));
  }

  static void begin_values(const AttentionTile& t, int column, float* to) {
    for (int m = 0; m < M; m++) std::memset(to + m * t.kv->head_dim + column, 0, kMatrixWidth * sizeof *to);
  }

  static void add_values(const AttentionTile& t, int from, int end, int column, float* to, MatrixScratch& s) {
    const int head_dim = t.kv->head_dim;
    for (int p = from; p < end; p += kLanes) {
      const uint16_t* values = values_until(t, p / kLanes, end - p, s);
      for (int d = column; d < column + kMatrixWidth; d += 2 * kLanes) {
        f32x16 even[2][M] = {}, odd[2][M] = {};
        for (int j = 0; j < kLanes; j += 2)
#pragma GCC unroll 2
          for (int i = 0; i < 2; i++) {
            const Pair pair = load_pairs<true>(values, value_offset(head_dim, j, d + i * kLanes));
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
              even[i][m] = fma(pair.first, splat(s.scores[m][p + j]), even[i][m]);
              odd[i][m] = fma(pair.second, splat(s.scores[m][p + j + 1]), odd[i][m]);
            }
          }
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
          for (int m = 0; m < M; m++) {
            float* sum = to + m * head_dim + d + i * kLanes;
            store(sum, load<f32x16>(sum) + (even[i][m] + odd[i][m]));
          }
      }
    }
  }

  static void end_values(const AttentionTile&, int, float*) {}
};

}  // namespace headway::HEADWAY_ISA
