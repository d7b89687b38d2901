// Two tasks of a team write one place. ThreadSanitizer must report it: the edges that team() tells
// it about may not hide what happens inside.
#include <cstdint>
#include <cstdio>

#include "zerograd/runtime/cpu/team.h"

int main() {
  int64_t shared = 0;
  zg::cpu::team(2, 100000, [&](int64_t task, int) { shared += task; });
  std::printf("sum %lld\n", static_cast<long long>(shared));
}
