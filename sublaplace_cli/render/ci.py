"""Result formats for CI: JUnit XML, and annotations of GitHub Actions."""

from xml.etree import ElementTree

from ..plain_text import visible
from ..results.gate import checks_of
from ..results.result import Answer
from .text import gate_summary, markdown, title


def junit(answer: Answer) -> str:
    """One test case per check: a failure if a limit is broken, an error if it could not be judged."""
    checks = checks_of(answer)
    failures, errors = (sum(check.passed is outcome for check in checks) for outcome in (False, None))
    counts = {"tests": str(len(checks)), "failures": str(failures), "errors": str(errors)}
    root = ElementTree.Element("testsuites", {"name": "sublaplace", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "sublaplace evaluate", **counts})
    for check in checks:
        names = {"classname": visible(check.row.name), "name": f"{check.metric} {check.limit}"}
        case = ElementTree.SubElement(suite, "testcase", names)
        text = visible(check.description)
        if check.passed is not True:
            kind, label = ("error", "not judged") if check.passed is None else ("failure", "limit")
            ElementTree.SubElement(case, kind, {"message": text, "type": label}).text = text
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ElementTree.tostring(root, encoding="unicode")


def github(answer: Answer) -> str:
    """One error per broken limit, one warning per limit that was not judged or is broken within its standard error."""
    lines = []
    for check in checks_of(answer):
        if check.verdict != "passed":
            kind = "error" if check.verdict == "failed" else "warning"
            name = _data(f"sublaplace: {check.metric} {check.verdict}").replace(":", "%3A").replace(",", "%2C")
            lines.append(f"::{kind} title={name}::{_data(check.description)}")
    # Limits that hold share one notice: a step shows only ten annotations of each kind.
    whole = gate_summary(answer) if checks_of(answer) else title(answer)
    return "\n".join([*lines, f"::notice title=sublaplace::{_data(whole or 'done')}"])


def github_summary(answer: Answer) -> str:
    """The result as Markdown, for the summary page of a job."""
    return f"### sublaplace\n\n{markdown(answer)}\n\n"


def _data(text: str) -> str:
    return visible(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
