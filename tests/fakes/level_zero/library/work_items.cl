// The indices of a work-item, and barriers.
#include "base.clh"

#define ZG_INLINE ZG_OVERLOAD __attribute__((always_inline))

uint ZG_INLINE get_work_dim(void) { return 3; }
size_t ZG_INLINE get_local_id(uint d) { return d < 3 ? zg_item->local_id[d] : 0; }
size_t ZG_INLINE get_group_id(uint d) { return d < 3 ? zg_item->group_id[d] : 0; }
size_t ZG_INLINE get_num_groups(uint d) { return d < 3 ? zg_item->groups[d] : 1; }
size_t ZG_INLINE get_local_size(uint d) { return d < 3 ? zg_item->local_size[d] : 1; }
size_t ZG_INLINE get_enqueued_local_size(uint d) { return get_local_size(d); }
size_t ZG_INLINE get_global_offset(uint d) { return 0; }
size_t ZG_INLINE get_global_size(uint d) { return get_num_groups(d) * get_local_size(d); }
size_t ZG_INLINE get_global_id(uint d) {
  return get_group_id(d) * get_local_size(d) + get_local_id(d);
}
size_t ZG_INLINE get_local_linear_id(void) {
  return (get_local_id(2) * get_local_size(1) + get_local_id(1)) * get_local_size(0) +
         get_local_id(0);
}
size_t ZG_INLINE get_global_linear_id(void) {
  return (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) +
         get_global_id(0);
}

uint ZG_INLINE get_sub_group_local_id(void) { return zg_item->lane; }
uint ZG_INLINE get_sub_group_size(void) { return zg_item->lanes; }
uint ZG_INLINE get_max_sub_group_size(void) { return zg_item->most_lanes; }
uint ZG_INLINE get_sub_group_id(void) { return zg_item->sub_group; }
uint ZG_INLINE get_num_sub_groups(void) { return zg_item->sub_groups; }
uint ZG_INLINE get_enqueued_num_sub_groups(void) { return zg_item->sub_groups; }

void ZG_OVERLOAD barrier(uint flags) { zg_barrier(); }
void ZG_OVERLOAD work_group_barrier(uint flags) { zg_barrier(); }
void ZG_OVERLOAD work_group_barrier(uint flags, memory_scope scope) { zg_barrier(); }
void ZG_OVERLOAD sub_group_barrier(uint flags) { zg_meet(&flags, 0, "sub_group_barrier"); }
void ZG_OVERLOAD sub_group_barrier(uint flags, memory_scope scope) { sub_group_barrier(flags); }
// Work-items of a group take turns on one thread, so memory fences have nothing to do.
void ZG_OVERLOAD mem_fence(uint flags) {}
void ZG_OVERLOAD atomic_work_item_fence(uint flags, memory_order order, memory_scope scope) {
  __sync_synchronize();
}
