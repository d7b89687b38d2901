"""Runs programs for tools/gpu_check within a limit and the deadline. No process of theirs is left running."""
import os
import pathlib
import shutil
import signal
import subprocess
import time


class Skipped(Exception):
    """The reason why a step cannot run here."""


class Failed(Exception):
    """The problem that a step found."""


class Late(Exception):
    """The deadline came before the end of a step."""


class NoDevice(Exception):
    """The reason why there is no GPU to check."""


class Stopped(BaseException):
    """A signal asked for the end."""

    def __init__(self, number):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Ended:
    """A program that has ended: its status, and what it printed. `cut`: it was killed at its limit."""

    def __init__(self, name, status, text, cut):
        self.name, self.status, self.text, self.cut = name, status, text, cut

    def last_words(self, count=1500):
        return self.text.strip()[-count:]


class Deadline:
    """The end of the whole run. A step gets its own limit, or what is left before the end."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def run(self, command, limit, environment=None, folder=None):
        """An Ended. Late if the deadline, not the program's own limit, cut it."""
        seconds = min(limit, self.left())
        if seconds <= 0:
            raise Late("no time was left")
        command = [str(word) for word in command]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
                                       env={**os.environ, **(environment or {})})
        except OSError as error:
            raise Failed(f"{command[0]} cannot be started: {error.strerror}") from None
        cut = False
        try:
            try:
                out = process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                cut = True
                end_group(process)
                try:
                    out = process.communicate(timeout=10)[0]
                except subprocess.TimeoutExpired:
                    raise Failed(f"{command[0]} took more than {seconds:.0f} s and cannot be killed") from None
        finally:
            end_group(process)
        ended = Ended(pathlib.Path(command[0]).name, process.returncode,
                      out.decode(errors="replace"), cut)
        if cut and seconds < limit:
            raise Late(f"{ended.name} was ended by the deadline; it printed last: "
                       f"{ended.last_words(300)}")
        return ended

    def result_of(self, command, limit, environment=None, folder=None):
        """What a program printed. Failed if it ended with another status than 0, or took too long."""
        ended = self.run(command, limit, environment, folder)
        if ended.cut:
            raise Failed(f"{ended.name} took more than {limit} s; it printed last: "
                         f"{ended.last_words(300)}")
        if ended.status != 0:
            raise Failed(f"{ended.name}: {status_text(ended.status)}: {ended.last_words()}")
        return ended.text


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def status_text(status):
    if status >= 0:
        return f"status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def tool(name):
    for place in (shutil.which(name), f"/usr/local/cuda/bin/{name}"):
        if place and os.path.exists(place):
            return place
    raise Skipped(f"there is no {name}")
