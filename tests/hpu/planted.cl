// Kernels for planted.cpp. Most are wrong only with certain arguments or sizes.
#ifdef ZG_SUB_GROUPS

uint8 __attribute__((overloadable)) intel_sub_group_block_read8(__local const uint* from);

__kernel __attribute__((intel_reqd_sub_group_size(ZG_SUB_GROUPS))) void block(__global uint* out,
                                                                              int first,
                                                                              int of_lane) {
  __local uint shared[256] __attribute__((aligned(16)));
  out[get_global_id(0)] =
      intel_sub_group_block_read8(shared + first + of_lane * (int)get_local_id(0)).s0;
}

__kernel __attribute__((intel_reqd_sub_group_size(ZG_SUB_GROUPS))) void divergent_sub_group(
    __global float* out) {
  float x = (float)get_local_id(0);
  if (get_local_id(0) < 5) x = sub_group_reduce_add(x);
  out[get_global_id(0)] = x;
}

#else

__kernel void fill(__global int* out, int value) { out[get_global_id(0)] = value; }

__kernel void fill_below(__global int* out, int value) { out[-1 - (int)get_global_id(0)] = value; }

__kernel void add(__global int* out, __global const int* x, int value) {
  out[get_global_id(0)] = x[get_global_id(0)] + value;
}

__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void divergent_barrier(__global int* out) {
  __local int shared[32];
  shared[get_local_id(0)] = (int)get_local_id(0);
  if (get_local_id(0) < 16) barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = shared[31 - get_local_id(0)];
}

__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void past_local_array(__global int* out,
                                                                               int at) {
  __local int shared[32];
  shared[get_local_id(0)] = (int)get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = shared[(int)get_local_id(0) + at];
}

// Each work-item reads what another one writes.
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void missing_local_barrier(
    __global float* out) {
  __local float shared[32];
  shared[get_local_id(0)] = (float)get_local_id(0);
  out[get_global_id(0)] = shared[31 - get_local_id(0)];
}

#endif
