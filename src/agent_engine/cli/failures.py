"""What a failure means to the person at the terminal: a sentence, and an exit code."""

from __future__ import annotations

import asyncio
import errno

from agent_engine.cli.main import FAILED, INTERRUPTED, PROBLEM, REFUSED, USAGE

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def explain(error: BaseException) -> tuple[str, int]:
    """The sentence and the exit code for an error; never a traceback, never the text of a stranger's exception."""
    from agent_engine.hooks.errors import (
        GuardrailBlocked,
        HookError,
        HookExecutionError,
        HookLoadError,
        HookRegistrationError,
        LimitReached,
        RunBlocked,
    )
    from agent_engine.spec.problems import SpecError

    error = _single(error)
    if isinstance(error, SpecError):
        return "\n".join(str(problem) for problem in error.problems), PROBLEM
    if isinstance(error, RunBlocked | GuardrailBlocked):
        return _sentence(error), REFUSED
    if isinstance(error, HookLoadError | HookRegistrationError):
        return _sentence(error), PROBLEM
    if isinstance(error, HookExecutionError):
        return f"{_sentence(error)} Set AGENT_ENGINE_DEBUG=1 to see where.", FAILED
    if isinstance(error, LimitReached | HookError):
        return _sentence(error), FAILED
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "Stopped.", INTERRUPTED
    if isinstance(error, UnicodeDecodeError):
        return f"The file is not UTF-8 text: byte {error.start} cannot be read as such.", PROBLEM
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {_os_text(error)}", PROBLEM
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return f"Writing failed: {_os_text(error)}", FAILED
    if type(error).__module__.startswith("agent_engine."):
        return _sentence(error), getattr(error, "exit_code", FAILED)
    if isinstance(error, LookupError | PermissionError | ValueError) and _raised_here(error):
        return _sentence(error), USAGE
    return (
        f"Something that should not happen did: {type(error).__name__}. Set AGENT_ENGINE_DEBUG=1 to see where.",
        FAILED,
    )


def _single(error: BaseException) -> BaseException:
    """The first leaf of an exception group: task groups wrap what a task raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: BaseException) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = text.strip() or type(error).__name__
    return text if text[-1] in ".!?" else f"{text}."


def _os_text(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file."
    if isinstance(error, IsADirectoryError):
        return "this is a folder, and a file is needed."
    if isinstance(error, PermissionError):
        return "it may not be read or written; check its permissions."
    return f"{(error.strerror or type(error).__name__).lower()}."


def _raised_here(error: BaseException) -> bool:
    """Whether the engine itself raised it: its own messages are written for people, a library's are not."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("agent_engine.")
