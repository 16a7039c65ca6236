// Included before llama.cpp's kernels for AMX where gcc compiles them. Its <amxtileintrin.h> names 8 of the 64
// bytes that ldtilecfg reads, and none of those that a tile is loaded from, so that gcc deletes the stores which
// fill them, and the first decode of several tokens dies of SIGILL or SIGSEGV. These name what is read.
#pragma once
#include <immintrin.h>

#ifdef __x86_64__
#undef _tile_loadconfig
#undef _tile_loadd_internal
#undef _tile_stream_loadd_internal

#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%X0" : : "m"(*(const char(*)[64])(config)) : "memory")

#define OUTRIDER_TILE_LOAD(name, tile, base, stride)                                  \
    __asm__ volatile("{" name "\t(%0,%1,1), %%tmm" #tile "|" name "\t%%tmm" #tile ", [%0+%1*1]}" \
                     : : "r"((const void *) (base)), "r"((long) (stride)) : "memory")
#define _tile_loadd_internal(tile, base, stride) OUTRIDER_TILE_LOAD("tileloadd", tile, base, stride)
#define _tile_stream_loadd_internal(tile, base, stride) OUTRIDER_TILE_LOAD("tileloaddt1", tile, base, stride)
#endif
