// The matrix unit's tile registers (Intel AMX): eight of up to 16 rows of 64 bytes. Multiplications take as long as the left
// operand has rows.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace headway::HEADWAY_ISA {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void shape(int tile, int num_rows, int bytes) { rows[tile] = uint8_t(num_rows), row_bytes[tile] = uint16_t(bytes); }
};

// A thread's tiles keep their shapes until others are wanted.
inline void use_tiles(const TileShapes& shapes) {
  static thread_local const TileShapes* current = nullptr;
  if (current == &shapes) return;
  _tile_loadconfig(&shapes);
  current = &shapes;
}

// Tile loads do not tell the compiler what memory they read: stores before this are made before loads after it.
inline void before_tile_loads() { asm volatile("" ::: "memory"); }

}  // namespace headway::HEADWAY_ISA
