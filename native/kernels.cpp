// The table of kernels of one instruction set. Compiled once for each, with HEADWAY_ISA naming the namespace.
#include "attention.hpp"
#include "linear.hpp"
#include "rowwise.hpp"
#include "types.hpp"

#define HEADWAY_TEXT_(x) #x
#define HEADWAY_TEXT(x) HEADWAY_TEXT_(x)

#if defined(__AMX_INT8__)
#include "matrix_attention.hpp"
#define HEADWAY_FIXED_POINT widen_block, fix_row
#else
#define HEADWAY_FIXED_POINT nullptr, nullptr
#endif

namespace headway::HEADWAY_ISA {

inline int attention_tile(const KVLayer& kv) {
#if defined(__AMX_INT8__)
  if (fits_matrix_attention(kv)) return kMatrixQueries;
#endif
  (void)kv;
  return kTile;
}

inline void attention(const AttentionTile& t) {
#if defined(__AMX_INT8__)
  if (fits_matrix_attention(*t.kv)) return matrix_attention(t);
#endif
  vector_attention(t);
}

extern const Kernels kernels;
const Kernels kernels = {
    HEADWAY_TEXT(HEADWAY_ISA), kTile, quantize_row, HEADWAY_FIXED_POINT, linear_blocks, embed_row, rms_norm,
    rope, store_key, store_value, attention_tile, attention, gated, add, find_peak, int8_operations,
};

}  // namespace headway::HEADWAY_ISA
