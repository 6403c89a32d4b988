"""The tables of clients and cases in README.md, made from what a run found."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from catalogue import CASES

if TYPE_CHECKING:
    from driver import Report

BEGIN = "<!-- clients:begin -->"
END = "<!-- clients:end -->"
SIGNS = {"PASS": "✓", "FAIL": "✗"}


def render(reports: list[Report]) -> str:
    notes: list[str] = []
    lines = ["| client | version | " + " | ".join(case.replace("_", " ") for case in CASES) + " |"]
    lines.append("|---|---|" + ":-:|" * len(CASES))
    for report in reports:
        if report.client.cases == CASES:
            cells = [cell(report, case, notes) for case in CASES]
            lines.append(f"| {report.client.name} | {report.version} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    for report in reports:
        if report.client.cases != CASES:
            lines += ["", f"| {report.client.title} {report.version} | |", "|---|:-:|"]
            lines += [f"| {report.client.texts[case]} | {cell(report, case, notes)} |" for case in report.client.cases]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def cell(report: Report, case: str, notes: list[str]) -> str:
    outcome = report.outcomes[case]
    if outcome.status != "SKIP":
        return SIGNS[outcome.status]
    note = f"Not supported by the client ({report.client.name}): {outcome.detail}"
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"


def difference(readme: Path, found: str) -> str:
    """Empty when the table in the file is the one found."""
    present = parts(readme.read_text())[1]
    if present == found:
        return ""
    changes = difflib.unified_diff(present.splitlines(), found.splitlines(), "README.md", "this run", lineterm="", n=0)
    return "the table is not what the run found (UPDATE=1 tests/run writes it):\n    " + "\n    ".join(changes)


def write(readme: Path, found: str) -> None:
    before, _, after = parts(readme.read_text())
    readme.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}")


def parts(text: str) -> tuple[str, str, str]:
    if BEGIN not in text or END not in text:
        raise ValueError(f"README.md has no {BEGIN} … {END}")
    before, rest = text.split(BEGIN, 1)
    present, after = rest.split(END, 1)
    return before, present.strip("\n"), after
