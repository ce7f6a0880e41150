"""Result formats for CI: JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from ..results.gate import Check, described, name_of, verdict
from .text import gate_summary, markdown, title

Result = dict[str, Any]


def _checks(result: Result) -> list[Check]:
    return list((result.get("gate") or {}).get("checks", []))


def junit(result: Result) -> str:
    """One test case a check: a failure where a limit is broken, an error where it could not be judged."""
    checks = _checks(result)
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(check["passed"] is False for check in checks)),
        "errors": str(sum(check["passed"] is None for check in checks)),
    }
    root = ElementTree.Element("testsuites", {"name": "sublaplace", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "sublaplace evaluate", **counts})
    for check in checks:
        names = {"classname": _xml(name_of(check)), "name": f"{check['metric']} {check['limit']}"}
        case = ElementTree.SubElement(suite, "testcase", names)
        text = _xml(described(check))
        if check["passed"] is not True:
            kind, label = ("error", "not judged") if check["passed"] is None else ("failure", "limit")
            ElementTree.SubElement(case, kind, {"message": text, "type": label}).text = text
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ElementTree.tostring(root, encoding="unicode")


def _xml(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or ord(c) >= 32 else "\ufffd" for c in text)


def github(result: Result) -> str:
    """Annotations: an error a broken limit, a warning where one could not be judged or is within its error.

    Limits that hold share one notice: a step shows only ten annotations of a kind.
    """
    lines = []
    for check in _checks(result):
        if verdict(check) != "passed":
            kind = "error" if verdict(check) == "failed" else "warning"
            name = _property(f"sublaplace: {check['metric']} {verdict(check)}")
            lines.append(f"::{kind} title={name}::{_data(described(check))}")
    whole = gate_summary(result) if _checks(result) else title(result)
    return "\n".join([*lines, f"::notice title=sublaplace::{_data(whole or 'done')}"])


def github_summary(result: Result) -> str:
    """The result as Markdown, for the summary page of a job."""
    return f"### sublaplace\n\n{markdown(result)}\n\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
