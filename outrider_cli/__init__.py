"""The `outrider` command. What a user can get wrong is one line on stderr, never a traceback.

Exit codes: 0 done, 1 refused or failed, 2 not a valid command line, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

# -P: a file in the working directory must not stand for a module of ours.
COMMAND = (sys.executable, "-P", "-m", "outrider_cli")
"""Runs this command in a process of its own; the role and its options follow."""


_HOSTS = {"target", "draft"}
"""Roles whose process holds a model."""


_OUTPUT_ENDS = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a pipe that nobody reads any more, and of a disk that takes no more."""
_INTERRUPTED = 130  # exit code after Ctrl-C, as of shells
_OPTIONS = {"token_limit": "n_predict", "stop_sequences": "stop", "row_form": "rows"}
"""By field of a request, options of another name."""


def main() -> None:
    """Run the command line of this process."""
    if _HOSTS.intersection(sys.argv[1:4]):  # options of the command itself may come first
        _begin_with_huge_pages()
    code = run(sys.argv[1:])
    if code == _INTERRUPTED:
        # Ctrl-C once more, while gRPC shuts down at exit, ends the process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _begin_with_huge_pages() -> None:
    """Begin this process anew where only its start can put its memory into huge pages."""
    from outrider.memory import environment_with_huge_pages

    environment = environment_with_huge_pages(os.environ)
    if environment is not None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    # gRPC would log a refused port in its own words before we do in ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import typer

    from outrider.errors import InvalidRequest, OutriderError
    from outrider_cli import rereading
    from outrider_cli.app import app

    rereading.note(arguments)
    if list(arguments[:1]) == ["help"]:  # as git and others take it
        arguments = [*arguments[1:], "--help"]
    try:
        code = int(app(arguments, prog_name="outrider", standalone_mode=False) or 0)
        if sys.stdout is not None:  # None: it was closed by who started this
            sys.stdout.flush()
        return code
    except typer.TyperException as error:
        message = error.format_message() + _set_by(error) + _prompt_hint(error)
        return _complain(message, error.exit_code)
    except InvalidRequest as error:
        return _complain(str(error.named(_OPTIONS.get(error.field, error.field))), 1)
    except OutriderError as error:
        return _complain(str(error), 1)
    except MemoryError as error:
        return _complain(f"out of memory: {error}".removesuffix(": "), 1)
    except (KeyboardInterrupt, typer.Abort):
        if sys.stderr.isatty():
            print(file=sys.stderr)
        return _INTERRUPTED
    except OSError as error:
        if error.errno not in _OUTPUT_ENDS:
            raise
        # Python would complain once more when it flushes stdout at exit.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return _complain("", 1)
        where = f" {error.filename}" if error.filename else ""
        return _complain(f"cannot write{where}: {error.strerror}", 1)


def _set_by(error: Any) -> str:
    """Return where a refused value was set, when that was not on the command line."""
    from outrider_cli.settings import origin

    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None:
        return ""
    found = origin(context, parameter)
    return "" if found in ("flag", "default") else f" (set by {found})"


def _prompt_hint(error: Any) -> str:
    """Return where a text belongs that stands where no option takes it."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    names = {parameter.name for parameter in getattr(command, "params", ())}
    is_extra = error.format_message().startswith("Got unexpected extra argument")
    return "; a prompt is given with --prompt" if is_extra and "prompt" in names else ""


def _complain(message: str, code: int) -> int:
    from outrider_cli.terminal import say

    if message:
        say(f"outrider: {' '.join(message.split())}")
    return code
