"""`python -m sublaplace_cli` and the `sublaplace` command."""

from __future__ import annotations

import os
import sys

from . import signals


def main() -> None:
    """Prepare signals and streams first: the imports below are then interruptible, and stdout always exists."""
    signals.install()
    _prepare_streams()
    # Large tensors in large pages save up to a third of the run time; this must be set before torch allocates.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # torch's C++ code writes warnings to stderr itself, some with stack frames; what matters is reported by us.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from .cli import garbage

        garbage.pause()
        from .cli.app import app

        app()
    except signals.Interrupted as interruption:
        from .distributed.process_group import exit_after_signal

        exit_after_signal(interruption.exit_code)


def _prepare_streams() -> None:
    """Replace a closed stream by an empty one; a character that the encoding lacks becomes '?', not an error."""
    # Of several ranks only the first one prints results; before they have joined, one rank per machine prints errors.
    ranks = {"stdout": os.environ.get("RANK", "0"), "stderr": os.environ.get("LOCAL_RANK", "0")}
    # A wrong rank is an error to show.
    silent = {name: rank.isdecimal() and len(rank) < 7 and rank != "0" for name, rank in ranks.items()}
    several = os.environ.get("WORLD_SIZE", "1") not in ("", "1")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None or (several and silent[name]):
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it lives as long as the process)
        getattr(sys, name).reconfigure(errors="replace")


if __name__ == "__main__":
    main()
