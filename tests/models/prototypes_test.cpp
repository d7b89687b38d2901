#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/grad.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/nn.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/values_optimizer.h"

// Programs of tools/examples, each in a namespace. Their headers are included above.
#define main run
namespace dpo_program {
#include "tools/examples/dpo.cpp"
}
namespace digits_program {
#include "tools/examples/digits.cpp"
}
namespace gan_program {
#include "tools/examples/gan.cpp"
}
namespace mamba_program {
#include "tools/examples/mamba.cpp"
}
namespace reward_program {
#include "tools/examples/reward.cpp"
}
namespace sophia_program {
#include "tools/examples/sophia.cpp"
}
namespace wgan_program {
#include "tools/examples/wgan.cpp"
}
#undef main

using namespace zg;
using namespace zg::testing;

TEST_CASE("prototypes learn as planned, and begin with PyTorch's gradients or Hessian products") {
  const Device device = Device::cpu();
  for (const auto& [name, run] : {std::pair("dpo", &dpo_program::run),
                                  {"digits", &digits_program::run},
                                  {"gan", &gan_program::run},
                                  {"mamba", &mamba_program::run},
                                  {"reward", &reward_program::run},
                                  {"sophia", &sophia_program::run},
                                  {"wgan", &wgan_program::run}}) {
    CAPTURE(name);
    const TemporaryFolder folder;
    std::string program = name, path = folder.path();
    char* arguments[] = {program.data(), path.data()};
    CHECK(run(2, arguments) == 0);
    const NamedTensors got =
        load_safetensors(folder / (program + ".gradients.safetensors"), device);
    const NamedTensors expected =
        load_safetensors(std::string(ZG_FIXTURES) + "prototypes/" + name + ".safetensors", device);
    CHECK(got.size() == expected.size());
    for (const auto& [parameter, gradient] : expected) {
      CAPTURE(parameter);
      REQUIRE(got.count(parameter) == 1);
      const std::vector<double> a = got.at(parameter).to_doubles(), b = gradient.to_doubles();
      REQUIRE(a.size() == b.size());
      double largest = 0, difference = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::fabs(b[i]));
        difference = std::max(difference, std::fabs(a[i] - b[i]));
      }
      CAPTURE(largest);
      CHECK(difference <= 1e-5 * largest);
    }
  }
}
