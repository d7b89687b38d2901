// The subcommand diverge, which computes runs again by their recorded command lines; flipped bits.
#include "tests/support/audit_chain.h"
#include "tests/tools/command.h"
#include "tools/options/fields.h"
#include "tools/run/audited_run.h"

namespace zg::testing {
namespace {

const std::string run =
    "train --data sort --n-layer 2 --n-head 2 --n-embd 16 --score-samples 0 --log-interval 0 "
    "--batch-size 2 --grad-accum 2 --steps 6 --threads 1 ";

/// The result of diverge as JSON, and its status.
struct Result {
  nlohmann::json json;
  int status;
};
Result diverged(const TemporaryFolder& folder, const std::vector<std::string>& words) {
  std::vector<std::string> all = {"diverge"};
  all.insert(all.end(), words.begin(), words.end());
  all.insert(all.end(), {"--json", folder / "result"});
  const Outcome outcome = zerograd(all);
  INFO(outcome.error);
  REQUIRE(outcome.status <= 1);
  Result result{json_lines(folder / "result").front(), outcome.status};
  CHECK(result.json["text"].get<std::string>() + "\n" == outcome.out);
  return result;
}

// The first output that differs between two audits; "none" without one.
std::string first_op(const std::string& one, const std::string& other) {
  for (const auto& field : compare(tools::read_audit(one), tools::read_audit(other)).step)
    if (field.field.starts_with("ops.")) return field.field;
  return "none";
}

}  // namespace

TEST_CASE("diverge finds step, unit, op and element of two audits without further flags") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other";
  const std::string saves = " --save-interval 2 --save-top-k -1 --save ";
  checked(called(run + "--audit " + one + " --audit-interval 4" + saves + (folder / "saved")));
  checked(called(run + "--audit " + other + " --weight-decay 0.2"));
  const Result result = diverged(folder, {one, other});
  CHECK(result.status == 1);
  CAPTURE(result.json.dump());
  CHECK(result.json["result"] == "reproduced");
  CHECK(result.json["step"] == 0);
  CHECK(result.json["fields"][0]["field"] == "units.block.0");
  CHECK(contains(result.json["op"]["field"], " step "));
  CHECK(contains(result.json["op"]["field"], ": optimizer_update "));
  CHECK(result.json["element"]["first"] != result.json["element"]["second"]);
  CHECK(result.json["settings"][0]["field"] == "settings.run.weight_decay");
  // Another layout with the same bits.
  checked(called(run + "--ranks 2 --grad-accum 1 --zero-stage 3 --audit " + other));
  CHECK(diverged(folder, {one, other}).status == 0);
}

TEST_CASE("diverge compares two command lines, in one of which a bit flips") {
  const TemporaryFolder folder;
  const std::string ranks = run + "--ranks 2 --grad-accum 1 --zero-stage 2";
  CHECK(diverged(folder, {ranks, ranks + " --prefetch-units 1"}).status == 0);
  const struct {
    const char *fault, *op;
    int step = 3;
  } cases[] = {{"parameter,at=5,bit=20", "1/masters/"},
               {"activation,at=12,bit=22", "1/compute/"},
               {"gradient,at=2,bit=22", "1/compute/"},
               {"message,at=3,bit=22", "1/communication/"},
               // Updated parameters, which rank 1 has wrong from the next step on.
               {"message,at=7,bit=22", "1/communication/7 collective: all_gather block.0 ", 4}};
  for (const auto& [fault, op, step] : cases) {
    CAPTURE(fault);
    const Result result =
        diverged(folder, {ranks, ranks + " --inject rank=1,step=3,fault=flip,kind=" + fault});
    CAPTURE(result.json.dump());
    CHECK(result.json["step"] == step);
    REQUIRE(result.json.contains("op"));
    CHECK(result.json["op"]["step"] == 3);
    CHECK(contains(result.json["text"], "in the step before") == (step == 4));
    CHECK(contains(result.json["op"]["field"], op));
    CHECK(result.json["element"]["first"] != result.json["element"]["second"]);
  }
}

TEST_CASE("a bit that flips in the copy of a tensor rank is found in its step") {
  const TemporaryFolder folder;
  const std::string audit = folder / "audit", ranks = run + "--ranks 2 --tensor-parallel 2";
  const std::string flip = " --inject rank=1,step=3,fault=flip,at=1,kind=";
  for (const std::string kind : {"parameter,bit=20", "moment,bit=30"}) {
    const Result result = diverged(folder, {ranks, ranks + flip + kind});
    CAPTURE(result.json.dump());
    CHECK(result.json["step"] == 3);
    CHECK(contains(result.json["fields"].dump(), "\"copies.transformer.wpe.weight.rank_1\""));
    CHECK(contains(result.json["op"]["field"],
                   kind.starts_with("parameter") ? "1/masters/1 " : "1/compute/"));
  }
  // The stage in which a bit flips is named, not one that computes later.
  const std::string stages = run + "--ranks 4 --tensor-parallel 2 --pipeline-parallel 2";
  const Result result = diverged(
      folder, {stages, stages + " --inject rank=1,step=3,fault=flip,at=9,kind=activation,bit=22"});
  CAPTURE(result.json.dump());
  CHECK(result.json["step"] == 3);
  CHECK(contains(result.json["op"]["field"], "1/compute/9 "));
  // Tensor ranks with 2 and 1 rows of the embedding divide it at other elements over data ranks.
  CHECK(contains(zerograd(run +
                          "--n-embd 128 --ranks 4 --tensor-parallel 2 --zero-stage 1 --steps 4 "
                          "--grad-accum 1 --audit " +
                          audit + " --inject rank=3,step=3,fault=flip,at=1,kind=moment,bit=30")
                     .error,
                 "{\"transformer.wpe.weight\":{\"tensor_rank_0\":\""));
  // The run itself says so, and its record.
  const std::string warning = "after step 3 copies of parameters differ: {\"";
  const Outcome flipped =
      zerograd(ranks + " --audit-interval 4 --audit " + audit + flip + "moment,bit=30");
  CHECK(flipped.status == 0);
  CHECK(contains(flipped.error,
                 "warning: --audit: " + warning + "transformer.wpe.weight\":{\"rank_0\":\""));
  CHECK(contains(checked(called("audit " + audit), 1).out,
                 "line 5: after step 3 copies of a parameter differ: transformer.wpe.weight: "
                 "rank_0: \""));
  CHECK(contains(called("audit " + audit).out, "\", rank_1: \""));
  // Slices of 1024 elements at 0 and 1024 are not copies of each other.
  CHECK(!contains(checked(zerograd("train --data sort --n-layer 1 --n-head 8 --n-embd 512 --steps "
                                   "1 --score-samples 0 --ranks 2 --tensor-parallel 2 --audit " +
                                   audit))
                      .error,
                  "copies of parameters differ"));
}

TEST_CASE("the first output that differs is on the first stage of a pipeline") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other";
  for (const char* stages : {"--ranks 2 --pipeline-parallel 2 ",
                             "--ranks 3 --n-layer 3 --pipeline-parallel 3 --grad-accum 3 "}) {
    const std::string all = run + stages + "--steps 1 --audit-ops 0:1 --audit ";
    checked(called(all + one));
    const auto first = [&](const std::string& flags) {
      checked(called(all + other + flags));
      return first_op(one, other);
    };
    CAPTURE(stages);
    CHECK(first("") == "none");
    CHECK(contains(first(" --dropout 0.2"), "ops.0/compute/1 forward embedding: dropout y "));
    const std::string flip = " --inject step=0,fault=flip,at=3,bit=22,kind=activation,rank=";
    CHECK(contains(first(flip + "0"), "ops.0/compute/3 "));
    CHECK(contains(first(flip + "1"), "ops.1/compute/3 "));
  }
}

TEST_CASE("recomputed outputs and other buckets are no difference") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other";
  const std::string all = run + "--ranks 2 --zero-stage 3 --steps 2 --audit-ops 0:2 --audit ";
  checked(called(all + one));
  for (const char* flags : {" --activation-checkpoint", " --reduce-bucket-size 1000"}) {
    CAPTURE(flags);
    checked(called(all + other + flags));
    CHECK(contains(checked(called("audit " + one + " " + other)).out, "equal: 2 steps"));
  }
  // They do not hide another difference, and a rank's parameters decide what the rank adds up.
  checked(called(all + other + " --activation-checkpoint --weight-decay 0.2"));
  CHECK(contains(first_op(one, other), "optimizer_update"));
  checked(called(all + other + " --param-persistence-threshold 0"));
  CHECK(first_op(one, other) == "none");
}

TEST_CASE("a bit that flipped in a recorded run is a fault of this run") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other";
  checked(called(run + "--audit " + one));
  checked(called(run + "--audit " + other +
                 " --inject rank=0,step=2,fault=flip,kind=moment,at=7,bit=30"));
  const Result result = diverged(folder, {one, other});
  CAPTURE(result.json.dump());
  CHECK(result.json["result"] == "fault");
  CHECK(result.json["faulty"] == "B");
  CHECK(result.json["step"].get<int>() >= 2);
  // A parameter that flips only in a checkpoint leaves the run as it was, and is found by a replay.
  checked(called(run + "--audit " + other + " --save " + (folder / "saved") +
                 " --save-interval 2 --save-top-k -1 --inject "
                 "rank=0,step=3,fault=flip,kind=checkpoint,at=3,bit=20"));
  CHECK(contains(checked(called("audit " + one + " " + other)).out, "equal: 6 steps"));
  CHECK(contains(checked(zerograd("audit " + other + " --replay 2..3")).out, "equal: 2 steps"));
  CHECK(contains(checked(zerograd("audit " + other + " --replay 4..5"), 1).out, "step 4 differs"));
}

TEST_CASE("diverge repeats variables, programs, initial weights and resumes of a run") {
  const TemporaryFolder folder;
  const std::string one = folder / "one", other = folder / "other", saved = folder / "saved";
  CHECK(diverged(folder, {run, "ZG_CPU_ISA=portable " ZG_COMMAND " " + run}).status == 0);
  // Resumed after three steps, with another rate.
  const std::string saves = " --save-top-k -1 --save " + saved + " --audit " + other;
  checked(called(run + "--audit " + one));
  checked(called(run + "--exit-interval 3" + saves));
  checked(called("train --score-samples 0 --log-interval 0 --lr 6e-4 --resume " + saved + saves));
  Result result = diverged(folder, {one, other});
  CAPTURE(result.json.dump());
  CHECK(result.json["result"] == "reproduced");
  CHECK(result.json["step"] == 3);
  CHECK(contains(result.json["settings"].dump(), "run.rate"));
  // No setting tells two checkpoints of a step apart; the command lines do.
  const std::string moved = folder / "moved",
                    resumed = "train --score-samples 0 --steps 8 --resume ";
  checked(called(run + "--weight-decay 0.2 --save " + moved));
  result = diverged(folder, {resumed + saved + " --weight-decay 0.1 --lr 5e-4",
                             resumed + moved + " --weight-decay 0.1 --lr 5e-4"});
  CAPTURE(result.json.dump());
  CHECK(result.json["step"] == 6);
  CHECK(contains(result.json["fields"][0]["field"], "units."));
  CHECK(contains(result.json["text"],
                 "Flags that differ: --resume: " + saved + " and " + moved + "."));
}

TEST_CASE("a replay has all flags of its record but those that write") {
  const TemporaryFolder folder;
  checked(called(run + "--steps 1 --audit " + (folder / "audit")));
  nlohmann::json words = {"train"};
  std::string kept, left_out, settings;
  tools::TrainOptions options;
  for (const tools::FieldGroup& group : tools::field_groups())
    for (const tools::Field& field : group.fields) {
      if (field.flag.names.empty()) continue;
      const Flag flag = flag_of(field, options);
      words.push_back(flag.names.front());
      if (!flag.value.empty()) words.push_back("1");
      if (group.title != "output" && group.title != "checkpoints")
        settings += flag.names.front() + " ";
    }
  std::string lines = read_file(folder / "audit");
  const size_t begin = lines.find("[\"train\""), end = lines.find(']', begin) + 1;
  write_file(folder / "audit", rebuilt_chain(lines.replace(begin, end - begin, words.dump())));
  const tools::RunSource source{.title = "A", .name = folder / "audit"};
  for (const auto& [flag, value] : tools::audited_run(source).command) kept += flag + " ";
  for (const std::string word : words)
    if (contains(settings, word + " ") && !contains(kept, word + " ")) left_out += word + " ";
  CHECK(left_out == "--inject ");
  for (const char* output : {"--audit ", "--metrics ", "--save ", "--resume ", "--exit-interval "})
    CHECK_FALSE(contains(kept, output));
}

TEST_CASE("a replay from a checkpoint leaves out the flags of the first weights") {
  const TemporaryFolder folder;
  const std::string model = folder / "model", first = folder / "first", audit = folder / "audit";
  checked(called(run + "--steps 1 --save " + first));
  checked(called("export " + first + " --hf " + model));
  const std::string saves =
      " --steps 4 --save-interval 2 --save-top-k -1 --audit-interval 2 --audit " + audit;
  for (const std::string& begin : {"train --data sort --score-samples 0 --log-interval 0 --lora 2 "
                                   "--from-hf " +
                                       model,
                                   run + "--init " + first}) {
    CAPTURE(begin);
    checked(
        called(begin + saves + " --save " + (folder / ("of_" + begin.substr(begin.size() - 5)))));
    CHECK(contains(checked(zerograd("audit " + audit + " --replay 2..3")).out,
                   "equal: 2 steps, 2 to 3 of "));
  }
}

TEST_CASE("diverge refuses files and command lines that it cannot compute again") {
  const TemporaryFolder folder;
  check_refused("diverge " + (folder / "nothing") + " " + (folder / "nothing"), 5,
                "cannot be read");
  CHECK(zerograd({"diverge", "train --data sort --steps", run}).status == 2);
  const Outcome other = zerograd({"diverge", "traim --data sort", run});
  CHECK(other.status == 2);
  CHECK(contains(other.error, "or a command line of train or finetune, got traim --data sort"));
  const Outcome quote = zerograd({"diverge", "train --data 'sort", run});
  CHECK(quote.status == 2);
  CHECK(contains(quote.error, "expected a closing '"));
}

}  // namespace zg::testing
