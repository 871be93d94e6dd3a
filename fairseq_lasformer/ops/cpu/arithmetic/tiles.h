// Products of 8-bit numbers by matrix tiles (Intel AMX): eight registers of 16 rows of 64 bytes each.
//
// The layout of packed weights, four inputs of 16 outputs in 64 bytes, is that of a tile, so nothing is rearranged. With
// LASFORMER_SOFTWARE_TILES, the instructions are defined in C++, which tests everything else on any processor with VNNI.
#pragma once

#include <cstdint>
#include <cstring>

#include "arithmetic.h"

namespace lasformer {
namespace LASFORMER_TARGET {

constexpr int64_t kTile = 16;  // rows of a tile, and 32-bit numbers of a row

#if defined(__AMX_INT8__)

// Before the other functions, and after them, in the same thread.
inline void configure_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
  } config;
  static_assert(sizeof config == 64);
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void release_tiles() { asm volatile("tilerelease"); }

// gcc's intrinsics do not say that they read memory, so what was just written there could be missing
#define LASFORMER_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(static_cast<int64_t>(stride)) : "memory")
#define LASFORMER_TILE_STORE(tile, to, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(static_cast<int64_t>(stride)) : "memory")
// sums += rows (unsigned) * weights (signed)
#define LASFORMER_TILE_DOT(sums, rows, weights) \
  asm volatile("tdpbusd %%tmm" #weights ", %%tmm" #rows ", %%tmm" #sums : :)

#elif defined(LASFORMER_SOFTWARE_TILES)

struct SoftwareTile {
  uint8_t bytes[kTile][64];
};
inline thread_local SoftwareTile software_tiles[8];
inline thread_local bool software_tiles_configured = false;

inline void configure_tiles() { software_tiles_configured = true; }
inline void release_tiles() { software_tiles_configured = false; }

inline SoftwareTile& software_tile(int tile) {
  if (!software_tiles_configured) __builtin_trap();
  return software_tiles[tile];
}

inline void software_load(int tile, const void* from, int64_t stride) {
  for (int r = 0; r < kTile; ++r) std::memcpy(software_tile(tile).bytes[r], static_cast<const char*>(from) + r * stride, 64);
}

inline void software_store(int tile, void* to, int64_t stride) {
  for (int r = 0; r < kTile; ++r) std::memcpy(static_cast<char*>(to) + r * stride, software_tile(tile).bytes[r], 64);
}

inline void software_dot(int sums, int rows, int weights) {
  for (int r = 0; r < kTile; ++r) {
    for (int quad = 0; quad < kTile; ++quad) {
      for (int o = 0; o < kTile; ++o) {
        uint32_t sum;
        std::memcpy(&sum, &software_tile(sums).bytes[r][4 * o], 4);
        for (int j = 0; j < 4; ++j) {
          sum += static_cast<uint32_t>(software_tile(rows).bytes[r][4 * quad + j] *
                                       static_cast<int8_t>(software_tile(weights).bytes[quad][4 * o + j]));
        }
        std::memcpy(&software_tile(sums).bytes[r][4 * o], &sum, 4);
      }
    }
  }
}

#define LASFORMER_TILE_LOAD(tile, from, stride) software_load(tile, from, stride)
#define LASFORMER_TILE_STORE(tile, to, stride) software_store(tile, to, stride)
#define LASFORMER_TILE_DOT(sums, rows, weights) software_dot(sums, rows, weights)

#endif

#if defined(LASFORMER_TILE_DOT)

constexpr int64_t kTiledRows = 2 * kTile, kTiledPanels = 2;

// Rows of the next product by tiles, given how many are left; 0: none.
inline int64_t tiled_rows(int64_t left, int64_t quads) {
  if (left < kTile || quads % kTile) return 0;
  return left < kTiledRows ? kTile : kTiledRows;
}

// Sums of kR tiles of rows and kP panels of outputs, as of `tile_int8`. Four tiles of sums, two of rows, two of weights.
template <int kR, int kP>
void tiled_int8(const uint8_t* x, int64_t stride, const int8_t* weight, int64_t panel, int64_t quads, const int32_t* sums,
                int32_t* out) {
  alignas(64) int32_t shift[kP * kPanel];  // of the 128 that is added to the rows
  for (int64_t o = 0; o < kP * kPanel; ++o) shift[o] = -sums[o];
  LASFORMER_TILE_LOAD(0, shift, 0);  // the same in every row
  if constexpr (kP > 1) LASFORMER_TILE_LOAD(1, shift + kPanel, 0);
  if constexpr (kR > 1) LASFORMER_TILE_LOAD(2, shift, 0);
  if constexpr (kR > 1 && kP > 1) LASFORMER_TILE_LOAD(3, shift + kPanel, 0);
  for (int64_t i = 0; i < quads; i += kTile) {
    const uint8_t* rows = x + 4 * i;
    const int8_t* weights = weight + i * kPanel * 4;
    LASFORMER_TILE_LOAD(4, rows, stride);
    LASFORMER_TILE_LOAD(6, weights, 64);
    LASFORMER_TILE_DOT(0, 4, 6);
    if constexpr (kR > 1) {
      LASFORMER_TILE_LOAD(5, rows + kTile * stride, stride);
      LASFORMER_TILE_DOT(2, 5, 6);
    }
    if constexpr (kP > 1) {
      LASFORMER_TILE_LOAD(7, weights + panel, 64);
      LASFORMER_TILE_DOT(1, 4, 7);
    }
    if constexpr (kR > 1 && kP > 1) LASFORMER_TILE_DOT(3, 5, 7);
  }
  constexpr int64_t kStride = kP * kPanel * 4;
  LASFORMER_TILE_STORE(0, out, kStride);
  if constexpr (kP > 1) LASFORMER_TILE_STORE(1, out + kPanel, kStride);
  int32_t* const below = out + kTile * kP * kPanel;
  if constexpr (kR > 1) LASFORMER_TILE_STORE(2, below, kStride);
  if constexpr (kR > 1 && kP > 1) LASFORMER_TILE_STORE(3, below + kPanel, kStride);
}

inline void tiled_int8(int64_t rows, int64_t panels, const uint8_t* x, int64_t stride, const int8_t* weight, int64_t panel,
                       int64_t quads, const int32_t* sums, int32_t* out) {
  const auto tile = rows > kTile ? (panels > 1 ? tiled_int8<2, 2> : tiled_int8<2, 1>)
                                 : (panels > 1 ? tiled_int8<1, 2> : tiled_int8<1, 1>);
  tile(x, stride, weight, panel, quads, sums, out);
}

#else

inline void configure_tiles() {}
inline void release_tiles() {}
constexpr int64_t kTiledRows = 0, kTiledPanels = 0;
inline int64_t tiled_rows(int64_t, int64_t) { return 0; }
inline void tiled_int8(int64_t, int64_t, const void*, int64_t, const int8_t*, int64_t, int64_t, const int32_t*, int32_t*) {}

#endif

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
