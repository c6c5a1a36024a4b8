// Linear layers in fixed point, for processors with a matrix unit (Intel AMX).
//
//   W[n, k] = unit[n, p] * (multiplier[n, g] * q[n, k] + offset[n, g])    the bracket is an integer of 16 bits
//   x[m, k] = scale[m, p] * (128 * high[m, k] + low[m, k])                14 bits; high and low in -64 .. 64
//   y[m, n] = sum over panels p, ascending, of unit * scale * (128 * H + L)
//
// H = sum of W's integer times high over the inputs k of a panel, and L with low, are exact in 32 bits, so however they come
// about the bits are equal: a few rows take them from the 4-bit weights with vector instructions, more rows from the matrix
// unit, which multiplies the two bytes of each weight with the two of each input. Beside groups of int8 activations this
// costs nothing at a group's end, and its rounding is a tenth of theirs.
#pragma once
#include "matrix_unit.hpp"
#include "simd.hpp"
#include "types.hpp"

namespace headway::HEADWAY_ISA {

// The matrix unit takes 16 rows as quickly as one, and reads more: up to so many rows, vector instructions are quicker, and take
// them in parts of up to kFewTile.
constexpr int kFewRows = 12, kFewTile = 4;

inline __m512i broadcast32(const void* p) { return _mm512_set1_epi32(load<int32_t>(p)); }

// Two groups' multipliers and offsets, as pairs of 16 bits in each output's lane.
struct GroupPair {
  __m512i multiplier, offset;
};
inline GroupPair load_pair(const PackedMatrix& w, int block, int pair) {
  const size_t at = (size_t(block) * (w.k / 64) + pair) * kLanes;
  const __m512i multiplier = _mm512_load_si512(reinterpret_cast<const int32_t*>(w.fixed.multiplier) + at);
  if (w.fixed.offset) return {multiplier, _mm512_load_si512(reinterpret_cast<const int32_t*>(w.fixed.offset) + at)};
  return {multiplier, _mm512_mullo_epi16(multiplier, _mm512_set1_epi16(int16_t(-w.zero)))};
}

inline f32x16 panel_sum(__m512i high, __m512i low) {
  f32x16 sum;
  sum.part[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(128.0f), _mm512_cvtepi32_ps(low));
  return sum;
}

// One group's products with M rows of both planes, 64 inputs apart.
template <int M> inline void group_dots(const uint8_t* q, const int8_t* high, const int8_t* low, __m512i h[M], __m512i l[M]) {
  const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512i packed = _mm512_load_si512(q + 64 * i);
    const __m512i first = _mm512_and_si512(packed, nibble), second = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      h[m] = _mm512_dpbusd_epi32(h[m], first, broadcast32(high + 64 * m + 4 * i));
      l[m] = _mm512_dpbusd_epi32(l[m], first, broadcast32(low + 64 * m + 4 * i));
      h[m] = _mm512_dpbusd_epi32(h[m], second, broadcast32(high + 64 * m + 4 * i + 16));
      l[m] = _mm512_dpbusd_epi32(l[m], second, broadcast32(low + 64 * m + 4 * i + 16));
    }
  }
}

// Dots of two groups (each fits 16 bits: 15 * 32 * 64 < 2^15) side by side, times multipliers, and offsets times sums.
inline __m512i weigh(__m512i sum, const GroupPair& pair, __m512i first, __m512i second, __m512i input_sums) {
  const __m512i dots = _mm512_mask_mov_epi16(first, 0xaaaaaaaa, _mm512_slli_epi32(second, 16));
  return _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum, pair.multiplier, dots), pair.offset, input_sums);
}

// Rows row .. row + M - 1, of one tile, times B blocks. Blocks side by side are streams of their own: memory answers several
// sooner than one.
template <int M, int B>
inline void few_rows(const PackedMatrix& w, int block, const FixedRows& x, int row, const LinearOutput& out) {
  const int pairs = w.k / 64, panel_pairs = w.fixed.panel / 64, panels = w.fixed.panels;
  const size_t first = size_t(row / kFixedTile * kFixedTile) * w.k + size_t(row % kFixedTile) * 64;
  f32x16 acc[B][M] = {};
  for (int start = 0, p = 0; start < pairs; start += panel_pairs, p++) {
    const int end = start + panel_pairs < pairs ? start + panel_pairs : pairs;
    __m512i high[B][M] = {}, low[B][M] = {};
    for (int t = start; t < end; t++) {
      const int8_t *xh = x.high + first + size_t(t) * 1024, *xl = x.low + first + size_t(t) * 1024;
#pragma GCC unroll 4
      for (int b = 0; b < B; b++) {
        const uint8_t* data = w.data + (size_t(block + b) * pairs + t) * 512;
#pragma GCC unroll 8
        for (int i = 0; i < 512; i += 64) __builtin_prefetch(data + kPrefetchBytes + i);
        __m512i h[2][M] = {}, l[2][M] = {};
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) group_dots<M>(data + 256 * g, xh + 32 * g, xl + 32 * g, h[g], l[g]);
        const GroupPair pair = load_pair(w, block + b, t);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const size_t sums = size_t(row + m) * pairs + t;
          high[b][m] = weigh(high[b][m], pair, h[0][m], h[1][m], _mm512_set1_epi32(x.high_sums[sums]));
          low[b][m] = weigh(low[b][m], pair, l[0][m], l[1][m], _mm512_set1_epi32(x.low_sums[sums]));
        }
      }
    }
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) {
      const f32x16 unit = load<f32x16>(w.fixed.unit + (size_t(block + b) * panels + p) * kLanes);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const float scale = x.scale[size_t(row + m) * panels + p];
        acc[b][m] = fma(panel_sum(high[b][m], low[b][m]), unit * splat(scale), acc[b][m]);
      }
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < B; b++)
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) finish_row(w, block + b, acc[b][m], row + m, out);
}

// Weights as 16-bit integers, in the matrix unit's order: for each two groups the high bytes, then the low ones,
// [k / 64][2][16 quads][16 outputs][4].
constexpr size_t kWidePair = 2048;

// 64 weights from their bits, even ones and odd ones apart, as 16-bit integers and then as bytes in order.
inline void widen_quad(__m512i even, __m512i odd, __m512i multiplier, __m512i offset, uint8_t* high, uint8_t* low) {
  alignas(64) static constexpr struct Order {
    uint8_t low[64] = {}, high[64] = {};
    constexpr Order() {
      for (int i = 0; i < 64; i++) low[i] = uint8_t((i & 62) + (i % 2) * 64), high[i] = uint8_t(low[i] + 1);
    }
  } order;
  even = _mm512_add_epi16(_mm512_mullo_epi16(even, multiplier), offset);
  odd = _mm512_add_epi16(_mm512_mullo_epi16(odd, multiplier), offset);
  _mm512_store_si512(high, _mm512_permutex2var_epi8(even, _mm512_load_si512(order.high), odd));
  _mm512_store_si512(low, _mm512_permutex2var_epi8(even, _mm512_load_si512(order.low), odd));
}

inline void widen_pair(const PackedMatrix& w, int block, int t, uint8_t* wide) {
  const __m512i nibble = _mm512_set1_epi16(15);
  const uint8_t* q = w.data + (size_t(block) * (w.k / 64) + t) * 512;
  const GroupPair pair = load_pair(w, block, t);
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++, q += 256, wide += 512) {
    const auto both = [&](__m512i v) {  // this group's half of each lane, twice
      return g ? _mm512_mask_mov_epi16(v, 0x55555555, _mm512_srli_epi32(v, 16))
               : _mm512_mask_mov_epi16(v, 0xaaaaaaaa, _mm512_slli_epi32(v, 16));
    };
    const __m512i multiplier = both(pair.multiplier), offset = both(pair.offset);
    uint8_t *high = wide, *low = wide + kWidePair / 2;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const __m512i packed = _mm512_load_si512(q + 64 * i);
      __builtin_prefetch(q + 64 * i + kPrefetchBytes);
      const auto bits_from = [&](int at) { return _mm512_and_si512(_mm512_srli_epi16(packed, unsigned(at)), nibble); };
      widen_quad(_mm512_and_si512(packed, nibble), bits_from(8), multiplier, offset, high + 64 * i, low + 64 * i);
      widen_quad(bits_from(4), _mm512_srli_epi16(packed, 12), multiplier, offset, high + 64 * i + 256, low + 64 * i + 256);
    }
  }
}

inline void widen_block(const PackedMatrix& w, int block, uint8_t* wide) {
  for (int t = 0; t < w.k / 64; t++) widen_pair(w, block, t, wide + size_t(t) * kWidePair);
}

// Tiles 0 to 3 collect, 4 and 5 hold inputs [rows][64], 6 and 7 weights [16 quads][16 outputs][4].
constexpr TileShapes linear_shapes(int rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 6; tile++) shapes.shape(tile, rows, 64);
  shapes.shape(6, 16, 64);
  shapes.shape(7, 16, 64);
  return shapes;
}
inline void use_linear_tiles() {
  static constexpr TileShapes shapes = linear_shapes(kFixedTile);
  use_tiles(shapes);
}

struct TileSums {
  alignas(64) int32_t high_high[16][16], high_low[16][16], low_high[16][16], low_low[16][16];
};

// Memory to be fetched meanwhile, so many bytes with each pair of groups.
struct Ahead {
  const uint8_t* from;
  int bytes;
};

// 16 rows times some pairs of groups of wide weights, exact: sums of (byte of x, byte of W).
inline void multiply_tile(const int8_t* high, const int8_t* low, const uint8_t* wide, int pairs, Ahead ahead, TileSums& sums) {
  before_tile_loads();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int t = 0; t < pairs; t++, high += 1024, low += 1024, wide += kWidePair) {
    _tile_loadd(4, high, 64);
    _tile_loadd(6, wide, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, wide + kWidePair / 2, 64);
    _tile_dpbsud(1, 4, 7);
    _tile_loadd(5, low, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
    for (int i = 0; i < ahead.bytes; i += 64) __builtin_prefetch(ahead.from + t * ahead.bytes + i, 0, 2);
  }
  _tile_stored(0, sums.high_high, 64);
  _tile_stored(1, sums.high_low, 64);
  _tile_stored(2, sums.low_high, 64);
  _tile_stored(3, sums.low_low, 64);
}

// Adds a panel's sums to up to 16 rows of its block of outputs. Between panels they wait in `out.y`.
template <bool Whole>
inline void add_rows(const PackedMatrix& w, int block, int panel, const FixedRows& x, int row, int count, const TileSums& sums,
                     const LinearOutput& out) {
  const size_t column = size_t(block) * kLanes;
  const int panels = w.fixed.panels, columns = Whole ? kLanes : w.n - int(column);
  const f32x16 unit = load<f32x16>(w.fixed.unit + (size_t(block) * panels + panel) * kLanes);
  const f32x16 bias = out.bias ? load_part(out.bias + column, columns) : splat(0.0f);
  const bool is_first = panel == 0, is_last = panel + 1 == panels;
  for (int m = 0; m < count; m++) {
    const auto joined = [](const int32_t* high, const int32_t* low) {
      return _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(high), 8), _mm512_load_si512(low));
    };
    const f32x16 sum = panel_sum(joined(sums.high_high[m], sums.high_low[m]), joined(sums.low_high[m], sums.low_low[m]));
    const f32x16 scale = unit * splat(x.scale[size_t(row + m) * panels + panel]);
    float* to = out.y + size_t(row + m) * out.stride + column;
    f32x16 y = fma(sum, scale, is_first ? splat(0.0f) : load_part(to, columns));
    if (is_last) {
      y = y + bias;
      if (out.residual) y = load_part(out.residual + size_t(row + m) * out.residual_stride + column, columns) + y;
    }
    store_part(to, y, columns);
  }
}
inline void add_panel(const PackedMatrix& w, int block, int panel, const FixedRows& x, int row, int rows, const TileSums& sums,
                      const LinearOutput& out) {
  const int count = rows - row < kFixedTile ? rows - row : kFixedTile;
  if ((block + 1) * kLanes <= w.n) add_rows<true>(w, block, panel, x, row, count, sums, out);
  else add_rows<false>(w, block, panel, x, row, count, sums, out);
}

// Many rows of one block, panel by panel, so that a panel's wide weights stay in the nearest cache. Where they are not kept
// wide, a panel is widened first.
inline void many_rows(const PackedMatrix& w, int block, const FixedRows& x, int rows, const LinearOutput& out) {
  alignas(64) static thread_local uint8_t room[kFixedPanel / 64 * kWidePair];
  static thread_local TileSums sums;
  const int pairs = w.k / 64, panel_pairs = w.fixed.panel / 64;
  for (int start = 0, p = 0; start < pairs; start += panel_pairs, p++) {
    const int count = pairs - start < panel_pairs ? pairs - start : panel_pairs;
    const uint8_t* wide = room;
    if (w.fixed.wide) wide = w.fixed.wide + (size_t(block) * pairs + start) * kWidePair;
    else
      for (int t = 0; t < count; t++) widen_pair(w, block, start + t, room + t * kWidePair);
    // Each tile of rows fetches a share of the panel that comes next.
    const int share = w.fixed.wide ? int(kWidePair) / ((rows + kFixedTile - 1) / kFixedTile) & -64 : 0;
    Ahead ahead{wide + count * kWidePair, share};
    for (int row = 0; row < rows; row += kFixedTile, ahead.from += size_t(count) * share) {
      const size_t at = size_t(row) * w.k + size_t(start) * 64 * kFixedTile;
      multiply_tile(x.high + at, x.low + at, wide, count, ahead, sums);
      add_panel(w, block, p, x, row, rows, sums, out);
    }
  }
}

inline void fixed_blocks(const PackedMatrix& w, int first, int last, const FixedRows& x, int rows, const LinearOutput& out) {
  if (rows > kFewRows) {
    use_linear_tiles();
    for (int block = first; block < last; block++) many_rows(w, block, x, rows, out);
    return;
  }
  const int parts = (rows + kFewTile - 1) / kFewTile, size = (rows + parts - 1) / parts;
  for (int row = 0; row < rows; row += size)
    with_size<kFewTile>(rows - row < size ? rows - row : size, [&]<int M>() {
      constexpr int kBlocks = kFewTile / M;
      int block = first;
      for (; block + kBlocks <= last; block += kBlocks) few_rows<M, kBlocks>(w, block, x, row, out);
      for (; block < last; block++) few_rows<M, 1>(w, block, x, row, out);
    });
}

// Row `row` in fixed point: the largest magnitude of each panel becomes 8191. Sums are only read of a few rows.
inline void fix_row(const float* x, int k, const FixedRows& out, int row, int rows) {
  const int panel = out.panel, panels = out.panels;
  const size_t at = size_t(row / 16) * 16 * k + size_t(row % 16) * 64;
  for (int p = 0; p < panels; p++) {
    const int start = p * panel, end = start + panel < k ? start + panel : k;
    Magnitudes magnitudes;
    for (int i = start; i < end; i += kLanes) magnitudes.add(load<f32x16>(x + i));
    const float top = magnitudes.top(), inverse = top > 0 ? 8191.0f / top : 0.0f;
    out.scale[size_t(row) * panels + p] = top / 8191.0f;
    for (int i = start; i < end; i += 64) {
      int8_t *high = out.high + at + size_t(i) * 16, *low = out.low + at + size_t(i) * 16;
      for (int j = 0; j < 64; j += kLanes) {
        const f32x16 scaled = load<f32x16>(x + i + j) * inverse;
        const __m512i whole = _mm512_cvtps_epi32(scaled.part[0]);
        const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
        _mm_store_si128(reinterpret_cast<__m128i*>(high + j), _mm512_cvtepi32_epi8(h));
        _mm_store_si128(reinterpret_cast<__m128i*>(low + j), _mm512_cvtepi32_epi8(_mm512_sub_epi32(whole, _mm512_slli_epi32(h, 7))));
      }
      if (rows > kFewRows) continue;
      const auto pair_sums = [](const int8_t* q) {  // of 32 bytes and 32 bytes, as two halves of a word
        const __m512i quads = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(q));
        const int first = _mm512_mask_reduce_add_epi32(0x00ff, quads), second = _mm512_mask_reduce_add_epi32(0xff00, quads);
        return int32_t(uint32_t(uint16_t(first)) | uint32_t(second) << 16);
      };
      out.high_sums[size_t(row) * (k / 64) + i / 64] = pair_sums(high);
      out.low_sums[size_t(row) * (k / 64) + i / 64] = pair_sums(low);
    }
  }
}

}  // namespace headway::HEADWAY_ISA
