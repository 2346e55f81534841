"""Diagnosis: the verdict on a run, and how each rank ended and why, from the Timeline alone.

It says what differs, and of two ranks that differ it never says which one is wrong: that depends on what the program
meant. A hang is called proven only if no call that was issued can end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from joinlab.analysis.large import tellable
from joinlab.analysis.reasons import RankDiagnosis, Reasons
from joinlab.analysis.verdict import Verdict, judge
from joinlab.analysis.wording import coded_html, shown
from joinlab.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on the whole run, and every rank's ending and why. Prints itself, in Jupyter as a table."""

    verdict: Verdict
    ranks: tuple[RankDiagnosis, ...]

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return self.verdict.headline

    def __str__(self) -> str:
        told = self.verdict
        lines = [told.headline, *(f"  {at}. {cause}" for at, cause in enumerate(told.causes, 1))]
        lines += [f"  {fate.text}" for fate in told.fates]
        return shown("\n".join([*lines, f"  Do: {told.advice}"] if told.advice else lines))

    def _repr_html_(self) -> str:
        told = self.verdict
        causes = "".join(f"<li>{escape(cause)}</li>" for cause in told.causes)
        rows = "".join(
            f"<tr><td>{escape(fate.who.removeprefix('rank '))}</td><td>{escape(fate.ended)}</td>"
            f'<td style="text-align:left;white-space:normal">{escape(fate.text)}</td></tr>'
            for fate in told.fates
        )
        head = "<tr><th>rank</th><th>ended</th><th style='text-align:left'>why</th></tr>"
        advice = (
            f"<p><strong>{coded_html(told.advice.do)}</strong> {escape(told.advice.reason)}</p>" if told.advice else ""
        )
        listed = f"<ol>{causes}</ol>" if causes else ""
        return shown(f"<p><strong>{escape(told.headline)}</strong></p>{listed}<table>{head}{rows}</table>{advice}")

    def _repr_markdown_(self) -> str:
        told = self.verdict
        lines = [f"{at}. {escape(cause)}" for at, cause in enumerate(told.causes, 1)]
        lines += ["", *(f"- **{fate.who}** {escape(fate.ended)}: {escape(fate.text)}" for fate in told.fates)]
        advice = ["", f"**Do:** {coded_html(str(told.advice))}"] if told.advice else []
        return shown("\n".join([f"**{escape(told.headline)}**", "", *lines, *advice]))


def diagnose(timeline: Timeline) -> Diagnosis:
    """Say what happened, and how each rank ended and why.

    diagnosis = joinlab.diagnose(timeline)
    print(diagnosis)
    diagnosis.ranks[1].proven               # True: the rule shows that its call can never complete
    """
    matched, folding = tellable(timeline)
    reasons = Reasons(matched)
    return Diagnosis(judge(timeline, folding, reasons), tuple(map(reasons.of, range(timeline.world_size))))
