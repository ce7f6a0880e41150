"""What a member of a team does that does not lead: answer questions about its own rows."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.jacobian.rows import Jacobian
from ..core.jacobian.sharded import some_rows
from ..core.workers import COLLECTIVES
from .passes import make_rows, read_rows
from .session import Session

OF_A_SPLIT = {question.__name__: question for question in (make_rows, read_rows)}


def follow(session: Session) -> None:
    """Until the leader has no more questions."""

    def find(name: str, rows: Sequence[int] | None) -> Jacobian:
        jacobian = session.kept[f"jacobians-{name}"]
        return jacobian if rows is None else some_rows(jacobian, rows)

    for question, arguments in session.workers.calls(find):
        if question in OF_A_SPLIT:
            name = arguments[0]
            session.kept[f"jacobians-{name}"] = OF_A_SPLIT[question](session, *arguments)
        else:
            COLLECTIVES[question](*arguments)
