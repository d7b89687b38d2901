#pragma once

namespace zg::hpu {

/// Lanes of the sub-groups that multiply tiles of bf16 on the device (DPAS): 8 on Arc, 16 on later
/// GPUs, 0 where there is no such thing. Level Zero 1.4 cannot be asked, and a module whose
/// instruction is missing may build nevertheless: so a known product is made first, once for each
/// device of the process.
int dpas_lanes(int index);

}  // namespace zg::hpu
