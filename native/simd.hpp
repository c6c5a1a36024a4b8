// Sixteen lanes at a time, whatever the machine: one zmm register, two ymm, or four xmm or NEON registers. Everything is in a
// namespace named after the instruction set, so that no two translation units share code.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headway::HEADWAY_ISA {

// Register size, and the rows (or queries) a kernel works on together: as many accumulators as the registers hold.
#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64, kTile = 8;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32, kTile = 4;
#else
constexpr int kRegisterBytes = 16, kTile = 2;
#endif

// 64 bytes of T in as many registers as they take. The compiler's own 64-byte vectors mean the same, but where the machine has
// no such register it keeps them in memory.
template <class T> struct Lanes {
  typedef T Part __attribute__((vector_size(kRegisterBytes)));
  static constexpr int kParts = 64 / kRegisterBytes;
  Part part[kParts];

  template <class F> static inline __attribute__((always_inline)) Lanes each(F f) {
    Lanes out;
#pragma GCC unroll 4
    for (int i = 0; i < kParts; i++) out.part[i] = f(i);
    return out;
  }
  T operator[](int lane) const {
    constexpr int kPerPart = kRegisterBytes / int(sizeof(T));
    return part[lane / kPerPart][lane % kPerPart];
  }
};
using f32x16 = Lanes<float>;
using i32x16 = Lanes<int32_t>;
using u32x16 = Lanes<uint32_t>;
using u8x64 = Lanes<uint8_t>;
struct u16x16 { uint16_t lane[16]; };  // halves in memory, on their way to or from floats

template <class V> constexpr int kPartsOf = 0;
template <class T> constexpr int kPartsOf<Lanes<T>> = Lanes<T>::kParts;

// Register by register: as one copy of 64 bytes the compiler would go through memory.
template <class V> inline __attribute__((always_inline)) V load(const void* p) {
  V v;
  if constexpr (kPartsOf<V> == 0) std::memcpy(&v, p, sizeof v);
  else
#pragma GCC unroll 4
    for (int i = 0; i < kPartsOf<V>; i++) std::memcpy(&v.part[i], static_cast<const char*>(p) + i * kRegisterBytes, kRegisterBytes);
  return v;
}
template <class V> inline __attribute__((always_inline)) void store(void* p, const V& v) {
  if constexpr (kPartsOf<V> == 0) std::memcpy(p, &v, sizeof v);
  else
#pragma GCC unroll 4
    for (int i = 0; i < kPartsOf<V>; i++) std::memcpy(static_cast<char*>(p) + i * kRegisterBytes, &v.part[i], kRegisterBytes);
}

// The same bits as another type.
template <class To, class From> inline __attribute__((always_inline)) To bits(const From& v) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (kPartsOf<To> && kPartsOf<From>) return To::each([&](int i) { return typename To::Part(v.part[i]); });
  else return load<To>(&v);
}

// The first `count` lanes of memory that may end there, the others zero; 16 or more are a whole vector.
inline f32x16 load_part(const float* p, int count) {
  if (count >= 16) return load<f32x16>(p);
  float lane[16] = {};
  std::memcpy(lane, p, size_t(count) * sizeof(float));
  return load<f32x16>(lane);
}
inline void store_part(float* p, const f32x16& v, int count) {
  if (count >= 16) return store(p, v);
  float lane[16];
  store(lane, v);
  std::memcpy(p, lane, size_t(count) * sizeof(float));
}

template <class T> inline Lanes<T> fill(T x) {
  return Lanes<T>::each([&](int) { return x - typename Lanes<T>::Part{}; });  // x - 0 is x, even for -0
}
inline f32x16 splat(float x) { return fill(x); }

#define HEADWAY_BINARY(op)                                                                                             \
  template <class T> inline Lanes<T> operator op(const Lanes<T>& a, const Lanes<T>& b) {                               \
    return Lanes<T>::each([&](int i) { return a.part[i] op b.part[i]; });                                              \
  }                                                                                                                    \
  template <class T> inline Lanes<T> operator op(const Lanes<T>& a, std::type_identity_t<T> b) { return a op fill(b); } \
  template <class T> inline Lanes<T> operator op(std::type_identity_t<T> a, const Lanes<T>& b) { return fill(a) op b; }
HEADWAY_BINARY(+)
HEADWAY_BINARY(-)
HEADWAY_BINARY(*)
HEADWAY_BINARY(/)
HEADWAY_BINARY(&)
HEADWAY_BINARY(|)
#undef HEADWAY_BINARY

// Comparisons give lanes of all ones where they hold.
#define HEADWAY_COMPARE(op)                                                                                            \
  template <class T> inline i32x16 operator op(const Lanes<T>& a, const Lanes<T>& b) {                                 \
    return i32x16::each([&](int i) { return i32x16::Part(a.part[i] op b.part[i]); });                                  \
  }                                                                                                                    \
  template <class T> inline i32x16 operator op(const Lanes<T>& a, std::type_identity_t<T> b) { return a op fill(b); }
HEADWAY_COMPARE(<)
HEADWAY_COMPARE(>)
HEADWAY_COMPARE(>=)
HEADWAY_COMPARE(==)
#undef HEADWAY_COMPARE

template <class T> inline Lanes<T> operator<<(const Lanes<T>& a, int n) {
  return Lanes<T>::each([&](int i) { return a.part[i] << n; });
}
template <class T> inline Lanes<T> operator>>(const Lanes<T>& a, int n) {
  return Lanes<T>::each([&](int i) { return a.part[i] >> n; });
}
template <class T> inline Lanes<T>& operator+=(Lanes<T>& a, const Lanes<T>& b) { return a = a + b; }
inline f32x16 operator-(const f32x16& a) { return f32x16::each([&](int i) { return -a.part[i]; }); }

template <class T> inline Lanes<T> select(const i32x16& mask, const Lanes<T>& yes, const Lanes<T>& no) {
  return Lanes<T>::each([&](int i) { return mask.part[i] ? yes.part[i] : no.part[i]; });
}
inline f32x16 max(const f32x16& a, const f32x16& b) { return select(a > b, a, b); }
inline f32x16 abs(const f32x16& a) { return bits<f32x16>(bits<u32x16>(a) & 0x7fffffffu); }

inline f32x16 to_float(const i32x16& v) {
  return f32x16::each([&](int i) { return __builtin_convertvector(v.part[i], f32x16::Part); });
}
inline i32x16 to_int(const f32x16& v) {  // of values that are whole already
  return i32x16::each([&](int i) { return __builtin_convertvector(v.part[i], i32x16::Part); });
}

// a * b + c with one rounding where the machine has it, two where it has not; the same on every path of one build.
inline f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) {
#if defined(__AVX512F__)
  return f32x16::each([&](int i) { return _mm512_fmadd_ps(a.part[i], b.part[i], c.part[i]); });
#elif defined(__FMA__)
  return f32x16::each([&](int i) { return _mm256_fmadd_ps(a.part[i], b.part[i], c.part[i]); });
#else
  return a * b + c;
#endif
}

// 1 / x of a finite x that is neither 0 nor denormal, about 1 ulp.
inline f32x16 reciprocal(const f32x16& x) {
#if defined(__AVX512F__)
  f32x16 r;  // an estimate of 14 bits and a step of Newton's: a fifth of the time of a division
  r.part[0] = _mm512_rcp14_ps(x.part[0]);
  r.part[0] = _mm512_fmadd_ps(r.part[0], _mm512_fnmadd_ps(x.part[0], r.part[0], _mm512_set1_ps(1.0f)), r.part[0]);
  return r;
#else
  return 1.0f / x;
#endif
}

// Horizontal results in one fixed order: halves are folded, 8 then 4 then 2 then 1.
template <class Fold> inline float reduce(const f32x16& v, Fold fold) {
#if defined(__AVX512F__)
  __m512 x = v.part[0];
  x = fold(x, _mm512_shuffle_f32x4(x, x, 0x4e));  // lanes + 8, + 4, then within four
  x = fold(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = fold(x, _mm512_permute_ps(x, 0x4e));
  x = fold(x, _mm512_permute_ps(x, 0xb1));
  return _mm512_cvtss_f32(x);
#else
  float lane[16];
  store(lane, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = fold(lane[i], lane[i + half]);
  return lane[0];
#endif
}
inline float reduce_add(const f32x16& v) { return reduce(v, [](auto a, auto b) { return a + b; }); }
inline float reduce_max(const f32x16& v) { return reduce(v, [](auto a, auto b) { return a > b ? a : b; }); }

inline u32x16 widen(const u16x16& h) {
#if defined(__AVX512F__)
  return bits<u32x16>(_mm512_cvtepu16_epi32(bits<__m256i>(h)));
#elif defined(__AVX2__)
  return u32x16::each([&](int i) { return u32x16::Part(_mm256_cvtepu16_epi32(load<__m128i>(h.lane + 8 * i))); });
#else
  uint32_t wide[16];
  for (int i = 0; i < 16; i++) wide[i] = h.lane[i];
  return load<u32x16>(wide);
#endif
}

inline u16x16 narrow(const u32x16& v) {
  uint32_t wide[16];
  store(wide, v);
  u16x16 h;
  for (int i = 0; i < 16; i++) h.lane[i] = uint16_t(wide[i]);
  return h;
}

inline f32x16 from_bf16(const u16x16& h) { return bits<f32x16>(widen(h) << 16); }

// Round to nearest, ties to even; NaN stays NaN.
inline u16x16 to_bf16(const f32x16& x) {
  const u32x16 u = bits<u32x16>(x);
  const u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  const i32x16 is_nan = bits<i32x16>(u & 0x7fffffffu) > 0x7f800000;
  return narrow(select(is_nan, quiet, rounded));
}

inline f32x16 from_f16(const u16x16& h) {
#if defined(__AVX512F__)
  return bits<f32x16>(_mm512_cvtph_ps(bits<__m256i>(h)));
#elif defined(__F16C__)
  return f32x16::each([&](int i) { return f32x16::Part(_mm256_cvtph_ps(load<__m128i>(h.lane + 8 * i))); });
#else
  // Exponent and mantissa moved into place are the value times 2^-112, denormals included.
  const u32x16 u = widen(h), magnitude = (u & 0x7fffu) << 13;
  const i32x16 is_special = (u & 0x7c00u) == 0x7c00u;
  const u32x16 finite = bits<u32x16>(bits<f32x16>(magnitude) * 0x1p112f);
  return bits<f32x16>(select(is_special, magnitude | 0x7f800000u, finite) | ((u & 0x8000u) << 16));
#endif
}

// exp(x), about 1 ulp: x = n ln2 + r, a degree-6 polynomial on |r| <= ln2/2 (Cephes' coefficients), scaled by 2^n. What would
// be denormal is 0: arithmetic on denormals is a hundred times slower, and a softmax weight below 1e-37 weighs nothing.
inline f32x16 exp(const f32x16& of) {
  f32x16 x = of;
#if defined(__AVX512F__)
  const __mmask16 counts = _mm512_cmp_ps_mask(x.part[0], _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
  x.part[0] = _mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(_mm512_set1_ps(-87.0f), x.part[0]));
#else
  const i32x16 vanishes = x < -87.0f;
  x = select(vanishes, splat(-87.0f), x);
  x = select(x > 88.7f, splat(89.0f), x);
#endif
  const f32x16 n = fma(x, splat(1.44269504088896341f), splat(12582912.0f)) - 12582912.0f;
  f32x16 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  const f32x16 y = fma(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
  f32x16 scaled_at_once;
  scaled_at_once.part[0] = _mm512_maskz_scalef_ps(counts, y.part[0], n.part[0]);
  return scaled_at_once;
#else
  const i32x16 e = to_int(n), half = e >> 1;  // in two steps, since 2^128 is not a float
  const f32x16 scaled = y * bits<f32x16>((half + 127) << 23) * bits<f32x16>((e - half + 127) << 23);
  return select(vanishes, splat(0.0f), scaled);
#endif
}

// The sum of up to 8 products of quads: total()[lane] = sum of w[4 lane + j] * x[j] over j and over the calls of add, exact.
// w holds unsigned bytes of at most Bits bits; x four signed bytes, none of them -128.
#if defined(__AVX512VNNI__)
template <int Bits> struct QuadSum {
  i32x16 sum = {};

  void add(const u8x64& w, const int8_t* x) {
    // The broadcast is part of the instruction; written out because the compiler would spend a register and a load on it.
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.part[0]) : "v"(w.part[0]), "m"(*reinterpret_cast<const int32_t*>(x)));
  }
  i32x16 total() const { return sum; }
};
#else
// Pairs of bytes are multiplied into 16 bits. For 4 bits, all eight sums of two such products fit: 8 * 2 * 15 * 127 < 2^15.
using i16x32 = Lanes<int16_t>;

inline i32x16 add_pairs(const i16x32& v) {
#if defined(__AVX2__)
  return i32x16::each([&](int i) { return i32x16::Part(_mm256_madd_epi16(__m256i(v.part[i]), _mm256_set1_epi16(1))); });
#else
  const i32x16 pairs = bits<i32x16>(v);
  return ((pairs << 16) >> 16) + (pairs >> 16);
#endif
}

template <int Bits> struct QuadSum {
  i32x16 sum = {};

  // A product of a full byte leaves no room for a second: the top bit goes by itself.
  void add(const u8x64& w, const int8_t* x) {
    sum += add_pairs(products(bits<u8x64>(bits<u32x16>(w) & 0x7f7f7f7fu), x));
    sum += add_pairs(products(bits<u8x64>(bits<u32x16>(w) & 0x80808080u), x));
  }
  i32x16 total() const { return sum; }

  // [2 lane + i] = w[4 lane + j] * x[j] + w[4 lane + k] * x[k], for two pairs (j, k) that make up the quad.
  static i16x32 products(const u8x64& w, const int8_t* x) {
#if defined(__AVX2__)
    const __m256i quad = _mm256_set1_epi32(load<int32_t>(x));
    return i16x32::each([&](int i) { return i16x32::Part(_mm256_maddubs_epi16(__m256i(w.part[i]), quad)); });
#else
    const auto pair = [&](int j) { return bits<i16x32>(fill(int32_t(uint32_t(uint16_t(x[j])) | uint32_t(x[j + 2]) << 16))); };
    const u32x16 even = bits<u32x16>(w) & 0x00ff00ffu, odd = (bits<u32x16>(w) >> 8) & 0x00ff00ffu;
    return bits<i16x32>(even) * pair(0) + bits<i16x32>(odd) * pair(1);
#endif
  }
};

template <> struct QuadSum<4> {
  i16x32 sum = {};

  void add(const u8x64& w, const int8_t* x) { sum += QuadSum<8>::products(w, x); }
  i32x16 total() const { return add_pairs(sum); }
};
#endif

// Calls f<M>() for M == size, 1 <= size <= Largest: every size of a tile has its own instantiation.
template <int Largest, class F> inline void with_size(int size, F f) {
  if constexpr (Largest > 0) {
    if (size == Largest) f.template operator()<Largest>();
    else with_size<Largest - 1>(size, f);
  }
}

}  // namespace headway::HEADWAY_ISA
