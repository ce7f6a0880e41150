"""A judged result with a name that no format may stumble over."""

from __future__ import annotations

import dataclasses

from results.made_results import result, row

from sublaplace_cli.results.gate import Check, Gate
from sublaplace_cli.results.result import Result

ODD = "names:a|b<&%\"'\n\x07"


def judged() -> Result:
    """Two rows and the full posterior; of four checks one fails, one is not judged, one is within its error."""
    values = {"w2_se": 0.5, "nll": 1 / 3, "accuracy": None}
    plain = row(w2=0.125, why={"accuracy": "no"}, **values)
    odd = row(ODD, None, w2=None, why={"accuracy": "no"}, **values)
    checks = (
        Check(plain, "w2", "max 0.1", True),
        Check(plain, "w2", "max 0.1", False, standard_error=0.01, within_error=False),
        Check(odd, "w2", "max 0.1", why="the test rows have no targets"),
        Check(plain, "w2", "max 0.1", True, None, 0.1, 0.025, 0.2, True),
    )
    found = result(plain, odd, full=dataclasses.replace(plain, method="full", k=9))
    return dataclasses.replace(found, gate=Gate(checks), seconds={})
