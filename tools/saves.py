"""The runs that `kills` and `power-loss` strike while they save, and what must be left of them."""
import os
import re
import shutil
import subprocess

FLAGS = ["--data", "sort", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", "11",
         "--train-batch-size", "4", "--batch-size", "1", "--score-samples", "0", "--log-interval",
         "0", "--threads", "1", "--comm-timeout", "5"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
KEPT = (2, 4)  # checkpoints that are there before the save
SAVED = 6      # the save that is struck
NEXT = 8       # one after it
LAST = 10      # where a run goes on to, to show that nothing was lost
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

    def struck(self, folder, steps=None):
        """The command that goes on from step_4, saves step_6 and then removes step_2."""
        steps = steps or self.steps
        return self.train(folder, steps, "--resume", folder, "--save-top-k", "1", *self.more,
                          *(["--save-interval", "2"] if steps > SAVED else []),
                          *([] if self.processes else ["--ranks", str(self.ranks)]))

    def problems(self, folder, least=KEPT[-1]):
        """What is wrong with what is left: step `least` or a later one must be there, every step_N
        verify, and the newest give the bits of a run that nothing struck."""
        found = []
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
