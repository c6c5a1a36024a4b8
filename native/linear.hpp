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

// dot[m][lane] = sum over one group of q[lane] * x[m], exact in int32.
template <int M, int Bits, int Quads>
inline void group_dot(const uint8_t* q, const int8_t* const x[M], i32x16 dot[M]) {
  auto quad = [&](int m, int i) { return load<int32_t>(x[m] + 4 * i); };
  for (int m = 0; m < M; m++) dot[m] = i32x16{};
  if constexpr (Bits == 4) {
    static_assert(Quads == 8);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      u8x64 packed = load<u8x64>(q + 64 * i);
      u8x64 low = packed & 15;
      u8x64 high = bits<u8x64>((bits<u32x16>(packed) >> 4) & 0x0f0f0f0fu);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) dot[m] = dot4(dot4(dot[m], low, quad(m, i)), high, quad(m, i + 4));
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < Quads; i++) {
      u8x64 w = load<u8x64>(q + 64 * i);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) dot[m] = dot4(dot[m], w, quad(m, i));
    }
  }
}

template <int M, int Bits, int Group, bool Minimum>
void quant_tile(const PackedMatrix& w, int block, const QuantizedRows& x, int row, f32x16 acc[M]) {
  const int groups = w.k / Group, x_groups = w.k / kActivationGroup, sums = w.k / Group;
  const uint8_t* q = w.data + size_t(block) * w.k * kLanes * Bits / 8;
  const float* sum = (Group == 16 ? x.sum16 : x.sum32) + size_t(row) * sums;
  const float* scale = x.scale + size_t(row) * x_groups;
  const float* scaled_sum = x.scaled_sum + size_t(row) * x_groups;
  const int8_t* xq[M];
  for (int m = 0; m < M; m++) xq[m] = x.q + size_t(row + m) * w.k;
  const f32x16 minus_zero = splat(-w.zero);
  for (int g = 0; g < groups; g++) {
    const size_t index = size_t(block) * groups + g;
    const int xg = g * Group / kActivationGroup;
    const f32x16 w_scale = load_scales(w, w.scale, index);
    i32x16 dot[M];
    group_dot<M, Bits, Group / 4>(q, xq, dot);
    q += Group * kLanes * Bits / 8;
    for (int m = 0; m < M; m++) xq[m] += Group;
    if constexpr (Minimum) {
      const f32x16 w_min = load_scales(w, w.minimum, index);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        acc[m] = fma(to_float(dot[m]), w_scale * splat(scale[m * x_groups + xg]), acc[m]);
        acc[m] = fma(w_min, splat(scaled_sum[m * x_groups + xg]), acc[m]);
      }
    } else {
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const f32x16 centred = fma(minus_zero, splat(sum[m * sums + g]), to_float(dot[m]));  // integers: exact
        acc[m] = fma(centred, w_scale * splat(scale[m * x_groups + xg]), acc[m]);
      }
    }
  }
}

template <int M, Format F>
void dense_tile(const PackedMatrix& w, int block, const float* x, int stride, f32x16 acc[M]) {
  constexpr int kBytes = F == Format::f32 ? 4 : 2;
  const uint8_t* data = w.data + size_t(block) * w.k * kLanes * kBytes;
  for (int k = 0; k < w.k; k++, data += kLanes * kBytes) {
    f32x16 v;
    if constexpr (F == Format::f32) v = load<f32x16>(data);
    else v = from_f16(load<u16x16>(data));
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) acc[m] = fma(v, splat(x[size_t(m) * stride + k]), acc[m]);
  }
}

template <int M>
void bf16_tile(const PackedMatrix& w, int block, const uint16_t* x, f32x16 acc[M]) {
  const uint8_t* data = w.data + size_t(block) * w.k * kLanes * 2;
  for (int k = 0; k < w.k; k += 2, data += 64) {
    const u32x16 v = load<u32x16>(data);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) acc[m] = dot2_bf16(acc[m], v, load<uint32_t>(x + size_t(m) * w.k + k));
  }
}

template <int M>
void tile(const PackedMatrix& w, int block, const LinearInput& x, int row, f32x16 acc[M]) {
  switch (w.format) {
    case Format::f32: return dense_tile<M, Format::f32>(w, block, x.x + size_t(row) * x.stride, x.stride, acc);
    case Format::f16: return dense_tile<M, Format::f16>(w, block, x.x + size_t(row) * x.stride, x.stride, acc);
    case Format::bf16: return bf16_tile<M>(w, block, x.bf16 + size_t(row) * w.k, acc);
    case Format::q4:
      if (w.minimum) return quant_tile<M, 4, 32, true>(w, block, x.quantized, row, acc);
      return quant_tile<M, 4, 32, false>(w, block, x.quantized, row, acc);
    case Format::q8:
      if (w.group == 16) return quant_tile<M, 8, 16, false>(w, block, x.quantized, row, acc);
      if (w.minimum) return quant_tile<M, 8, 32, true>(w, block, x.quantized, row, acc);
      return quant_tile<M, 8, 32, false>(w, block, x.quantized, row, acc);
  }
}

// Rows row .. row + M - 1 of one output block, bias added last.
template <int M>
void tile_to_output(const PackedMatrix& w, int block, const LinearInput& x, int row, f32x16 bias, float* y, int y_stride) {
  f32x16 acc[M] = {};
  tile<M>(w, block, x, row, acc);
  const int columns = w.n - block * kLanes;
  for (int m = 0; m < M; m++) {
    const f32x16 out = acc[m] + bias;
    float* to = y + size_t(row + m) * y_stride + size_t(block) * kLanes;
    if (columns >= kLanes) store(to, out);
    else std::memcpy(to, &out, size_t(columns) * sizeof(float));
  }
}

inline void linear_block(const PackedMatrix& w, int block, const LinearInput& x, const float* bias, float* y, int y_stride) {
  f32x16 b = {};
  if (bias) {
    const int columns = w.n - block * kLanes;
    std::memcpy(&b, bias + size_t(block) * kLanes, size_t(columns < kLanes ? columns : kLanes) * sizeof(float));
  }
  int row = 0;
  for (; row + kTile <= x.rows; row += kTile) tile_to_output<kTile>(w, block, x, row, b, y, y_stride);
  with_size<kTile - 1>(x.rows - row, [&]<int M>() { tile_to_output<M>(w, block, x, row, b, y, y_stride); });
}

// int8 with one scale per 32 inputs: scale = max|x| / 127, q = x / scale to the nearest, ties to even.
inline void quantize_row(const float* x, int k, const QuantizedRows& out, int row) {
  const int groups = k / kActivationGroup;
  for (int g = 0; g < groups; g++) {
    const f32x16 a = load<f32x16>(x + g * 32), b = load<f32x16>(x + g * 32 + 16);
    const float largest = reduce_max(max(abs(a), abs(b)));
    const float scale = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
    int8_t* q = out.q + size_t(row) * k + g * 32;
    float half_sum[2];
    for (int h = 0; h < 2; h++) {
      const f32x16 nearest = ((h ? b : a) * inverse + 12582912.0f) - 12582912.0f;
      const i32x16 integer = __builtin_convertvector(nearest, i32x16);
      store(q + 16 * h, __builtin_convertvector(integer, i8x16));
      half_sum[h] = reduce_add(nearest);
      out.sum16[size_t(row) * groups * 2 + g * 2 + h] = half_sum[h];
    }
    const size_t at = size_t(row) * groups + g;
    out.scale[at] = scale;
    out.sum32[at] = half_sum[0] + half_sum[1];
    out.scaled_sum[at] = scale * out.sum32[at];
  }
}

inline void round_bf16_row(const float* x, int k, uint16_t* out) {
  int i = 0;
  for (; i + kLanes <= k; i += kLanes) store(out + i, to_bf16(load<f32x16>(x + i)));
  if (i < k) {
    f32x16 rest = {};
    std::memcpy(&rest, x + i, size_t(k - i) * sizeof(float));
    const u16x16 rounded = to_bf16(rest);
    std::memcpy(out + i, &rounded, size_t(k - i) * sizeof(uint16_t));
  }
}

// One row of a packed matrix, back in float32: the exact values the format stands for.
inline void embed_row(const PackedMatrix& w, int row, float scale, float* y) {
  const int block = row / kLanes, lane = row % kLanes;
  const auto scale_at = [&](const void* scales, int g) {
    f32x16 v = load_scales(w, scales, size_t(block) * (w.k / w.group) + g);
    return v[lane];
  };
  switch (w.format) {
    case Format::f32:
      for (int k = 0; k < w.k; k++) y[k] = load<float>(w.data + ((size_t(block) * w.k + k) * kLanes + lane) * 4) * scale;
      return;
    case Format::f16:
      for (int k = 0; k < w.k; k++)
        y[k] = from_f16(load<u16x16>(w.data + (size_t(block) * w.k + k) * kLanes * 2))[lane] * scale;
      return;
    case Format::bf16:
      for (int k = 0; k < w.k; k++) {
        const uint16_t h = load<uint16_t>(w.data + ((size_t(block) * w.k + k / 2 * 2) * kLanes + lane * 2 + k % 2) * 2);
        y[k] = bits<float>(uint32_t(h) << 16) * scale;
      }
      return;
    case Format::q4:
    case Format::q8: break;
  }
  const bool four = w.format == Format::q4;
  const uint8_t* data = w.data + size_t(block) * w.k * kLanes / (four ? 2 : 1);
  for (int g = 0; g < w.k / w.group; g++) {
    const float s = scale_at(w.scale, g), low = w.minimum ? scale_at(w.minimum, g) : 0.0f;
    for (int i = 0; i < w.group; i++) {
      const int k = g * w.group + i, j = k % 32;
      const uint8_t q = four ? (data[k / 32 * 256 + j % 16 / 4 * 64 + lane * 4 + j % 4] >> (j / 16 * 4)) & 15
                             : data[(k / 4 * kLanes + lane) * 4 + k % 4];
      y[k] = ((float(q) - w.zero) * s + low) * scale;
    }
  }
}

}  // namespace headway::HEADWAY_ISA
