"""Python's cyclic garbage collector: it pauses while the modules load.

Loading torch makes a million objects that stay until the end. The collector would walk over them again and again, which
takes a quarter of the start-up, and once more at the exit.
"""

import gc


def pause() -> None:
    """Before the first import of a command."""
    gc.disable()


def resume() -> None:
    """After the imports: what they made is never looked at again. Does nothing in a process that did not pause."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
