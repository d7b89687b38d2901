"""Runs programs for tools/gpu_check and tools/hpu_check within the limits of their step and the deadline, and logs the
clocks of a GPU meanwhile. No process of theirs is left running."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time


STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Skipped(Exception):
    """The reason why a step cannot run here."""


class Failed(Exception):
    """The problem that a step found."""


class Late(Exception):
    """The deadline came before the end of a step."""


class NoDevice(Exception):
    """The reason why there is no device to check."""


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
    """The end of the whole run. A step and its programs have limits of their own, or what is left before the end."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.step_end, self.limit = self.end, seconds

    def begin_step(self, seconds, limit):
        self.step_end, self.limit = time.monotonic() + seconds, limit

    def left(self):
        return self.end - time.monotonic()

    def run(self, command, limit=None, environment=None, folder=None):
        """An Ended. Late if the deadline, not the limit of the program or its step, cut it."""
        limit = self.limit if limit is None else limit
        seconds = min(limit, self.left(), self.step_end - time.monotonic())
        if self.left() <= 0:
            raise Late("no time was left")
        if seconds <= 0:
            raise Failed(f"the time of the step had passed before {pathlib.Path(command[0]).name} ran")
        command = [str(word) for word in command]
        process, cut = None, False
        try:
            with stops_after():
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
                                           env={**os.environ, **(environment or {})})
            try:
                out = process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                cut = True
                end_group(process)
                try:
                    out = process.communicate(timeout=10)[0]
                except subprocess.TimeoutExpired:
                    raise Failed(f"{command[0]} took more than {seconds:.0f} s and cannot be killed") from None
        except OSError as error:
            raise Failed(f"{command[0]} cannot be started: {error.strerror}") from None
        finally:
            if process:
                end_group(process)
        ended = Ended(pathlib.Path(command[0]).name, process.returncode,
                      out.decode(errors="replace"), cut)
        if cut and self.left() <= 0:
            raise Late(f"{ended.name} was ended by the deadline; it printed last: "
                       f"{ended.last_words(300)}")
        return ended

    def result_of(self, command, limit=None, environment=None, folder=None):
        """What a program printed. Failed if it ended with another status than 0, or took too long."""
        ended = self.run(command, limit, environment, folder)
        if ended.cut:
            raise Failed(f"{ended.name} {self.no_end()}; it printed last: {ended.last_words(300)}")
        if ended.status != 0:
            raise Failed(f"{ended.name}: {status_text(ended.status)}: {ended.last_words()}")
        return ended.text

    def no_end(self):
        return f"had not ended after {self.limit} s, or at the end of its step"


class Clocks(threading.Thread):
    """Asks nvidia-smi for `query` every two seconds: rows of seconds since the start and the values."""

    def __init__(self, query):
        super().__init__(daemon=True)
        self.query, self.rows, self.told = query, [], 0
        self.began, self.over = time.monotonic(), threading.Event()

    def run(self):
        while not self.over.wait(2 if self.rows else 0):
            try:
                said = subprocess.run([tool("nvidia-smi"), f"--query-gpu={','.join(self.query)}",
                                       "--format=csv,noheader,nounits", "--id=0"], capture_output=True, text=True,
                                      timeout=10, check=True).stdout
                values = [float(part) if re.fullmatch(r" *[0-9.]+\n?", part) else 0.0 for part in said.split(",")]  # or [N/A]
                self.rows.append([time.monotonic() - self.began, *values])
            except (Skipped, OSError, subprocess.SubprocessError):
                return  # the table has no clocks then

    def latest(self):
        """Median and least of the first value and the largest of the third, in words, of the rows since the last call."""
        rows = self.rows[self.told:]  # the thread may add more meanwhile
        self.told += len(rows)
        if not rows:
            return ""
        first = [row[1] for row in rows]
        return f"{statistics.median(first):.0f} ({min(first):.0f}), {max(row[3] for row in rows):.0f}"

    def stop(self):
        self.over.set()
        self.join(12)


@contextlib.contextmanager
def stops_after():
    """Signals that stop the run have their effect after the block: an exception within subprocess.Popen would lose a
    program that has just started."""
    came = []
    handlers = {number: signal.getsignal(number) for number in STOPS if callable(signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


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
