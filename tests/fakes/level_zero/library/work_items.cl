// The indices of a work-item, and barriers.
#include "base.clh"

#define ZG_INLINE ZG_OVERLOAD __attribute__((always_inline))

size_t ZG_INLINE get_local_id(uint d) { return d < 3 ? zg_item->local_id[d] : 0; }
size_t ZG_INLINE get_group_id(uint d) { return d < 3 ? zg_item->group_id[d] : 0; }
size_t ZG_INLINE get_num_groups(uint d) { return d < 3 ? zg_item->groups[d] : 1; }
size_t ZG_INLINE get_local_size(uint d) { return d < 3 ? zg_item->local_size[d] : 1; }
size_t ZG_INLINE get_global_size(uint d) { return get_num_groups(d) * get_local_size(d); }
size_t ZG_INLINE get_global_id(uint d) {
  return get_group_id(d) * get_local_size(d) + get_local_id(d);
}

uint ZG_INLINE get_sub_group_local_id(void) { return zg_item->lane; }
uint ZG_INLINE get_sub_group_size(void) { return zg_item->lanes; }
uint ZG_INLINE get_sub_group_id(void) { return zg_item->sub_group; }
uint ZG_INLINE get_num_sub_groups(void) { return zg_item->sub_groups; }

void ZG_OVERLOAD work_group_barrier(uint flags, memory_scope scope) { zg_barrier(); }
