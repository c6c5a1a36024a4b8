// Sixteen lanes at a time, whatever the machine: the compiler's vector types lower to zmm, two ymm, or four xmm or NEON
// registers. Everything is in a namespace named after the instruction set, so that no two translation units share code.
#pragma once
#include <cstring>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headway::HEADWAY_ISA {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

// Rows (or queries) a kernel works on together: as many accumulators as the registers hold.
#if defined(__AVX512F__)
constexpr int kTile = 8;
#elif defined(__AVX2__)
constexpr int kTile = 4;
#else
constexpr int kTile = 2;
#endif

template <class V> inline V load(const void* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
template <class V> inline void store(void* p, const V& v) { std::memcpy(p, &v, sizeof v); }
template <class To, class From> inline To bits(const From& v) { static_assert(sizeof(To) == sizeof(From)); To t; std::memcpy(&t, &v, sizeof t); return t; }

inline f32x16 splat(float x) { return f32x16{} + x; }
inline f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// a * b + c with one rounding where the machine has it, two where it has not; the same on every path of one build.
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];
  std::memcpy(x, &a, 64), std::memcpy(y, &b, 64), std::memcpy(z, &c, 64);
  z[0] = _mm256_fmadd_ps(x[0], y[0], z[0]);
  z[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
  return load<f32x16>(z);
#else
  return a * b + c;
#endif
}

inline f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) { return mask ? yes : no; }
inline f32x16 max(f32x16 a, f32x16 b) { return select(a > b, a, b); }
inline f32x16 abs(f32x16 a) { return bits<f32x16>(bits<u32x16>(a) & 0x7fffffffu); }

// Horizontal results in one fixed order: halves are folded, 8 then 4 then 2 then 1.
template <class Fold> inline float reduce(f32x16 v, Fold fold) {
  float lane[16];
  store(lane, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = fold(lane[i], lane[i + half]);
  return lane[0];
}
inline float reduce_add(f32x16 v) { return reduce(v, [](float a, float b) { return a + b; }); }
inline float reduce_max(f32x16 v) { return reduce(v, [](float a, float b) { return a > b ? a : b; }); }

inline f32x16 from_bf16(u16x16 h) { return bits<f32x16>(__builtin_convertvector(h, u32x16) << 16); }

// Round to nearest, ties to even; NaN stays NaN.
inline u16x16 to_bf16(f32x16 x) {
  u32x16 u = bits<u32x16>(x);
  u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  u32x16 quiet = (u >> 16) | 0x40u;
  i32x16 is_nan = (u & 0x7fffffffu) > 0x7f800000u;
  return __builtin_convertvector(is_nan ? quiet : rounded, u16x16);
}

inline f32x16 from_f16(u16x16 h) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(bits<__m256i>(h));
#elif defined(__F16C__)
  __m256 x[2];
  x[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)&h));
  x[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)&h + 1));
  return load<f32x16>(x);
#else
  // Exponent and mantissa moved into place are the value times 2^-112, denormals included.
  u32x16 u = __builtin_convertvector(h, u32x16);
  f32x16 magnitude = bits<f32x16>((u & 0x7fffu) << 13) * 0x1p112f;
  i32x16 special = (u & 0x7c00u) == 0x7c00u;
  u32x16 inf_or_nan = ((u & 0x7fffu) << 13) | 0x7f800000u;
  u32x16 m = special ? inf_or_nan : bits<u32x16>(magnitude);
  return bits<f32x16>(m | ((u & 0x8000u) << 16));
#endif
}

// exp(x), about 1 ulp: x = n ln2 + r, a degree-6 polynomial on |r| <= ln2/2 (Cephes' coefficients), scaled by 2^n. What would
// be denormal is 0: arithmetic on denormals is a hundred times slower, and a softmax weight below 1e-37 weighs nothing.
inline f32x16 exp(f32x16 x) {
  const i32x16 vanishes = x < -87.0f;
  x = select(vanishes, splat(-87.0f), x);
  x = select(x > 88.7f, splat(89.0f), x);
  f32x16 n = fma(x, splat(1.44269504088896341f), splat(12582912.0f)) - 12582912.0f;
  f32x16 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  const f32x16 y = fma(p, r * r, r) + 1.0f;
  const i32x16 e = __builtin_convertvector(n, i32x16), half = e >> 1;  // in two steps, since 2^128 is not a float
  const f32x16 scaled = y * bits<f32x16>((half + 127) << 23) * bits<f32x16>((e - half + 127) << 23);
  return select(vanishes, splat(0.0f), scaled);
}

// acc[lane] += sum over j of w[4 lane + j] * x[j], exact: w unsigned bytes, x four signed bytes.
inline i32x16 dot4(i32x16 acc, u8x64 w, const int8_t* x) {
#if defined(__AVX512VNNI__)
  // The broadcast is part of the instruction; written out because the compiler would spend a register and a load on it.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(x)));
  return acc;
#elif defined(__AVX2__)
  // Widened to 16 bits first: two products of a full byte do not fit what vpmaddubsw saturates to.
  __m256i part[2], sum[2];
  std::memcpy(part, &w, 64), std::memcpy(sum, &acc, 64);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i xs = _mm256_set1_epi32(load<int32_t>(x));
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(xs, 8), 8), odd = _mm256_srai_epi16(xs, 8);
  for (int i = 0; i < 2; i++) {
    __m256i w_even = _mm256_blendv_epi8(part[i], zero, _mm256_set1_epi16((short)0xff00)), w_odd = _mm256_srli_epi16(part[i], 8);
    sum[i] = _mm256_add_epi32(sum[i], _mm256_add_epi32(_mm256_madd_epi16(w_even, even), _mm256_madd_epi16(w_odd, odd)));
  }
  return load<i32x16>(sum);
#else
  u32x16 u = bits<u32x16>(w);
  for (int j = 0; j < 4; j++) acc += bits<i32x16>((u >> (8 * j)) & 255u) * int32_t(x[j]);
  return acc;
#endif
}

// Calls f<M>() for M == size, 1 <= size <= Largest: every size of a tile has its own instantiation.
template <int Largest, class F> inline void with_size(int size, F f) {
  if constexpr (Largest > 0) {
    if (size == Largest) f.template operator()<Largest>();
    else with_size<Largest - 1>(size, f);
  }
}

}  // namespace headway::HEADWAY_ISA
