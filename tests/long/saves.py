"""The programs that `kills` and `power-loss` interrupt, and checks of the files that remain: runs that
save checkpoints, and commands that replace a set of files."""
import os
import re
import shutil
import subprocess

FLAGS = ["--data", "sort", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", "11",
         "--train-batch-size", "4", "--batch-size", "1", "--score-samples", "0", "--log-interval",
         "0", "--threads", "1", "--comm-timeout", "120"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
KEPT = (2, 4)  # checkpoints that exist before the save
SAVED = 6  # step whose save is interrupted
NEXT = 8  # step of the following save
LAST = 10  # final step of a resumed run, which shows that nothing was lost
WAYS = [[], ["--async-save"]]
STEP = re.compile(r"step_(\d+)")


class Run:
    """A short training in one setting, from two checkpoints to a third: steps 5 and 6, a save, and
    the removal of step_2. What is saved beside the training is so before its end: two steps and a
    save more."""

    def __init__(self, program, ranks, stage, more=(), processes=False):
        self.program, self.ranks, self.processes = program, ranks, processes
        self.stage, self.more = stage, list(more)
        self.steps = NEXT if "--async-save" in self.more else SAVED
        self.base = None

    def __str__(self):
        kind = "processes" if self.processes else "ranks"
        return " ".join([f"{kind}: {self.ranks}, stage {self.stage}", *self.more])

    def train(self, folder, steps, *more):
        return [self.program, "train", *FLAGS, "--zero-stage", str(self.stage), "--save", folder,
                "--steps", str(steps), *more]

    def threads(self, folder, steps, *more):
        """Ranks as threads, whichever the struck run has: both give the same bits."""
        return self.train(folder, steps, "--ranks", str(self.ranks), *more)

    def prepare(self, folder):
        """Makes the checkpoints that are there before, and the hashes of a run that nothing
        strikes."""
        os.mkdir(folder)
        self.base = os.path.join(folder, "base")
        output = finish(self.threads(self.base, KEPT[-1], "--save-interval", str(KEPT[0]),
                                     "--save-top-k", "9"))
        assert sorted(steps_in(self.base)) == list(KEPT), output
        self.hashes = {}
        for steps in SAVED, NEXT, LAST:
            whole = os.path.join(folder, f"whole_{steps}")
            self.hashes[steps] = param_hash(finish(self.threads(whole, steps)))
        return self

    def copy(self, folder):
        """A folder with the checkpoints that are there before."""
        shutil.copytree(self.base, folder)
        return folder

    def begins(self, line):
        """Whether the save has begun with this line of strace's."""
        return f"/.unfinished_step_{SAVED}" in line

    def struck(self, folder, steps=None):
        """The command that goes on from step_4, saves step_6 and then removes step_2."""
        steps = steps or self.steps
        return self.train(folder, steps, "--resume", folder, "--save-top-k", "1", *self.more,
                          *(["--save-interval", "2"] if steps > SAVED else []),
                          *([] if self.processes else ["--ranks", str(self.ranks)]))

    def problems(self, folder, said=b"", least=KEPT[-1]):
        """What is wrong with what is left: step `least`, or what it has said to be saved, or a later
        one must be there, every step_N verify, and the newest give the bits of a run that nothing
        struck."""
        found = []
        least = max([least, *map(int, re.findall(rb"^saved .*step_(\d+)$", said, re.M))])
        os.makedirs(folder, exist_ok=True)
        steps = steps_in(folder)
        if max(steps, default=0) < least:
            found.append(f"lost: of {least} and later ones, only {sorted(steps)} are there")
        for step in sorted(steps):
            verify = subprocess.run([self.program, "verify", f"{folder}/step_{step}"],
                                    capture_output=True, text=True)
            if verify.returncode != 0:
                found.append(f"step_{step} does not verify: {verify.stderr.strip()}")
        again = subprocess.run(self.threads(folder, LAST, "--resume", "auto"), capture_output=True,
                               text=True)
        if again.returncode != 0 or param_hash(again.stdout) != self.hashes[LAST]:
            found.append(f"resumed with status {again.returncode}: {again.stdout}{again.stderr}")
        left = [name for name in os.listdir(folder)
                if not STEP.fullmatch(name) and name != "latest"]
        if left:
            found.append(f"left behind: {left}")
        return found


class Outputs:
    """A command that writes files which belong together, over older ones or where there are none:
    whoever reads them finds all of the old ones or all of the new ones."""

    processes, more, ranks = False, (), 1
    steps = None

    def __init__(self, program, name, fresh):
        self.program, self.name, self.fresh = program, name, fresh

    def __str__(self):
        return f"{self.name}, " + ("an empty folder" if self.fresh else "older files before")

    def command(self, folder, which):
        """Which: "old" or "new"."""
        inputs = os.path.dirname(self.base)
        return [self.program, *{
            "tokenize": ["tokenize", f"{inputs}/{which}.txt", "--tokenizer",
                         "train:" + {"old": "258", "new": "260"}[which], "--workers", "1", "--out",
                         f"{folder}/corpus"],
            "export": ["export", f"{inputs}/{which}", "--hf", folder],
            "consolidate": ["consolidate", f"{inputs}/{which}", f"{folder}/weights"]}[self.name]]

    def prepare(self, folder):
        os.mkdir(folder)
        self.base = os.path.join(folder, "base")
        for which, text, layers in ("old", "one one two two two", "1"), ("new", "two three " * 9, "2"):
            with open(f"{folder}/{which}.txt", "w") as file:
                file.write(text)
            if self.name == "tokenize":
                continue
            finish([self.program, "tokenize", f"{folder}/{which}.txt", "--tokenizer", "train:258",
                    "--out", f"{folder}/{which}.words"])
            flags = [*FLAGS[:2], "--n-layer", layers, *FLAGS[4:]]
            if self.name == "export":  # exports a tokenizer file, too
                flags[1], flags[flags.index("11")] = f"{folder}/{which}.txt", "4"
                flags += ["--tokenizer", f"{folder}/{which}.words.tokenizer", "--val-fraction", "0"]
            finish([self.program, "train", *flags, "--steps", "1", "--save", f"{folder}/{which}"])
        self.views = {}
        for which in "old", "new":
            os.mkdir(f"{folder}/of_{which}")
            finish(self.command(f"{folder}/of_{which}", which))
            self.views[which] = view_of(f"{folder}/of_{which}")
        assert self.views["old"] != self.views["new"]
        os.mkdir(self.base)
        if self.fresh:
            self.views["old"] = {}
        else:
            finish(self.command(self.base, "old"))
        return self

    copy = Run.copy

    def begins(self, line):
        return True

    def struck(self, folder, steps=None):
        return self.command(folder, "new")

    def problems(self, folder, said=b"", least=None):
        """What is wrong with what is left: all files must be old or all new, or new where it has
        said so. The next writer leaves the new ones and nothing else."""
        found = []
        view = view_of(folder)
        if view != self.views["new"] and (b"saved " in said or view != self.views["old"]):
            found.append(f"neither old nor new: { {name: len(text) for name, text in view.items()} }")
        again = subprocess.run(self.struck(folder), capture_output=True, text=True)
        if again.returncode != 0 or view_of(folder) != self.views["new"]:
            found.append(f"written again with status {again.returncode}: {again.stderr}")
        found += [f"left behind: {path}" for path in files_in(folder)
                  if path not in self.views["new"] or os.path.islink(os.path.join(folder, path))]
        return found


def files_in(folder):
    """Paths of all that is not a folder, hidden ones too."""
    return [os.path.relpath(os.path.join(place, name), folder)
            for place, folders, names in os.walk(folder)
            for name in names + [name for name in folders if os.path.islink(os.path.join(place, name))]]


def view_of(folder):
    """What a reader finds: contents by path. Readers do not look for hidden or unfinished files, and a link
    is as good as what it leads to."""
    view = {}
    for path in files_in(folder):
        hidden = path.endswith(".unfinished") or any(part.startswith(".") for part in path.split("/"))
        if not hidden and os.path.isfile(os.path.join(folder, path)):
            with open(os.path.join(folder, path), "rb") as file:
                view[path] = file.read()
    return view


def outputs(program):
    return [Outputs(program, name, fresh) for name in ("tokenize", "export", "consolidate")
            for fresh in (False, True)]


def finish(command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def param_hash(output):
    found = re.search(r"^param_hash (\w+)$", output, re.M)
    return found[1] if found else None


def steps_in(folder):
    return {int(found[1]) for found in map(STEP.fullmatch, os.listdir(folder)) if found}


def missing_mpi(program):
    """Why ranks cannot be processes here."""
    if not shutil.which("mpirun"):
        return "there is no mpirun"
    info = subprocess.run([program, "info"], capture_output=True, text=True).stdout
    return "this build links no MPI" if re.search(r"^mpi absent", info, re.M) else None


def missing_strace():
    """Why system calls cannot be struck here."""
    if not shutil.which("strace"):
        return "there is no strace"
    tried = subprocess.run(["strace", "-f", "-e", "inject=chdir:error=EIO", "true"],
                           capture_output=True, text=True)
    return None if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]
