// Two tasks of a team write to the same variable. ThreadSanitizer must report it: the
// synchronisation that team.cpp announces must not hide races inside a parallel region.
#include <cstdint>
#include <cstdio>

#include "zerograd/runtime/cpu/team.h"

int main() {
  int64_t shared = 0;
  zg::cpu::team(2, 100000, [&](int64_t task, int) { shared += task; });
  std::printf("sum %lld\n", static_cast<long long>(shared));
}
