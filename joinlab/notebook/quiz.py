"""A question with a place to answer: choose, press Show, and only then see the answer and the run.

    joinlab.quiz("5-barrier", joinlab.View(run))      # a prediction; the view appears with the answer
    joinlab.quiz(5)                                   # the end of notebook 5: its questions, and how far one is

Where no widget can run (nbmake, a page, a terminal), a quiz prints its question and asserts
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display

from joinlab.course import progress
from joinlab.course.exercises import EXERCISES
from joinlab.course.questions import Question, of_the_end, questions
from joinlab.picture.theme import RIGHT, WRONG

LINE = "line-height:1.4;margin:4px 0"
BUTTON = {"button_color": "#1f4a78", "text_color": "#ffffff", "font_weight": "bold"}


class Choices(anywidget.AnyWidget):
    """Choices of which one can be taken; their words are HTML, so that code in them is code.

    chosen  the number of the one that was taken
    """

    _esm = """export default { render({ model, el }) {
        const field = document.createElement("fieldset"), name = `choices-${Math.random()}`;
        field.setAttribute("aria-label", model.get("ask"));
        field.style.cssText = "border: 0; margin: 0; padding: 0; line-height: 1.6";
        const inputs = model.get("html").map((html, at) => {
            const label = document.createElement("label"), input = document.createElement("input");
            label.style.display = "block";
            label.innerHTML = ` ${html}`;
            Object.assign(input, { type: "radio", name });
            input.addEventListener("change", () => { model.set("chosen", at); model.save_changes(); });
            label.prepend(input);
            field.append(label);
            return input; });
        const follow = () => {
            field.disabled = model.get("disabled");
            inputs.forEach((input, at) => { input.checked = at === model.get("chosen"); }); };
        model.on("change:chosen", follow);
        model.on("change:disabled", follow);
        follow();
        el.append(field); } };"""
    ask = traitlets.Unicode().tag(sync=True)
    html = traitlets.List(traitlets.Unicode()).tag(sync=True)
    chosen = traitlets.Int(None, allow_none=True).tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)


class Quiz:
    """Questions, each with a button "Show". Python can answer, too:
    `quiz.parts[0].choose("hangs")`, `.show()`."""

    def __init__(
        self, asked: Sequence[Question], then: object = None, notebook: int | None = None
    ) -> None:
        self.parts = tuple(Part(one, then, self._score) for one in asked)
        self._notebook = notebook
        self._standing = ipywidgets.HTML()
        self._score()
        self.widget = ipywidgets.VBox([*(part.widget for part in self.parts), self._standing])

    def __str__(self) -> str:
        return "\n\n".join(str(part.question) for part in self.parts)

    __repr__ = __str__

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = dict(self.widget._repr_mimebundle_(**options) or {})
        html = "".join(f"<pre>{escape(str(part.question))}</pre>" for part in self.parts)
        return {**bundle, "text/plain": str(self), "text/html": html}

    def _score(self) -> None:
        if self._notebook is not None:
            lines = standing(self._notebook)
            self._standing.value = "".join(
                f'<p role="status" style="{LINE}">{escape(line)}</p>' for line in lines
            )


class Part:
    def __init__(self, question: Question, then: object, told: Any) -> None:
        self.question = question
        self._then, self._told = then, told
        self._choices = Choices(
            ask=question.ask, html=[marked(choice) for choice in question.choices]
        )
        self._choices.add_class("jl-quiz")
        self._button = ipywidgets.Button(
            description="Show", tooltip="Show the answer: choose first", style=BUTTON
        )
        self._button.on_click(lambda button: self.show())
        self._verdict = ipywidgets.HTML()
        self._output = ipywidgets.Output()
        code = f"<pre>{escape(question.code)}</pre>" if question.code else ""
        ask = ipywidgets.HTML(f'<p style="{LINE}"><b>{marked(question.ask)}</b></p>{code}')
        self.widget = ipywidgets.VBox(
            [ask, self._choices, self._button, self._verdict, self._output]
        )

    @property
    def verdict(self) -> str:
        """The verdict on the answer, as HTML; "" before Show."""
        return str(self._verdict.value)

    def choose(self, choice: str) -> None:
        """Choose an answer, as a click does."""
        self._choices.chosen = self.question.choices.index(choice)

    def show(self) -> None:
        """Show whether the chosen answer is right, why, and the run behind the question."""
        if (at := self._choices.chosen) is None:
            self._verdict.value = f'<p role="status" style="{LINE}">Choose an answer first.</p>'
            return
        right = self.question.choices[at] == self.question.answer
        progress.record("questions", self.question.name, right)
        self._choices.disabled = self._button.disabled = True
        mark = "✓ Right." if right else f"✕ No: {self.question.answer}."
        self._verdict.value = (
            f'<p role="status" style="border-left:.4em solid {RIGHT if right else WRONG};padding:.2em .8em;{LINE}">'
            f"{marked(mark)} {marked(self.question.why)}</p>"
        )
        if self._then is not None:
            with self._output:
                print(self._then) if isinstance(self._then, str) else display(self._then)  # type: ignore[no-untyped-call]
        self._told()


def quiz(what: str | int, then: object = None) -> Quiz:
    """A prediction by its name, or, by the number of a notebook, the questions at its end.

    then  shown with the answer, such as a View of the run that the question is about; a string is printed

    Raises ValueError for an unknown name or number.
    """
    if isinstance(what, int):
        asked = of_the_end(what)
        if not asked:
            raise ValueError(f"there is no notebook {what} with questions at its end")
        return Quiz(asked, notebook=what)
    if what not in questions():
        raise ValueError(f"there is no question {what!r}; there are {', '.join(questions())}")
    return Quiz([questions()[what]], then)


def standing(notebook: int) -> list[str]:
    """The exercises of a notebook, and one line of progress through the course."""
    known = progress.state()
    here = [name for name, one in EXERCISES.items() if one.notebook == notebook]
    marks = {True: "✓", False: "✕ not yet", None: "○ not tried"}
    told = ", ".join(f"{name} {marks[known['exercises'].get(name)]}" for name in here)
    lines = [f"Exercises here: {told}."] if here else []
    right = sum(known["questions"].get(name, False) for name in questions())
    done = sum(known["exercises"].get(name, False) for name in EXERCISES)
    asked = sum(name in known["questions"] for name in questions())
    return [
        *lines,
        f"The course so far: {right} of {asked} answered questions right ({len(questions())} in all), "
        f"{done} of {len(EXERCISES)} exercises solved.",
    ]


def marked(text: str) -> str:
    """Text as HTML, words in backticks as code.

    >>> marked("`join()` & co")
    '<code>join()</code> &amp; co'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
