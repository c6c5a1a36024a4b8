// Plain values shared by the program and the kernels. No code here: this header is seen by translation units built for
// different instruction sets, so an inline function could be taken from the wrong one.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headway {

constexpr int kLanes = 16;           // outputs in a block of a packed matrix, tokens in a sub-block of the KV cache
constexpr int kMaxTile = 16;         // the most queries in an attention tile, on any instruction set
constexpr int kActivationGroup = 32; // inputs that share one int8 scale
constexpr int kAttentionSplit = 256; // absolute positions whose partial results are formed together, then merged in order
constexpr int kFixedTile = 16;       // rows of fixed-point activations that lie together
constexpr int kFixedPanel = 1024;    // the most inputs that share a scale in fixed point
constexpr int kByteOffset = 128 * 256 + 128;  // a weight of 0: byte 128, and a half to round by
constexpr int kMaxHeadDim = 512;

enum class Format : int { f32, f16, bf16, q4, q8 };

// A second description of quantised weights, for fixed_point.hpp: W = unit * (byte - 128). A panel is `panel` inputs, of which
// there are `panels`. Of 4 bits, byte is the upper half of the 16 bits of multiplier * q + offset; of more, it is kept.
//   multiplier, offset  [n/16][k/64][16][2]   16 bits, two groups of 32 side by side; no offset: kByteOffset - zero * multiplier
//   unit                [n/16][panels][16]
//   bytes               [n/16][k/4][16][4]
struct FixedPoint {
  int panel, panels;
  const int16_t* multiplier;  // null: not of 4 bits
  const int16_t* offset;      // null: none
  const float* unit;          // null: the matrix has no such description
  const uint8_t* bytes;       // null: not kept
};

// Files of packed weights are known by this number: raise it with every change to what PackedMatrix's bytes mean.
constexpr int kPackedLayout = 2;

// A weight matrix [n, k] repacked into the order the kernels read: blocks of 16 outputs, k inside.
//   f32, f16, bf16  data [n/16][k][16]
//   q8         data [n/16][k/4][16][4] bytes
//   q4         data [n/16][k/32][4][16][4] bytes: byte (i, lane, j) holds input 4i+j low, input 16+4i+j high
//              with a second description [n/16][k/32][4][4][16]: byte (i, lane, j) of output 4*lane+i, inputs j and 16+j
//   with a second description, q8 is left out unless rows are looked up; so are scales and minima
//   scale, minimum (q4, q8)  [n/16][k/group][16], f16 or f32
// W = scale * (q - zero) + minimum. The last block is padded with zero scales.
struct PackedMatrix {
  Format format;
  int n, k;
  int group;            // inputs that share a scale: 16 or 32
  float zero;
  bool wide_scales;     // scales and minima are f32, not f16
  const uint8_t* data;
  const void* scale;
  const void* minimum;  // null: none
  FixedPoint fixed;
};

// Rows of int8 activations: x ~ scale * q in groups of 32, scaled by the group's own largest value. Rows are kept in tiles of
// `Kernels::tile` (the last may be smaller: M rows), rows innermost, so that a kernel walks one stream:
//   q           [tile][k/4][M][4]
//   scale, sum32, scaled_sum  [tile][k/32][M]       sum32: sum of q, exact; scaled_sum: scale * sum32
//   sum16                     [tile][k/16][M]
struct QuantizedRows {
  int8_t* q;
  float* scale;
  float* sum32;
  float* sum16;
  float* scaled_sum;
};

// Rows of 14-bit activations: x = scale * (128 * high + low), scaled by the largest value of each panel. In tiles with room for
// kFixedTile rows, of which `tile_rows` are used:
//   high, low            [tile][k/64][row][64]
//   scale                [row][panels]
//   high_sums, low_sums  [row][panels]
struct FixedRows {
  int tile_rows;  // rows are spread evenly: the less of a tile is used, the less is loaded
  int panel, panels;
  int8_t* high;
  int8_t* low;
  float* scale;
  int32_t* high_sums;
  int32_t* low_sums;
};

// The input of a linear op, in float and, where a part is quantised, in the forms the parts take.
struct LinearInput {
  int rows;
  const float* x;   // [rows], stride below
  int stride;
  QuantizedRows quantized;
  FixedRows fixed;
};

// One layer's part of every block of the pool, in sub-blocks of 16 tokens: a block holds block_size / 16 of them.
//   [block: block_stride numbers apart][kv_head][sub] { keys [d/2][16][2], then values [16/2][d][2] }
// Sixteen scores are formed without a horizontal sum; pairs, since two bf16 numbers are unpacked, or multiplied, at once; keys
// beside values, since who reads the ones in order has the others fetched ahead.
struct KVLayer {
  int num_kv_heads, head_dim, num_blocks, block_size;
  bool is_bf16;
  size_t block_stride;
  void* keys;    // the first sub-block's
  void* values;  // likewise
};

// Where a linear op's results go, from its first column on: y = x W^T + bias, and added to `residual` where there is one.
struct LinearOutput {
  float* y;
  int stride;
  const float* bias;      // null: none
  const float* residual;  // null: none
  int residual_stride;
};

struct AttentionQuery {
  const float* q;  // [d]
  float* out;      // [d]
  int position;
};

// Up to kMaxTile queries of one sequence and one kv head.
struct AttentionTile {
  const KVLayer* kv;
  const int32_t* block_table;
  int kv_head;
  float scale;
  int window;  // 0: none
  int num_queries;
  AttentionQuery queries[kMaxTile];
};

enum class Activation : int { silu, gelu_tanh };

// What one pass over a row tells: the first of its largest numbers, and whether it has no NaN and no plus infinity. If it has one,
// `best` means nothing.
struct Peak {
  int best;
  bool is_sound;
};

// One instruction set's implementation of everything that touches numbers.
struct Kernels {
  const char* name;
  int tile;  // rows in a tile of `quantize_row`
  void (*quantize_row)(const float* x, int k, const QuantizedRows& out, int row, int rows);
  // The bytes of one block of 4-bit weights; null where the instruction set has no use for them.
  void (*widen_block)(const PackedMatrix& w, int block, uint8_t* wide);
  // Row `row` in fixed point; null where the instruction set has no use for it.
  void (*fix_row)(const float* x, int k, const FixedRows& out, int row);
  // Columns 16 * first .. 16 * last - 1 of the output, for all rows.
  void (*linear_blocks)(const PackedMatrix& w, int first, int last, const LinearInput& x, const LinearOutput& out);
  void (*embed_row)(const PackedMatrix& table, int row, float scale, float* y);
  void (*rms_norm)(const float* x, const float* weight, int d, float eps, float* y);
  void (*rope)(const float* x, const float* table, int d, float* y);
  void (*store_key)(const KVLayer& kv, int block, int offset, int head, const float* k);
  void (*store_value)(const KVLayer& kv, int block, int offset, int head, const float* v);
  int (*attention_tile)(const KVLayer& kv);  // the most queries `attention` takes at once
  void (*attention)(const AttentionTile& tile);
  void (*gated)(const float* gate, const float* up, int width, Activation kind, float* y);
  void (*add)(const float* x, const float* y, int width, float* out);
  Peak (*find_peak)(const float* row, int width);
  // Runs the inner loop of the integer kernels on registers alone; returns the operations in one iteration.
  int (*int8_operations)(int iterations);
};

}  // namespace headway
