// Operations on one row: each result depends on that row alone, in one fixed order of additions.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "simd.hpp"
#include "types.hpp"

namespace headway::HEADWAY_ISA {

// Calls f(lanes, count) for 16 values at a time and once, zero-filled, for what is left.
template <class F> inline void for_lanes(int width, F f) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, kLanes);
  if (i < width) f(i, width - i);
}

inline void rms_norm(const float* x, const float* weight, int d, float eps, float* y) {
  f32x16 squares = {};
  for_lanes(d, [&](int i, int count) { f32x16 v = load_part(x + i, count); squares = fma(v, v, squares); });
  const float inverse = 1.0f / __builtin_sqrtf(reduce_add(squares) / float(d) + eps);
  for_lanes(d, [&](int i, int count) {
    store_part(y + i, load_part(x + i, count) * inverse * load_part(weight + i, count), count);
  });
}

// Half-split rotation: pairs (i, i + d/2); table holds d/2 cosines, then d/2 sines.
inline void rope(const float* x, const float* table, int d, float* y) {
  const int half = d / 2;
  for_lanes(half, [&](int i, int count) {
    const f32x16 a = load_part(x + i, count), b = load_part(x + half + i, count);
    const f32x16 c = load_part(table + i, count), s = load_part(table + half + i, count);
    store_part(y + i, a * c - b * s, count);
    store_part(y + half + i, b * c + a * s, count);
  });
}

// The argument is bounded so that the denominator is finite; below, the result is 0 as far as x * sigmoid(x) can tell.
inline f32x16 sigmoid(f32x16 x) { return reciprocal(1.0f + exp(select(x < -87.0f, splat(87.0f), -x))); }

// tanh(u) = 2 sigmoid(2u) - 1, so 0.5 x (1 + tanh(u)) = x sigmoid(2u).
inline f32x16 gelu_tanh(f32x16 x) {
  const f32x16 u = 0.7978845608028654f * fma(x * x * x, splat(0.044715f), x);
  return x * sigmoid(2.0f * u);
}

inline void gated(const float* gate, const float* up, int width, Activation kind, float* y) {
  for_lanes(width, [&](int i, int count) {
    const f32x16 g = load_part(gate + i, count);
    const f32x16 activated = kind == Activation::silu ? g * sigmoid(g) : gelu_tanh(g);
    store_part(y + i, activated * load_part(up + i, count), count);
  });
}

inline void add(const float* x, const float* y, int width, float* out) {
  for_lanes(width, [&](int i, int count) { store_part(out + i, load_part(x + i, count) + load_part(y + i, count), count); });
}

// Loops the compiler runs on whole vectors, over runs that stay in the nearest cache while their largest is looked for again.
inline Peak find_peak(const float* row, int vocab) {
  constexpr int kWidth = 16, kRun = 1024;
  float most = -std::numeric_limits<float>::infinity();
  int from = 0;  // the run that has it
  uint32_t bad = 0;
  for (int start = 0; start < vocab; start += kRun) {
    const int end = std::min(start + kRun, vocab);
    float largest[kWidth];
    std::fill_n(largest, kWidth, -std::numeric_limits<float>::infinity());
    int i = start;
    for (; i + kWidth <= end; i += kWidth)
      for (int j = 0; j < kWidth; j++) largest[j] = row[i + j] > largest[j] ? row[i + j] : largest[j];
    for (; i < end; i++) largest[0] = std::max(largest[0], row[i]);
    for (i = start; i < end; i++) {
      const uint32_t bits = std::bit_cast<uint32_t>(row[i]);
      bad |= uint32_t((bits & 0x7f800000u) == 0x7f800000u) & uint32_t(bits != 0xff800000u);
    }
    const float here = *std::max_element(largest, largest + kWidth);
    if (here > most) most = here, from = start;
  }
  const float* run = row + from;
  return {int(std::find(run, run + std::min(kRun, vocab - from), most) - row), bad == 0};
}

}  // namespace headway::HEADWAY_ISA
