"""A question with a place to answer: choose, press Show, and only then see the answer and the run.

    joinlab.quiz("barrier", joinlab.View(run))      # the view appears with the answer
    joinlab.progress("01_six_loops")                # how far one is, in this notebook and in all

The text of the question stands in the notebook, above the cell. Where no widget can run (nbmake, a
terminal), a quiz prints the whole question and asserts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

import anywidget
import ipywidgets
import traitlets
from IPython.display import display
from markdown_it import MarkdownIt

from joinlab.course import progress as state
from joinlab.course.exercises import EXERCISES
from joinlab.course.questions import Question, known, questions
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
    """A question's choices, with a button "Show". Python can answer, too: `quiz.choose("hangs")`,
    `quiz.show()`."""

    def __init__(self, question: Question, then: object = None) -> None:
        self.question, self._then = question, then
        numbered = enumerate(question.choices, 1)
        self._choices = Choices(
            ask=question.ask, html=[f"{number}. {marked(choice)}" for number, choice in numbered]
        )
        self._choices.add_class("jl-quiz")
        self._button = ipywidgets.Button(
            description="Show", tooltip="Show the answer: choose first", style=BUTTON
        )
        self._button.on_click(lambda button: self.show())
        self._verdict = ipywidgets.HTML()
        self._output = ipywidgets.Output()
        self.widget = ipywidgets.VBox([self._choices, self._button, self._verdict, self._output])

    def __str__(self) -> str:
        return str(self.question)

    __repr__ = __str__

    def _repr_mimebundle_(self, **options: object) -> dict[str, object]:
        bundle = dict(self.widget._repr_mimebundle_(**options) or {})
        html = f"<pre>{escape(str(self))}</pre>"
        return {**bundle, "text/plain": str(self), "text/html": html}

    @property
    def verdict(self) -> str:
        """The verdict on the answer, as HTML; "" before Show."""
        return str(self._verdict.value)

    def choose(self, choice: str) -> None:
        """Choose an answer, as a click does."""
        self._choices.chosen = self.question.choices.index(choice)

    def show(self) -> None:
        """Show whether the chosen answer is right, why, and the run behind the question."""
        index, question = self._choices.chosen, self.question
        if index is None:
            self._verdict.value = f'<p role="status" style="{LINE}">Choose an answer first.</p>'
            return
        right = question.choices[index] == question.answer
        state.record("questions", question.name, right)
        self._choices.disabled = self._button.disabled = True
        if right:
            mark, color = "✓ Right.", RIGHT
        else:
            mark, color = f'✕ The right answer is "{question.answer}".', WRONG
        self._verdict.value = (
            f'<p role="status" style="border-left:.4em solid {color};padding:.2em .8em;{LINE}">'
            f"{marked(mark)} {marked(question.why)}</p>"
        )
        if self._then is not None:
            with self._output:
                print(self._then) if isinstance(self._then, str) else display(self._then)  # type: ignore[no-untyped-call]


def quiz(name: str, then: object = None) -> Quiz:
    """The question of this name, with choices to take one of.

    then  shown with the answer, such as a View of the run that the question is about; a string is printed

    Raises ValueError for an unknown name.
    """
    known("question", name, questions())
    return Quiz(questions()[name], then)


@dataclass(frozen=True, slots=True)
class QuizProgress:
    """How far a learner is, in a few lines."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = "".join(f'<p style="{LINE}">{escape(line)}</p>' for line in self.lines)
        return f'<div role="status">{lines}</div>'


def progress(notebook: str = "") -> QuizProgress:
    """How far one is through the course, and with the exercises of a notebook, such as
    "01_six_loops".

    Raises ValueError if no notebook of that name has exercises or questions.
    """
    if notebook:
        known("notebook", notebook, dict.fromkeys(asked.notebook for asked in questions().values()))
    answered, solved = state.state()["questions"], state.state()["exercises"]
    marks = {True: "✓", False: "✕ not yet", None: "○ not tried"}
    here = []
    for name, exercise in EXERCISES.items():
        if exercise.notebook == notebook:
            here.append(f"{name} {marks[solved.get(name)]}")
    lines = [f"Exercises here: {', '.join(here)}."] if here else []
    right = [answered[name] for name in questions() if name in answered]
    done = sum(solved.get(name, False) for name in EXERCISES)
    lines.append(
        f"The course so far: {sum(right)} of {len(right)} answered questions right ({len(questions())} in all), "
        f"{done} of {len(EXERCISES)} exercises solved."
    )
    return QuizProgress(tuple(lines))


marked: Callable[[str], str] = MarkdownIt().renderInline
"""A line of Markdown as HTML."""
