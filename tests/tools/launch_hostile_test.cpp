#include <cstdlib>
#include <filesystem>
#include <random>

#include "tests/support/placed_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tests/tools/fake_programs.h"

namespace zg::testing {
namespace {

/// A folder at the front of PATH with a fake of every program that a hostile word could start. Each
/// call of a fake leaves a file.
class Trap {
 public:
  bool is_untouched() const {
    return !std::filesystem::exists(called_) && !std::filesystem::exists(canary());
  }
  std::string canary() const { return folder_ / "canary"; }
  std::string hosts(const std::string& text) const { return programs_.hosts(text); }

 private:
  TemporaryFolder folder_;
  const std::string called_ = folder_ / "called";
  const FakePrograms programs_{{"mpirun", "mpiexec.hydra", "srun", "ssh", "rsh", "pdsh", "touch",
                                "curl", "sh", "bash", "orted"},
                               "echo \"$0 $*\" >> '" + called_ + "'\n"};
};

// Not valid host names. If a shell or an option parser interpreted one, the canary file would be
// created.
std::vector<std::string> hostile_names(const std::string& canary) {
  const std::string touch = "touch${IFS}" + canary;
  return {"-oProxyCommand=" + touch,
          "--hostfile=" + canary,
          "-x",
          "-",
          "--",
          "$(" + touch + ")",
          "`" + touch + "`",
          "a;" + touch,
          "a&&" + touch,
          "a||" + touch,
          "a|" + touch,
          "a&" + touch,
          "a>" + canary,
          "a<" + canary,
          "'a'",
          "\"a\"",
          "a'",
          "\\a",
          "a\\",
          "$HOME",
          "${PATH}",
          "~root",
          "*",
          "?",
          "[a-z]",
          "{a,b}",
          "(a)",
          "!a",
          "a,b",
          "a:22",
          "a@b",
          "root@a",
          "a/b",
          "../a",
          "/etc/passwd",
          "a=b",
          "a%00",
          "a+b",
          "_a",
          ".a",
          "..",
          "[::1]",
          "fe80::1%eth0",
          std::string("a\0b", 3),
          "a\x1b[2J",
          "a\x7f",
          "\xC3\xA9",
          std::string("\xE2\x80\xAE") + "a",       // text from right to left
          std::string("\xEF\xBC\x8D") + "oProxy",  // a wide hyphen
          "\xD0\xB0",                              // a Cyrillic a
          "\xC0\xAF",
          "\xFF\xFE",
          std::string("a\xC2\xA0") + "b",
          std::string(254, 'a'),
          std::string(100'000, 'a')};
}

const std::vector<std::string> hostile_slots = {"slots=0",
                                                "slots=-1",
                                                "slots=4097",
                                                "slots=99999999999",
                                                "slots=2147483648",
                                                "slots=18446744073709551617",
                                                "slots=1e99",
                                                "slots=nan",
                                                "slots=inf",
                                                "slots=0x4",
                                                "slots=1.5",
                                                "slots=",
                                                "slots=+1",
                                                "slots==1",
                                                "slots=1;touch",
                                                "slots=$(touch)",
                                                "slots=1,2",
                                                "slots=`touch`",
                                                "slots",
                                                "SLOTS=1",
                                                "slot=1",
                                                "slots:1",
                                                "max_slots=1",
                                                "slots=1 max_slots=2",
                                                "slots=1 slots=1",
                                                "=1",
                                                "-n",
                                                "slots=\xC2\xB2",
                                                "slots=1\x1b[2J",
                                                "slots =1",
                                                "slots= 1",
                                                ""};

/// A hostfile, and the line that is wrong.
struct Hostfile {
  std::string text;
  int line = 1;
};

std::vector<Hostfile> hostile_files(const std::string& canary) {
  std::mt19937_64 random(50);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<Hostfile> files;
  // Some lines that are right come first, with blanks and comments among them.
  const auto add = [&](const std::string& line) {
    Hostfile file;
    for (size_t i = below(4); i > 0; --i) {
      const std::string before[] = {"good-" + std::to_string(i) + " slots=2", "", "# a comment",
                                    "\t good-" + std::to_string(i) + ".example  slots=1 # small"};
      file.text += before[below(4)] + (below(4) == 0 ? "\r\n" : "\n");
      ++file.line;
    }
    file.text += line + (below(2) == 0 ? "\n" : "\nlast slots=1");
    files.push_back(std::move(file));
  };
  const std::vector<std::string> names = hostile_names(canary);
  for (const std::string& name : names) add(name + " slots=1");
  for (const std::string& slots : hostile_slots) add("worker-0 " + slots);
  for (const char* again : {"a slots=1\na slots=1", "a slots=1\na slots=2"}) {
    files.push_back({again, 2});
    files.push_back({std::string("# twice\n\n") + again + "\n", 4});
  }
  for (int i = 0; i < 60; ++i)
    add(names[below(names.size())] + " " + hostile_slots[below(hostile_slots.size())]);
  const std::string signs = "$`;&|<>'\"\\(){}[]*?!~#=%+@:,/^ \t\v\x01\x1b\x7f\xC3\xFF";
  for (int i = 0; i < 60; ++i) {
    std::string name = "worker-0";
    name.insert(below(name.size() + 1), 1, signs[below(signs.find('#'))]);
    add(name + " slots=1");
  }
  return files;
}

std::string launch_error(const Outcome& outcome) {
  return line_after(outcome.error, "error: ConfigError: ");
}

}  // namespace

TEST_CASE("hostile hostfiles: each of 200 is refused by its line, and no command runs") {
  const Trap trap;
  const std::vector<Hostfile> files = hostile_files(trap.canary());
  CHECK(files.size() >= 200);
  for (const auto& [text, line] : files) {
    const std::string file = trap.hosts(text);
    const Outcome outcome = zerograd({"launch", "--hostfile", file, "train", "--data", "sort"});
    const std::string error = launch_error(outcome);
    INFO(text.substr(0, 300), ", error ", outcome.error);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK(flaw_of(error, file, text, false) == "");
    CHECK(place_in(error, file).line == line);
    REQUIRE(trap.is_untouched());
  }
  if (!missing_mpi().empty()) return;
  zerograd({"launch", "--hostfile", trap.hosts("a slots=1\n"), "train", "--data", "sort"});
  CHECK(!trap.is_untouched());  // the trap works
}

TEST_CASE("hostile selections: no word of --include or --exclude becomes a command") {
  const Trap trap;
  const std::string file = trap.hosts("worker-0 slots=4\nworker-1 slots=4\n");
  std::vector<std::string> words = hostile_names(trap.canary());
  for (std::string& word : words) word = word.substr(0, word.find('\0'));
  for (const char* more : {"worker-0:", "worker-0:4", "worker-0:-1", "worker-0:0,0", "worker-0:0x1",
                           "worker-0:$(touch)", "worker-0:99999999999999999999",
                           "worker-0@worker-0", "@", ":", ":0", "worker-0:0:1", "worker-0,worker-1",
                           "worker-0 worker-1", "worker-0@@worker-1", "worker-0:1;touch"})
    words.emplace_back(more);
  for (const char* flag : {"--include", "--exclude"})
    for (const std::string& word : words) {
      CAPTURE(word.substr(0, 300));
      const Outcome outcome =
          checked(zerograd({"launch", "--hostfile", file, std::string(flag) + "=" + word, "train",
                            "--data", "sort"}),
                  2);
      CHECK(outcome.out.empty());
      CHECK(launch_error(outcome).starts_with(std::string(flag) + ": "));
      CHECK(contains(launch_error(outcome), "expected "));
      CHECK(is_one_line(launch_error(outcome)));
      REQUIRE(trap.is_untouched());
    }
}

TEST_CASE("hostile words: launch refuses a colon, which would begin another program for mpirun") {
  const Trap trap;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"launch", "--num_gpus", "1", "train", "--data", "sort", "--save",
                                 ":", "touch", trap.canary()},
        {"launch", "--num_gpus", "1", "--", "train", "--data", ":"},
        {"launch", "--num_gpus", "1", "train", "--data", "sort", "--save", ":"}}) {
    const Outcome outcome = checked(zerograd(words), 2);
    CHECK(outcome.out.empty());
    if (words.back() == ":")
      CHECK(launch_error(outcome).starts_with(
          "launch: expected no word ':' in train's command line"));
    REQUIRE(trap.is_untouched());
  }
}

TEST_CASE("hostile environments: no variable of a launcher becomes a command") {
  const Trap trap;
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "WORLD_SIZE", "ZG_CPU_ISA"})
    for (const std::string& value :
         {"$(touch " + trap.canary() + ")", "`touch " + trap.canary() + "`",
          "2;touch " + trap.canary(), std::string("99999999999999999999999 -oProxyCommand=sh")}) {
      setenv(variable, value.c_str(), 1);
      const Outcome outcome =
          zerograd("train --data sort --model-type gpt-nano --steps 1 --score-samples 0");
      unsetenv(variable);
      INFO("variable ", variable, ", value ", value, ", error ", outcome.error);
      // A WORLD_SIZE that begins with no number says nothing of other processes.
      const bool is_silent = std::string(variable) == "WORLD_SIZE" && !std::isdigit(value[0]);
      CHECK(outcome.status == (is_silent ? 0 : 2));
      CHECK((std::string(variable) != "WORLD_SIZE" || !contains(outcome.error, "touch")));
      REQUIRE(trap.is_untouched());
    }
}

}  // namespace zg::testing
