"""`sublaplace help [TOPIC]`: the guides in the terminal."""

import sys

from ..errors import UserError, suggestion
from ..guide import TOPICS, text_of
from .console import print_markdown, print_result


def show_topic(topic: str | None) -> None:
    """Show a guide, or the list of all; formatted on a terminal, as it is in a pipe."""
    if topic is None:
        print_result("\n".join([*_topic_lines(), "", "sublaplace help TOPIC shows one; COMMAND --help lists options"]))
    elif topic not in TOPICS:
        raise UserError(f"there is no help on {topic!r}", hint=suggestion(topic, TOPICS))
    elif sys.stdout.isatty():
        print_markdown(text_of(topic))
    else:
        print_result(text_of(topic))


def _topic_lines() -> list[str]:
    return [f"{name:<10} {summary}" for name, summary in TOPICS.items()]
