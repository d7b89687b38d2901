// A kernel that needs more registers than a GPU's thread has. tests/long/hpu-offline must report
// that it spills.
__kernel __attribute__((intel_reqd_sub_group_size(32))) void spilling(__global float8* out,
                                                                      __global const float8* x,
                                                                      int rounds) {
  const size_t at = get_global_id(0) * 8;
  float8 a = x[at], b = x[at + 1], c = x[at + 2], d = x[at + 3];
  float8 e = x[at + 4], f = x[at + 5], g = x[at + 6], h = x[at + 7];
  for (int r = 0; r < rounds; ++r) {
    const float8 before = a;
    a = a * b + c;
    b = b * c + d;
    c = c * d + e;
    d = d * e + f;
    e = e * f + g;
    f = f * g + h;
    g = g * h + before;
    h = h * before + a;
  }
  out[at] = a + b + c + d;
  out[at + 1] = e + f + g + h;
  out[at + 2] = a * b * c * d;
  out[at + 3] = e * f * g * h;
}

// Reads and writes 2 bytes a lane, which it must report, too.
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void narrow(__global ushort* out,
                                                                     __global const ushort* x) {
  out[get_global_id(0)] = x[get_global_id(0)] + 1;
}
