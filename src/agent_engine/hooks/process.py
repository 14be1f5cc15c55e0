"""One process from start to end: fed, read, limited, and gone with everything it started.

A process gets a process group of its own, which is killed whole when the process has ended, at the limit and on
cancellation: what it leaves in the background does not outlive it. (A session of its own would do too, but a busy
machine's scheduler can put each new session behind all others.) Pipes and process are watched by the running event loop
itself, with no child watcher and no thread, so this works on any loop of any thread.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SAFE_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE",
    "LC_MESSAGES", "LC_COLLATE", "LC_NUMERIC", "LC_TIME", "LC_MONETARY",
)  # fmt: skip
"""What every process inherits; anything else must be given, or named to be passed on."""

_CHUNK = 64 << 10
_WRITE = 1 << 20
_MOST_CHUNKS_LEFT = 32
"""A pipe holds at most 1 MiB; a process that has left the group may fill it for ever."""
_GONE_WITHIN = 1.0
"""Seconds that a killed group may take to be gone before the answer is given without it."""


@dataclass(slots=True)
class Finished:
    """How a process ended.

    ``exit_code`` is 128 + n for signal n, as a shell counts, and None where another part of the program took the exit
    status. ``in_time`` is False where the limit ended it. ``stdout`` and ``stderr`` hold the first bytes, up to what
    was asked for; ``overlong`` says that there was more on stdout.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    in_time: bool
    overlong: bool


class NotStarted(Exception):
    """A process could not be started. ``exit_code`` is what a shell would say: 127 not found, 126 not executable; else
    None.
    """

    def __init__(self, problem: str, exit_code: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.exit_code = exit_code


async def run_process(
    arguments: Sequence[str],
    document: bytes = b"",
    *,
    environment: Mapping[str, str],
    cwd: str | None = None,
    limit: float | None = None,
    keep_stdout: int = 1 << 20,
    keep_stderr: int = 64 << 10,
) -> Finished:
    """Start a process, write ``document`` to its standard input and close it, read what it says, and wait for its end.

    Args:
        arguments: the program and its arguments.
        document: bytes for standard input; a process that does not read them is no failure.
        environment: the whole environment of the process.
        cwd: the folder to run in; None is the caller's.
        limit: seconds; None means no limit.
        keep_stdout: bytes of output to keep; the rest is read and dropped.
        keep_stderr: the same for standard error.

    Raises:
        NotStarted: there is no such program or folder, or the system refused.
    """
    exchange = _Exchange(_start(arguments, environment, cwd), document, limit, keep_stdout, keep_stderr)
    try:
        in_time = await exchange.finished
    except GeneratorExit:
        exchange.stop()
        exchange.wait_until_gone()
        raise
    except BaseException:
        exchange.stop()
        await exchange.gone()
        raise
    exchange.stop()
    await exchange.gone()
    return Finished(exchange.code, bytes(exchange.out), bytes(exchange.err), in_time, exchange.overlong)


def safe_environment(given: Mapping[str, str] | None = None, pass_on: Sequence[str] = ()) -> dict[str, str]:
    """The safe base of this process's environment, the variables named in ``pass_on``, and ``given`` over both."""
    inherited = {name: os.environ[name] for name in (*SAFE_ENVIRONMENT, *pass_on) if name in os.environ}
    inherited.setdefault("PATH", os.defpath)
    return {**inherited, **(given or {})}


def _start(arguments: Sequence[str], environment: Mapping[str, str], cwd: str | None) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(  # noqa: S603 - what runs is what a hook's author wrote
            arguments, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=environment, process_group=0
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as problem:
        if cwd is not None and not os.access(cwd, os.X_OK):
            raise NotStarted(f"the folder {cwd} does not exist or may not be entered") from None
        if isinstance(problem, PermissionError):
            raise NotStarted(f"{problem.filename}: permission denied", 126) from None
        raise NotStarted(f"{problem.filename}: not found", 127) from None
    except (OSError, ValueError) as problem:
        raise NotStarted(str(problem.strerror if isinstance(problem, OSError) else problem)) from None


class _Exchange:
    """One running process: its pipes on the loop, what it has said, and the end of its whole group."""

    def __init__(
        self, process: subprocess.Popen[bytes], document: bytes, limit: float | None, keep_stdout: int, keep_stderr: int
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.code: int | None = None
        self.out = bytearray()
        self.err = bytearray()
        self.overlong = False
        self._process = process
        live_groups.add(process.pid)
        self._keep_stdout, self._keep_stderr = keep_stdout, keep_stderr
        self._loop = loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[bool] = loop.create_future()
        self._reaped = False
        self._writing = False
        self._left = memoryview(document)
        self._pipes = {pipe.fileno(): pipe for pipe in (process.stdin, process.stdout, process.stderr)}
        self._stdin, self._stdout, self._stderr = self._pipes
        self._pidfd: int | None = None
        self._timer = None if limit is None else loop.call_later(max(limit, 0.0), self._settle, False)
        try:
            for pipe in self._pipes:
                os.set_blocking(pipe, False)
            self._watch_exit()
            loop.add_reader(self._stdout, self._read, self._stdout)
            loop.add_reader(self._stderr, self._read, self._stderr)
            self._write()
        except BaseException:
            self.stop()
            self.wait_until_gone()
            raise

    def _watch_exit(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait_in_thread, name="agent-engine-command", daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._settle, True)

    def _wait_in_thread(self) -> None:
        """Where the system has no descriptor for a process: wait for its end without taking its exit status."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._settle, True)

    def _settle(self, in_time: bool) -> None:
        if not self.finished.done():
            self.finished.set_result(in_time)
        if in_time and self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)

    def _write(self) -> None:
        """Hand over as much as the pipe takes. A child that does not read is no failure: its verdict is its exit."""
        try:
            while self._left:
                self._left = self._left[os.write(self._stdin, self._left[:_WRITE]) :]
        except BlockingIOError:
            self._writing = True
            self._loop.add_writer(self._stdin, self._write)
            return
        except OSError:
            pass  # the child closed its end
        self._close(self._stdin)

    def _read(self, pipe: int) -> bool:
        """Take one chunk; False where there is nothing more to read."""
        try:
            chunk = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close(pipe)
            return False
        kept, most = (self.out, self._keep_stdout) if pipe == self._stdout else (self.err, self._keep_stderr)
        room = most - len(kept)
        kept += chunk[:room]
        if len(chunk) > room and pipe == self._stdout:
            self.overlong = True
        return True

    def _close(self, pipe: int) -> None:
        end = self._pipes.pop(pipe, None)
        if end is None:
            return
        if pipe != self._stdin:
            self._loop.remove_reader(pipe)
        elif self._writing:
            self._loop.remove_writer(pipe)
        end.close()

    def stop(self) -> None:
        """Kill the whole group, and take what it has left in the pipes."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._reaped:  # until it is reaped, its number can belong to no other group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._stdout, self._stderr):
            for _ in range(_MOST_CHUNKS_LEFT):
                if pipe not in self._pipes or not self._read(pipe):
                    break
        for pipe in list(self._pipes):
            self._close(pipe)

    async def gone(self) -> None:
        """Until no process of the group is left. A cancellation meanwhile is raised once that is so."""
        cancelled: asyncio.CancelledError | None = None
        pause, until = 0.0005, self._loop.time() + _GONE_WITHIN
        while self._lives() and self._loop.time() < until:
            try:
                await asyncio.sleep(pause)
            except asyncio.CancelledError as late:
                cancelled = late
            except GeneratorExit:
                self.wait_until_gone()
                raise
            pause = min(pause * 2, 0.02)
        self._release()
        if cancelled is not None:
            raise cancelled

    def wait_until_gone(self) -> None:
        """The same for a coroutine that nobody drives any more."""
        until = time.monotonic() + _GONE_WITHIN
        while self._lives() and time.monotonic() < until:
            time.sleep(0.0005)
        self._release()

    def _lives(self) -> bool:
        """Whether a process of the group is still there; the first one is reaped as soon as it has ended."""
        group = self._process.pid
        if not self._reaped and not self._reap():
            return True
        with contextlib.suppress(ChildProcessError):
            # Orphans of the group are this process's to reap where it is the first one of a container.
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return not _only_zombies(group)

    def _reap(self) -> bool:
        try:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self._process.pid, None
        if pid == 0:
            return False
        self._reaped = True
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            self.code = code if code >= 0 else 128 - code
        self._process.returncode = self.code or 0
        return True

    def _release(self) -> None:
        live_groups.discard(self._process.pid)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


live_groups: set[int] = set()
"""Process groups that have not been ended yet, of hooks and of servers over stdio; what is there when the interpreter
exits is killed then."""


@atexit.register
def _kill_live() -> None:
    for group in tuple(live_groups):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=live_groups.clear)  # they are the parent's


def _only_zombies(group: int) -> bool:
    """Whether all that is left of a group is dead and waits for the system's first process, which may take its time."""
    found = False
    with contextlib.suppress(OSError):  # no /proc here
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/stat", "rb") as stat:
                    state, parent, its_group = stat.read().rpartition(b")")[2].split()[:3]
                if int(its_group) == group:
                    if state not in (b"Z", b"X") or int(parent) == os.getpid():
                        return False
                    found = True
    return found
