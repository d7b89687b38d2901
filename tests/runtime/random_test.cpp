#include "zerograd/runtime/random.h"

using namespace zg;

TEST_CASE("Philox4x32-10 gives the known answers of the Random123 distribution") {
  CHECK(Philox::block({0, 0, 0, 0}, 0) ==
        Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox::block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff) ==
        Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform maps random words to numbers from 0 to below 1 with a mean near 1/2") {
  CHECK(uniform(0) == 0.0f);
  CHECK(uniform(0xffffffff) < 1.0f);
  double sum = 0;
  for (uint32_t i = 0; i < 10000; ++i) sum += uniform(Philox::block({i, 0, 0, 0}, 7)[0]);
  CHECK(sum / 10000 == doctest::Approx(0.5).epsilon(0.02));  // 3.5 standard errors
}

TEST_CASE("hash_name gives FNV-1a hashes, and different names get different hashes") {
  CHECK(hash_name("") == 0xcbf29ce484222325u);
  CHECK(hash_name("a") == 0xaf63dc4c8601ec8cu);
  CHECK(hash_name("block.0.attention") != hash_name("block.1.attention"));
}
