// Linear layers in fixed point, for processors with a matrix unit (Intel AMX).
//
//   W[n, k] = unit[n, p] * (byte[n, k] - 128)                 of 4 bits: (multiplier[n, g] * q[n, k] + offset[n, g]) mod 2^16 / 256
//   x[m, k] = scale[m, p] * (128 * high[m, k] + low[m, k])    14 bits; high and low in -64 .. 64
//   y[m, n] = sum over panels p, ascending, of unit * scale * (128 * H + L)
//
// H = sum of W's integer times high over the inputs k of a panel, and L with low, are exact in 32 bits, so however they come
// about the bits are equal: a few rows take them with vector instructions, more rows from the matrix unit; 4-bit weights may be
// kept as bytes as well, or become bytes on the way, in registers for a few rows. Nothing is left to do at a group's end. A weight
// is rounded by at most a 254th of the largest of its panel; its own 4 bits have rounded it by a 30th of the range of its group.
#pragma once
#include <array>
#include <utility>

#include "matrix_unit.hpp"
#include "simd.hpp"
#include "types.hpp"

namespace headway::HEADWAY_ISA {

// The matrix unit takes 16 rows as quickly as one: up to so many rows, vector instructions are quicker, and take them in parts
// of up to kFewTile. Where weights are kept as bytes the matrix unit has less to do, but from memory twice as much has to come.
constexpr int kFewRows = 5, kFewRowsOfBytes = 2, kFewTile = 3;

constexpr size_t kBytesOfPair = 1024;  // 64 inputs of 16 outputs, in the matrix unit's order: [16 quads][16 outputs][4]

inline __m512i broadcast32(const void* p) { return _mm512_set1_epi32(load<int32_t>(p)); }

// A register of weights has 16 inputs of 4 outputs, output 4 * L + i in lane L of register i: a table of 16 bytes in each lane
// makes its 4-bit numbers bytes at once.
constexpr int kQuarters = 4;

// Of two groups side by side, the tables of either: table[g][i] is that of register i.
struct ByteTables {
  __m512i table[2][kQuarters];

  ByteTables(const PackedMatrix& w, int block, int pair) {
    const size_t at = (size_t(block) * (w.k / 64) + pair) * kLanes;
    const __m512i multiplier = _mm512_load_si512(reinterpret_cast<const int32_t*>(w.fixed.multiplier) + at);
    const __m512i numbers = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 2, 4, 6, 8, 10, 12, 14));
    if (w.fixed.offset) {
      const __m512i offset = _mm512_load_si512(reinterpret_cast<const int32_t*>(w.fixed.offset) + at);
      fill(multiplier, numbers, [&](__m512i this_word) { return _mm512_shuffle_epi8(offset, this_word); });
    } else {
      const __m512i offset = _mm512_set1_epi16(int16_t(kByteOffset));
      fill(multiplier, _mm512_sub_epi16(numbers, _mm512_set1_epi16(int16_t(w.zero))), [&](__m512i) { return offset; });
    }
  }

 private:
  // The even numbers' products and the odd ones', of which a table has the upper halves.
  template <class Offset> void fill(__m512i multiplier, __m512i even_numbers, Offset offset) {
    const __m512i low_bytes = _mm512_set1_epi16(0xff);
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++)
#pragma GCC unroll 4
      for (int i = 0; i < kQuarters; i++) {
        const __m512i this_word = _mm512_set1_epi16(int16_t((4 * i + 2 * g + 1) << 8 | (4 * i + 2 * g)));
        const __m512i step = _mm512_shuffle_epi8(multiplier, this_word);
        const __m512i even = _mm512_add_epi16(_mm512_mullo_epi16(step, even_numbers), offset(this_word));
        const __m512i odd = _mm512_add_epi16(even, step);
        table[g][i] = _mm512_ternarylogic_epi32(low_bytes, _mm512_srli_epi16(even, 8), odd, 0xca);
      }
  }
};

// Inputs 0 to 15 of a group, and 16 to 31, of 4 outputs.
struct WeightBytes {
  __m512i first, second;

  WeightBytes(const uint8_t* q, __m512i table) {
    const __m512i packed = _mm512_load_si512(q), upper_half = _mm512_set1_epi64(0x1020408000000000);
    first = _mm512_shuffle_epi8(table, _mm512_and_si512(packed, _mm512_set1_epi8(15)));
    second = _mm512_shuffle_epi8(table, _mm512_gf2p8affine_epi64_epi8(packed, upper_half, 0));  // bits 4 to 7 as 0 to 3
  }
};

inline __m512i four_times(const int8_t* x) { return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(x))); }

// Sums that are still spread over the dwords of each lane.
struct SpreadSums {
  __m512i quarter[kQuarters] = {};

  __m512i total() const {
    const auto joined = [](__m512i a, __m512i b) { return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); };
    const __m512i first = joined(quarter[0], quarter[1]), second = joined(quarter[2], quarter[3]);
    return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
};

// 128 * H + L of one row, from the sums of bytes times `high` and `low` of a panel: bytes are 128 too large.
inline f32x16 panel_sum(__m512i high, __m512i low, const FixedRows& x, size_t at) {
  high = _mm512_sub_epi32(high, _mm512_set1_epi32(128 * x.high_sums[at]));
  low = _mm512_sub_epi32(low, _mm512_set1_epi32(128 * x.low_sums[at]));
  f32x16 sum;
  sum.part[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(128.0f), _mm512_cvtepi32_ps(low));
  return sum;
}

// Sums of M rows with one block of outputs, 64 inputs at a time. They may be spread over several registers.
template <int M> struct DotsOfNibbles {
  SpreadSums high[M], low[M];

  void add(const PackedMatrix& w, int block, int pair, const int8_t* x_high, const int8_t* x_low) {
    const uint8_t* q = w.data + (size_t(block) * (w.k / 64) + pair) * 512;
    const ByteTables tables(w, block, pair);
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++)
#pragma GCC unroll 4
      for (int i = 0; i < kQuarters; i++) {
        prefetch_ahead(q + 256 * g + 64 * i);
        const WeightBytes bytes(q + 256 * g + 64 * i, tables.table[g][i]);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const int at = 64 * m + 32 * g;
          high[m].quarter[i] = _mm512_dpbusd_epi32(high[m].quarter[i], bytes.first, four_times(x_high + at));
          low[m].quarter[i] = _mm512_dpbusd_epi32(low[m].quarter[i], bytes.first, four_times(x_low + at));
          high[m].quarter[i] = _mm512_dpbusd_epi32(high[m].quarter[i], bytes.second, four_times(x_high + at + 16));
          low[m].quarter[i] = _mm512_dpbusd_epi32(low[m].quarter[i], bytes.second, four_times(x_low + at + 16));
        }
      }
  }
  __m512i high_total(int m) const { return high[m].total(); }
  __m512i low_total(int m) const { return low[m].total(); }
};

template <int M> struct DotsOfBytes {
  __m512i high[M][2] = {}, low[M][2] = {};  // two, so that one need not wait for the other

  void add(const PackedMatrix& w, int block, int pair, const int8_t* x_high, const int8_t* x_low) {
    const uint8_t* bytes = w.fixed.bytes + (size_t(block) * (w.k / 64) + pair) * kBytesOfPair;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      prefetch_ahead(bytes + 64 * i);
      const __m512i quads = _mm512_load_si512(bytes + 64 * i);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        high[m][i % 2] = _mm512_dpbusd_epi32(high[m][i % 2], quads, broadcast32(x_high + 64 * m + 4 * i));
        low[m][i % 2] = _mm512_dpbusd_epi32(low[m][i % 2], quads, broadcast32(x_low + 64 * m + 4 * i));
      }
    }
  }
  __m512i high_total(int m) const { return _mm512_add_epi32(high[m][0], high[m][1]); }
  __m512i low_total(int m) const { return _mm512_add_epi32(low[m][0], low[m][1]); }
};

// Rows row .. row + M - 1, of the first tile.
template <template <int> class Dots, int M>
inline void few_rows(const PackedMatrix& w, int block, const FixedRows& x, int row, const LinearOutput& out) {
  const int pairs = w.k / 64, panel_pairs = w.fixed.panel / 64, panels = w.fixed.panels;
  const size_t first = size_t(row) * 64;
  f32x16 acc[M] = {};
  for (int start = 0, p = 0; start < pairs; start += panel_pairs, p++) {
    const int end = start + panel_pairs < pairs ? start + panel_pairs : pairs;
    Dots<M> dots;
    for (int t = start; t < end; t++) dots.add(w, block, t, x.high + first + size_t(t) * 1024, x.low + first + size_t(t) * 1024);
    const f32x16 unit = load<f32x16>(w.fixed.unit + (size_t(block) * panels + p) * kLanes);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const size_t at = size_t(row + m) * panels + p;
      acc[m] = fma(panel_sum(dots.high_total(m), dots.low_total(m), x, at), unit * splat(x.scale[at]), acc[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) finish_row(w, block, acc[m], row + m, out);
}

// Four registers of 16 inputs, as four quads of inputs of all 16 outputs.
inline void store_quads(const __m512i bytes[kQuarters], uint8_t* to) {
  __m512i pairs[kQuarters];
  for (int i = 0; i < 2; i++) {
    pairs[i] = _mm512_unpacklo_epi32(bytes[2 * i], bytes[2 * i + 1]);
    pairs[2 + i] = _mm512_unpackhi_epi32(bytes[2 * i], bytes[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    _mm512_store_si512(to + 128 * i, _mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]));
    _mm512_store_si512(to + 128 * i + 64, _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
}

inline void bytes_of_pair(const PackedMatrix& w, int block, int t, uint8_t* to) {
  const uint8_t* q = w.data + (size_t(block) * (w.k / 64) + t) * 512;
  const ByteTables tables(w, block, t);
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++, q += 256, to += 512) {
    __m512i first[kQuarters], second[kQuarters];
#pragma GCC unroll 4
    for (int i = 0; i < kQuarters; i++) {
      prefetch_ahead(q + 64 * i);
      const WeightBytes bytes(q + 64 * i, tables.table[g][i]);
      first[i] = bytes.first;
      second[i] = bytes.second;
    }
    store_quads(first, to);
    store_quads(second, to + 256);
  }
}

inline void widen_block(const PackedMatrix& w, int block, uint8_t* wide) {
  for (int t = 0; t < w.k / 64; t++) bytes_of_pair(w, block, t, wide + size_t(t) * kBytesOfPair);
}

// Tiles 0 to 3 collect, 4 and 5 hold inputs [rows][64], 6 and 7 weights [16 quads][16 outputs][4].
constexpr TileShapes linear_shapes(int rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 6; tile++) shapes.shape(tile, rows, 64);
  shapes.shape(6, 16, 64);
  shapes.shape(7, 16, 64);
  return shapes;
}
template <size_t... Rows> constexpr std::array<TileShapes, kFixedTile> all_linear_shapes(std::index_sequence<Rows...>) {
  return {linear_shapes(int(Rows) + 1)...};
}
inline void use_linear_tiles(int rows) {
  static constexpr auto shapes = all_linear_shapes(std::make_index_sequence<kFixedTile>());
  use_tiles(shapes[rows - 1]);
}

// Exact sums of a tile of rows with one block's weights, for either plane of inputs.
struct TileSums {
  alignas(64) int32_t high[kFixedTile][kLanes], low[kFixedTile][kLanes];
};

// Memory to be fetched meanwhile, so many bytes with each pair of groups.
struct Ahead {
  const uint8_t* from;
  int bytes;
};

// A tile of rows times some pairs of groups of one block's bytes, or two blocks'.
template <int B>
inline void multiply_tile(const int8_t* high, const int8_t* low, const uint8_t* const bytes[B], int pairs, Ahead ahead, TileSums sums[B]) {
  before_tile_loads();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int t = 0; t < pairs; t++) {
    _tile_loadd(4, high + t * 1024, 64);
    _tile_loadd(6, bytes[0] + t * kBytesOfPair, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(5, low + t * 1024, 64);
    _tile_dpbsud(1, 5, 6);
    if constexpr (B == 2) {
      _tile_loadd(7, bytes[1] + t * kBytesOfPair, 64);
      _tile_dpbsud(2, 4, 7);
      _tile_dpbsud(3, 5, 7);
    }
    for (int i = 0; i < ahead.bytes; i += 64)
      for (int b = 0; b < B; b++) __builtin_prefetch(ahead.from + (bytes[b] - bytes[0]) + t * ahead.bytes + i, 0, 2);
  }
  _tile_stored(0, sums[0].high, 64);
  _tile_stored(1, sums[0].low, 64);
  if constexpr (B == 2) {
    _tile_stored(2, sums[1].high, 64);
    _tile_stored(3, sums[1].low, 64);
  }
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
    const size_t at = size_t(row + m) * panels + panel;
    const f32x16 sum = panel_sum(_mm512_load_si512(sums.high[m]), _mm512_load_si512(sums.low[m]), x, at);
    const f32x16 scale = unit * splat(x.scale[at]);
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
  const int count = rows - row < x.tile_rows ? rows - row : x.tile_rows;
  if ((block + 1) * kLanes <= w.n) add_rows<true>(w, block, panel, x, row, count, sums, out);
  else add_rows<false>(w, block, panel, x, row, count, sums, out);
}

// Many rows of B blocks, panel by panel, so that a panel's bytes stay in the nearest cache. Where they are not kept,
// they are made first.
template <int B> inline void many_rows(const PackedMatrix& w, int block, const FixedRows& x, int rows, const LinearOutput& out) {
  alignas(64) static thread_local uint8_t room[B][kFixedPanel / 64 * kBytesOfPair];
  static thread_local TileSums sums[B];
  const int pairs = w.k / 64, panel_pairs = w.fixed.panel / 64;
  for (int start = 0, p = 0; start < pairs; start += panel_pairs, p++) {
    const int count = pairs - start < panel_pairs ? pairs - start : panel_pairs;
    const uint8_t* bytes[B];
    for (int b = 0; b < B; b++) {
      bytes[b] = room[b];
      if (w.fixed.bytes) bytes[b] = w.fixed.bytes + (size_t(block + b) * pairs + start) * kBytesOfPair;
      else
        for (int t = 0; t < count; t++) bytes_of_pair(w, block + b, start + t, room[b] + t * kBytesOfPair);
    }
    // Each tile of rows fetches a share of the panel that comes next.
    const int tiles = (rows + x.tile_rows - 1) / x.tile_rows, share = w.fixed.bytes ? int(kBytesOfPair) / tiles & -64 : 0;
    Ahead ahead{bytes[0] + (start + count < pairs ? count : (B - 1) * pairs + count) * kBytesOfPair, share};
    for (int tile = 0; tile < tiles; tile++, ahead.from += size_t(count) * share) {
      const size_t at = (size_t(tile) * w.k + size_t(start) * 64) * kFixedTile;
      multiply_tile<B>(x.high + at, x.low + at, bytes, count, ahead, sums);
      for (int b = 0; b < B; b++) add_panel(w, block + b, p, x, tile * x.tile_rows, rows, sums[b], out);
    }
  }
}

inline void fixed_blocks(const PackedMatrix& w, int first, int last, const FixedRows& x, int rows, const LinearOutput& out) {
  const int few = !w.fixed.multiplier ? kFewRowsOfBytes : w.fixed.bytes ? kFewTile : kFewRows;
  if (rows > few) {
    use_linear_tiles(x.tile_rows);
    int block = first;
    for (; block + 2 <= last; block += 2) many_rows<2>(w, block, x, rows, out);
    if (block < last) many_rows<1>(w, block, x, rows, out);
    return;
  }
  const int parts = (rows + kFewTile - 1) / kFewTile, size = (rows + parts - 1) / parts;
  for (int row = 0; row < rows; row += size)
    with_size<kFewTile>(rows - row < size ? rows - row : size, [&]<int M>() {
      for (int block = first; block < last; block++) {
        if (w.fixed.multiplier) few_rows<DotsOfNibbles, M>(w, block, x, row, out);
        else few_rows<DotsOfBytes, M>(w, block, x, row, out);
      }
    });
}

// Row `row` in fixed point: the largest magnitude of each panel becomes 8191.
inline void fix_row(const float* x, int k, const FixedRows& out, int row) {
  const int panel = out.panel, panels = out.panels;
  const size_t tile = size_t(row / out.tile_rows) * kFixedTile * k + size_t(row % out.tile_rows) * 64;
  for (int p = 0; p < panels; p++) {
    const int start = p * panel, end = start + panel < k ? start + panel : k;
    const size_t at = size_t(row) * panels + p;
    Magnitudes magnitudes;
    for (int i = start; i < end; i += kLanes) magnitudes.add(load<f32x16>(x + i));
    const float top = magnitudes.top(), inverse = top > 0 ? 8191.0f / top : 0.0f;
    __m512i high_sum = {}, low_sum = {};
    for (int i = start; i < end; i += kLanes) {
      const size_t to = tile + size_t(i) / 64 * 64 * kFixedTile + i % 64;
      const f32x16 scaled = load<f32x16>(x + i) * inverse;
      const __m512i whole = _mm512_cvtps_epi32(scaled.part[0]);
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
      const __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 7));
      _mm_store_si128(reinterpret_cast<__m128i*>(out.high + to), _mm512_cvtepi32_epi8(high));
      _mm_store_si128(reinterpret_cast<__m128i*>(out.low + to), _mm512_cvtepi32_epi8(low));
      high_sum = _mm512_add_epi32(high_sum, high);
      low_sum = _mm512_add_epi32(low_sum, low);
    }
    out.scale[at] = top / 8191.0f;
    out.high_sums[at] = _mm512_reduce_add_epi32(high_sum);
    out.low_sums[at] = _mm512_reduce_add_epi32(low_sum);
  }
}

}  // namespace headway::HEADWAY_ISA
