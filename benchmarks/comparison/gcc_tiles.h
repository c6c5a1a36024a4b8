// Included before llama.cpp's sources. GCC 12's own tile functions do not tell the compiler which memory they read, so that
// it leaves out the stores before them: llama.cpp's tiles then have no shape, and its first product is an illegal instruction.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
#include <immintrin.h>
#undef _tile_loadd
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#define _tile_loadd(tile, base, stride)       \
  do {                                        \
    __asm__ volatile("" ::: "memory");        \
    _tile_loadd_internal(tile, base, stride); \
  } while (0)
#endif
