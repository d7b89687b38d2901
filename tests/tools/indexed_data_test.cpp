#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tools/run/data_file.h"

// Megatron's datasets; the fixtures are made by tests/reference/make_indexed_fixtures.py.
namespace zg::testing {
namespace {

namespace fs = std::filesystem;

const std::string indexed_fixture = std::string(ZG_FIXTURES) + "indexed/uint16";
const std::string sizes =
    " --n-layer 1 --n-head 2 --n-embd 8 --block-size 8 --log-interval 0 --seed 7 ";

}  // namespace

TEST_CASE("a Megatron dataset by PREFIX or PREFIX.bin gives one hash, on any ranks and resumed") {
  const TemporaryFolder folder;
  const std::string flags = sizes + "--split 8,2,0 --train-batch-size 4 --batch-size 1 --steps ";
  const std::string whole = hash_of("train --data " + indexed_fixture + flags + "12");
  CHECK(hash_of("train --data-path " + indexed_fixture + ".bin" + flags + "12 --ranks 2") == whole);
  // A vocabulary that is given needs no look at the tokens and is the same model.
  CHECK(hash_of("train --data " + indexed_fixture + flags + "12 --vocab-size 50257") == whole);
  CHECK(hash_of("train --data " + indexed_fixture + sizes +
                "--split 9,1,0 --train-batch-size 4 --batch-size 1 --steps 12") != whole);
  CHECK(hash_of("train --data " + indexed_fixture + flags + "12 --order sequential") != whole);

  const std::string save = folder / "run";
  hash_of("train --data " + indexed_fixture + flags + "5 --save " + save);
  CHECK(hash_of("train --resume " + save + " --steps 12") == whole);
  const Outcome eval = checked(zerograd("eval " + save));
  CHECK(line_after(eval.out, "val loss ").size() > 3);
  CHECK(zerograd("eval " + save + " --split 1,1,0").out != eval.out);
}

TEST_CASE("a resumed run warns when the contents of its Megatron dataset have changed") {
  const TemporaryFolder folder;
  for (const char* end : {".bin", ".idx"})
    fs::copy_file(indexed_fixture + end, folder / "data" + end);
  const std::string save = folder / "run";
  hash_of("train --data " + (folder / "data") + sizes + "--split 1 --steps 2 --save " + save);
  CHECK(zerograd("train --resume " + save + " --steps 3").error.find("other contents") ==
        std::string::npos);
  std::string index = read_file(folder / "data.idx");
  index[34] = static_cast<char>(index[34] - 1);  // the first document loses its last token
  write_file(folder / "data.idx", index);
  CHECK(zerograd("train --resume " + save + " --steps 4").error.find("other contents") !=
        std::string::npos);
}

TEST_CASE("contents with one checksum and another size have changed") {
  // The checksum of a Megatron dataset is that of its index.
  const tools::Contents saved{.bytes = 8, .checksum = "a"}, now{.bytes = 9, .checksum = "a"};
  CHECK(tools::change_of(saved, now, "d") ==
        "data: d has other contents: 8 bytes in the checkpoint, 9 now");
  CHECK(tools::change_of(saved, saved, "d").empty());
}

TEST_CASE("train refuses a vocabulary too large for memory before it uses memory of that size") {
  const TemporaryFolder folder;
  write_file(folder / "text.txt", std::string(500, 'a') + "b");
  const std::string large = sizes + "--steps 1 --vocab-size 1000000000 --data ";
  for (const std::string& data :
       {indexed_fixture + " --split 1", (folder / "text.txt") + " --sample-interval 1"}) {
    CAPTURE(data);
    const Outcome trained = checked(zerograd("train" + large + data), 3),
                  planned = checked(zerograd("plan" + large + data));
    CHECK(contains(trained.error, " by plan; this machine has "));
    // One byte for each token of the vocabulary would be 1e9.
    CHECK(trained.resident_bytes < 200'000'000);
    CHECK(planned.resident_bytes < 200'000'000);
  }
}

TEST_CASE("train refuses wrong --split, --val-fraction and --data by name") {
  const TemporaryFolder folder;
  const std::string train = "train" + sizes + "--steps 1 --data ";
  write_file(folder / "text.txt", std::string(500, 'a') + "b");
  check_refused(train + indexed_fixture + " --split 1 --val-fraction 0.1", 2,
                "--split: expected one of --val-fraction and --split, got both");
  check_refused(
      train + indexed_fixture + " --block-size 4 --val-fraction 0.1", 2,
      "--val-fraction: expected data PATH.txt or llm.c's PATH.bin, got the documents of ");
  check_refused(train + (folder / "text.txt") + " --split 9,1", 2,
                "--split: expected data PREFIX with PREFIX.bin and PREFIX.idx, got ");
  check_refused("train --data sort --split 9,1", 2, "got sort; leave the flag out");
  check_refused(train + indexed_fixture + " --split 1 --eval-interval 1", 2,
                "--eval-interval: expected a --split with documents to validate on, got none");
  for (const char* split : {"9,x", "1,1,1,1", "-1,2", "", "1,,1", "1,"})
    check_refused("train --data sort --split=" + std::string(split), 2,
                  "--split: expected up to three weights from 0, like 949,50,1, got '");
  check_refused(
      train + (folder / "none"), 2,
      "--data: '" + (folder / "none") + "' does not exist, and " + (folder / "none.idx") +
          " does not exist; expected sort, adder, PATH.txt, PATH.bin, PATH.jsonl or PREFIX");
  check_refused(train + folder.path(), 2, "--data: '" + folder.path() + "' is a folder, and ");
  fs::copy_file(indexed_fixture + ".bin", folder / "alone.bin");
  check_refused(
      train + (folder / "alone.bin"), 5,
      "; if this is a Megatron dataset, its index " + (folder / "alone.idx") + " is missing");
  fs::copy_file(indexed_fixture + ".idx", folder / "half.idx");
  check_refused(train + (folder / "half"), 5, folder / "half.bin");
  check_refused(train + indexed_fixture + " --split 1 --vocab-size 50000 --steps 30", 5,
                "expected ids below the vocabulary's 50000, got ");
  fs::copy_file(indexed_fixture + ".bin", folder / "half.bin");
  check_refused(train + (folder / "half") + " --split 1 --metrics " + (folder / "half.idx"), 2,
                "--data and --metrics: both name ");
}

}  // namespace zg::testing
