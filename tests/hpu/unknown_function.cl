// Calls what no device has.
float __attribute__((overloadable)) unknown_function(float x);

__kernel void calls_it(__global float* out) { out[0] = unknown_function(out[0]); }
