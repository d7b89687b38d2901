// Kernels that are right or wrong by what they are given, for planted.cpp.

__kernel void fill(__global int* out, int value) { out[get_global_id(0)] = value; }

__kernel void add(__global int* out, __global const int* x, int value) {
  out[get_global_id(0)] = x[get_global_id(0)] + value;
}

__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void divergent_barrier(__global int* out) {
  __local int shared[32];
  shared[get_local_id(0)] = (int)get_local_id(0);
  if (get_local_id(0) < 16) barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = shared[31 - get_local_id(0)];
}

// Where a barrier between the write and the read was forgotten, local memory still holds NaN.
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void missing_barrier(__global float* out) {
  __local float shared[32];
  shared[get_local_id(0)] = (float)get_local_id(0);
  out[get_global_id(0)] = shared[31 - get_local_id(0)];
}
