#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

// A bitonic network (Batcher 1968) sorts items: a key, in whose order as an unsigned number the
// elements come, and the element's place in its row. Items differ, so the order is the only one.
// Padding comes behind every element: its place is beyond the row.
#define TILE 2048  // SortedRows::tile of reduce_chunks.h

#ifdef ZG_I64
typedef long real;
typedef ulong2 item;  // key, place
#define made_item(key, place) ((ulong2)(key, (ulong)(place)))
#define follows(a, b) ((a).s0 != (b).s0 ? (a).s0 > (b).s0 : (a).s1 > (b).s1)
#define place_of(item) ((long)(item).s1)
#define last_key (~0UL)
#define key_of(x) ((ulong)(x) ^ 1UL << 63)
#else
typedef ulong item;
#define made_item(key, place) ((ulong)(key) << 32 | (ulong)(place))
#define follows(a, b) ((a) > (b))
#define place_of(item) ((long)((item)&0xffffffffUL))
#define last_key (~0u)
#ifdef ZG_I32
typedef int real;
#define key_of(x) ((uint)(x) ^ 0x80000000u)
#else
static inline uint key_of(real x) {
  const float value = widened(x);
  const uint bits = value == 0.0f ? 0u : as_uint(value);  // -0 and 0 are equal
  if (isnan(value)) return last_key;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
#endif
#endif

/// Whether the items at `low` and behind it have to be exchanged, in a step of the network that
/// merges sequences of length / 2.
#define are_exchanged(a, b, low, segment, length) \
  (follows(a, b) == (((low) & ((segment)-1) & (length)) == 0))

/// One work-group for each tile: SortPass of reduce_chunks.h.
element_kernel void sort_tiles(__global const real* x, __global item* items, __global long* y,
                               long rows, long extent, long inner, long count, long from, long to,
                               long size, long segment, long first, long last, long kept,
                               int descending) {
  __local item tile[TILE];
  const long begin = get_group_id(0) * TILE;
  const int own = (int)get_local_id(0);
  for (int i = own; i < TILE; i += ZG_GROUP) {
    const long row = quotient(begin + i, size), place = begin + i - row * size;
    if (row < rows && from >= 0) {
      tile[i] = items[from + begin + i];
    } else if (row < rows && place < extent) {
      const long outer = quotient(row, inner);
      const real value = x[(outer * extent + place) * inner + row - outer * inner];
      tile[i] = descending ? made_item(~key_of(value), place) : made_item(key_of(value), place);
    } else {
      tile[i] = made_item(last_key, place);
    }
  }
  for (long length = first; length <= last; length *= 2)
    for (int distance = (int)min(length, (long)TILE) / 2; distance > 0; distance /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int pair = own; pair < TILE / 2; pair += ZG_GROUP) {
        const int low = (pair & -distance) * 2 + (pair & (distance - 1)), high = low + distance;
        const item a = tile[low], b = tile[high];
        if (!are_exchanged(a, b, begin + low, segment, length)) continue;
        tile[low] = b;
        tile[high] = a;
      }
    }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = own; i < TILE; i += ZG_GROUP) {
    const long row = quotient(begin + i, size), place = begin + i - row * size;
    if (row < rows && to >= 0 && i < kept) items[to + get_group_id(0) * kept + i] = tile[i];
    if (row >= rows || to >= 0 || place >= count) continue;
    const long outer = quotient(row, inner);
    y[(outer * count + place) * inner + row - outer * inner] = place_of(tile[i]);
  }
}

/// One step with a distance of a tile or more, one work-item for each pair.
element_kernel void exchange(__global item* items, long pairs, long size, long length,
                             long distance) {
  const long pair = element_index();
  if (pair >= pairs) return;
  const long low = (pair & -distance) * 2 + (pair & (distance - 1)), high = low + distance;
  const item a = items[low], b = items[high];
  if (!are_exchanged(a, b, low, size, length)) return;
  items[low] = b;
  items[high] = a;
}
