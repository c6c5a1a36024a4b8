// Linear layers: y = x W^T, one block of 16 outputs at a time, for up to kTile rows together.
//
// Law 1 lives here: one output is formed by one thread, over k in ascending order, in groups of fixed size. The number of
// rows in a tile only says how many independent accumulators run side by side.
#pragma once
#include "simd.hpp"
#include "types.hpp"

namespace headway::HEADWAY_ISA {

inline f32x16 load_scales(const PackedMatrix& w, const void* scales, size_t index) {
  if (w.wide_scales) return load<f32x16>(static_cast<const float*>(scales) + index * kLanes);
  return from_f16(load<u16x16>(static_cast<const uint16_t*>(scales) + index * kLanes));
}

// The weights that come after the line being multiplied, further than the processor looks by itself: from memory into the second
// cache, of which many may be on their way, and later into the first.
inline void prefetch_ahead(const uint8_t* line) {
  constexpr int kFar = 8192, kNear = 1536;
  __builtin_prefetch(line + kFar, 0, 2);
  __builtin_prefetch(line + kNear);
}

// One row of a block of outputs on its way out: the sum over k, then the bias, then the residual.
inline void finish_row(const PackedMatrix& w, int block, f32x16 y, int row, const LinearOutput& out) {
  const size_t first = size_t(block) * kLanes;
  const int columns = w.n - int(first);
  y = y + (out.bias ? load_part(out.bias + first, columns) : splat(0.0f));
  if (out.residual) y = load_part(out.residual + size_t(row) * out.residual_stride + first, columns) + y;
  store_part(out.y + size_t(row) * out.stride + first, y, columns);
}

}  // namespace headway::HEADWAY_ISA
#if defined(__AMX_INT8__)
#include "fixed_point.hpp"
#endif
namespace headway::HEADWAY_ISA {

// dot[m][lane] = sum over one group of q[lane] * x[m], exact in int32; x is [quad][M] of four bytes.
template <int M, int Bits, int Quads>
inline void group_dot(const uint8_t* q, const int8_t* x, i32x16 dot[M]) {
  const auto quad = [&](int m, int i) { return x + 4 * (i * M + m); };
  QuadSum<Bits> sums[M];
  if constexpr (Bits == 4) {
    static_assert(Quads == 8);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const u32x16 packed = load<u32x16>(q + 64 * i);
      const u8x64 low = bits<u8x64>(packed & 0x0f0f0f0fu), high = bits<u8x64>((packed >> 4) & 0x0f0f0f0fu);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        sums[m].add(low, quad(m, i));
        sums[m].add(high, quad(m, i + 4));
      }
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < Quads; i++) {
      const u8x64 w = load<u8x64>(q + 64 * i);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) sums[m].add(w, quad(m, i));
    }
  }
  for (int m = 0; m < M; m++) dot[m] = sums[m].total();
}

// M rows of one block of outputs, in registers.
template <int M> struct Sums {
  f32x16 acc[M];
};

// Loops add up in a plain array and come here at the end: a result that is returned is kept in memory throughout.
template <int M> inline Sums<M> sums_of(const f32x16* acc) {
  Sums<M> sums;
  for (int m = 0; m < M; m++) sums.acc[m] = acc[m];
  return sums;
}

template <int M, int Bits, int Group, bool Minimum>
inline Sums<M> quant_tile(const PackedMatrix& w, int block, const QuantizedRows& x, int row) {
  f32x16 acc[M] = {};
  const int groups = w.k / Group;
  const size_t first = size_t(row) * (w.k / kActivationGroup);  // rows before this one are in whole tiles
  const uint8_t* q = w.data + size_t(block) * w.k * kLanes * Bits / 8;
  const int8_t* xq = x.q + size_t(row) * w.k;
  const f32x16 minus_zero = splat(-w.zero);
  for (int g = 0; g < groups; g++, q += Group * kLanes * Bits / 8, xq += Group * M) {
    const size_t index = size_t(block) * groups + g;
    const size_t xg = first + size_t(g * Group / kActivationGroup) * M;
    const f32x16 w_scale = load_scales(w, w.scale, index);
    for (int i = 0; i < Group * kLanes * Bits / 8; i += 64) prefetch_ahead(q + i);
    i32x16 dot[M];
    group_dot<M, Bits, Group / 4>(q, xq, dot);
    if constexpr (Minimum) {
      const f32x16 w_min = load_scales(w, w.minimum, index);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        acc[m] = fma(to_float(dot[m]), w_scale * splat(x.scale[xg + m]), acc[m]);
        acc[m] = fma(w_min, splat(x.scaled_sum[xg + m]), acc[m]);
      }
    } else {
      const float* sum = Group == 16 ? x.sum16 + 2 * first + size_t(g) * M : x.sum32 + xg;
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const f32x16 centred = fma(minus_zero, splat(sum[m]), to_float(dot[m]));  // integers: exact
        acc[m] = fma(centred, w_scale * splat(x.scale[xg + m]), acc[m]);
      }
    }
  }
  return sums_of<M>(acc);
}

template <Format F> inline f32x16 load_dense(const uint8_t* p) {
  if constexpr (F == Format::f32) return load<f32x16>(p);
  else if constexpr (F == Format::f16) return from_f16(load<u16x16>(p));
  else return from_bf16(load<u16x16>(p));
}

// Half-precision weights are widened and multiplied in f32: rounding the activations to bf16 as well would gain at most a
// factor of two where compute is the limit, nothing where memory is, and changes the most likely token of 1.5 % of positions.
// Even and odd inputs are summed apart, so that two additions can be under way at once for a single row.
template <int M, Format F>
inline Sums<M> dense_tile(const PackedMatrix& w, int block, const float* x, int stride) {
  constexpr int kBytes = F == Format::f32 ? 4 : 2;
  const uint8_t* data = w.data + size_t(block) * w.k * kLanes * kBytes;
  f32x16 even[M] = {}, odd[M] = {};
  for (int k = 0; k < w.k; k += 2, data += 2 * kLanes * kBytes) {
    const f32x16 v0 = load_dense<F>(data), v1 = load_dense<F>(data + kLanes * kBytes);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      even[m] = fma(v0, splat(x[size_t(m) * stride + k]), even[m]);
      odd[m] = fma(v1, splat(x[size_t(m) * stride + k + 1]), odd[m]);
    }
  }
  for (int m = 0; m < M; m++) even[m] += odd[m];
  return sums_of<M>(even);
}

template <int M> inline Sums<M> tile(const PackedMatrix& w, int block, const LinearInput& x, int row) {
  switch (w.format) {
    case Format::f32: return dense_tile<M, Format::f32>(w, block, x.x + size_t(row) * x.stride, x.stride);
    case Format::f16: return dense_tile<M, Format::f16>(w, block, x.x + size_t(row) * x.stride, x.stride);
    case Format::bf16: return dense_tile<M, Format::bf16>(w, block, x.x + size_t(row) * x.stride, x.stride);
    case Format::q4:
      if (w.minimum) return quant_tile<M, 4, 32, true>(w, block, x.quantized, row);
      return quant_tile<M, 4, 32, false>(w, block, x.quantized, row);
    case Format::q8: break;
  }
  if (w.group == 16) return quant_tile<M, 8, 16, false>(w, block, x.quantized, row);
  if (w.minimum) return quant_tile<M, 8, 32, true>(w, block, x.quantized, row);
  return quant_tile<M, 8, 32, false>(w, block, x.quantized, row);
}

template <int M>
inline void tile_to_output(const PackedMatrix& w, int block, const LinearInput& x, int row, const LinearOutput& out) {
  const Sums<M> sums = tile<M>(w, block, x, row);
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) finish_row(w, block, sums.acc[m], row + m, out);
}

inline void grouped_block(const PackedMatrix& w, int block, const LinearInput& x, const LinearOutput& out) {
  int row = 0;
  for (; row + kTile <= x.rows; row += kTile) tile_to_output<kTile>(w, block, x, row, out);
  with_size<kTile - 1>(x.rows - row, [&]<int M>() { tile_to_output<M>(w, block, x, row, out); });
}

inline void linear_blocks(const PackedMatrix& w, int first, int last, const LinearInput& x, const LinearOutput& out) {
#if defined(__AMX_INT8__)
  if (w.fixed.unit) fixed_blocks(w, first, last, x.fixed, x.rows, out);
  else
#endif
  for (int block = first; block < last; block++) grouped_block(w, block, x, out);
#if defined(__AVX__)
  _mm256_zeroupper();  // the caller's instructions may be of the older kind, which stall on what is left in the upper halves
#endif
}

inline int int8_operations(int iterations) {
  constexpr int kChains = 8;
  static const int8_t x[4] = {1, -1, 2, -2};
  const int8_t* quad = x;
  i32x16 acc = {};
  u8x64 w[kChains];  // all different: equal chains would be computed once
  for (int c = 0; c < kChains; c++) w[c] = fill(uint8_t((iterations + c) & 15));
  for (int i = 0; i < iterations; i++) {
    QuadSum<4> sums[kChains];
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++) {
      asm volatile("" : "+r"(quad));  // may have changed, as far as the compiler can tell
#pragma GCC unroll 8
      for (int c = 0; c < kChains; c++) sums[c].add(w[c], quad);
    }
    for (int c = 0; c < kChains; c++) acc += sums[c].total();
  }
  asm volatile("" : : "m"(acc));  // and the result is used
  return 8 * kChains * kLanes * 4 * 2;
}

// int8 with one scale per 32 inputs: scale = max|x| / 127, q = x / scale to the nearest, ties to even.
inline void quantize_row(const float* x, int k, const QuantizedRows& out, int row, int rows) {
  const int groups = k / kActivationGroup, m = row % kTile, tile = row - m;
  const int size = rows - tile < kTile ? rows - tile : kTile;
  int8_t* q = out.q + size_t(tile) * k + 4 * m;
  for (int g = 0; g < groups; g++) {
    const f32x16 half[2] = {load<f32x16>(x + g * 32), load<f32x16>(x + g * 32 + 16)};
    Magnitudes magnitudes;
    magnitudes.add(half[0]);
    magnitudes.add(half[1]);
    const float largest = magnitudes.top();
    const float scale = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
    float sum[2];
    for (int h = 0; h < 2; h++) {
      const f32x16 nearest = (half[h] * inverse + 12582912.0f) - 12582912.0f;
      int32_t whole[kLanes];
      store(whole, to_int(nearest));
      for (int i = 0; i < kLanes; i++) q[4 * size_t(g * 8 + h * 4 + i / 4) * size + i % 4] = int8_t(whole[i]);
      sum[h] = reduce_add(nearest);
      out.sum16[2 * size_t(tile) * groups + size_t(g * 2 + h) * size + m] = sum[h];
    }
    const size_t at = size_t(tile) * groups + size_t(g) * size + m;
    out.scale[at] = scale;
    out.sum32[at] = sum[0] + sum[1];
    out.scaled_sum[at] = scale * out.sum32[at];
  }
}

template <Format F> inline void embed_dense(const PackedMatrix& w, int block, int lane, float scale, float* y) {
  constexpr int kBytes = F == Format::f32 ? 4 : 2;
  for (int k = 0; k < w.k; k++) y[k] = load_dense<F>(w.data + (size_t(block) * w.k + k) * kLanes * kBytes)[lane] * scale;
}

// One row of a packed matrix, back in float32: the exact values the format stands for.
inline void embed_row(const PackedMatrix& w, int row, float scale, float* y) {
  const int block = row / kLanes, lane = row % kLanes;
  const auto scale_at = [&](const void* scales, int g) {
    f32x16 v = load_scales(w, scales, size_t(block) * (w.k / w.group) + g);
    return v[lane];
  };
  switch (w.format) {
    case Format::f32: return embed_dense<Format::f32>(w, block, lane, scale, y);
    case Format::f16: return embed_dense<Format::f16>(w, block, lane, scale, y);
    case Format::bf16: return embed_dense<Format::bf16>(w, block, lane, scale, y);
    case Format::q4:
    case Format::q8: break;
  }
  const bool four = w.format == Format::q4;
  const uint8_t* data = w.data + size_t(block) * w.k * kLanes / (four ? 2 : 1);
  for (int g = 0; g < w.k / w.group; g++) {
    const float s = scale_at(w.scale, g), low = w.minimum ? scale_at(w.minimum, g) : 0.0f;
    for (int i = 0; i < w.group; i++) {
      const int k = g * w.group + i, j = k % 32;
      const int at = w.fixed.multiplier ? lane % 4 * 64 + lane / 4 * 16 + j % 16 : j % 16 / 4 * 64 + lane * 4 + j % 4;
      const uint8_t q = four ? (data[k / 32 * 256 + at] >> (j / 16 * 4)) & 15
                             : data[(k / 4 * kLanes + lane) * 4 + k % 4];
      y[k] = ((float(q) - w.zero) * s + low) * scale;
    }
  }
}

}  // namespace headway::HEADWAY_ISA
