"""How the package reads, in numbers: `python -m tests.house` prints them.

names        share of the names of parameters and values that say nothing of what they hold, in percent
dense        comprehensions, conditional expressions ("s" * (n > 1) is one) and assignment expressions per 1,000
             lines of code
untyped      `Any` per 1,000 lines of code
wide         share of lines of code over WIDTH columns, in percent
tokens       names, operators and literals: neither a formatter nor a comment changes their number
twice        names of classes that two modules have

Lines of code are those that are not blank, no comment and no text that stands alone, as docstrings
do. They are hints: whoever meets a bound by longer names or denser lines has missed it.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "joinlab"
WIDTH = 100
WORDS = """one ones other others some those these told more given said shown found known seen what how where here
there then who whose at of beside alone apart rest few most every each same kept left held stood taken tried own about
looked words again like alike theirs mine"""
VAGUE = frozenset(WORDS.split())
"""Names that say nothing of what they hold."""
TOKENS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Figures:
    """Counts over some modules."""

    lines: int = 0
    wide_lines: int = 0
    tokens: int = 0
    names: Counter[str] = field(default_factory=Counter)
    nodes: Counter[type[ast.AST]] = field(default_factory=Counter)
    untyped_names: int = 0
    texts_by_condition: int = 0
    classes: dict[str, list[Path]] = field(default_factory=dict)

    def per_thousand(self, count: int) -> float:
        return 1000 * count / self.lines

    @property
    def vague_percent(self) -> float:
        return 100 * sum(self.names[name] for name in VAGUE) / self.names.total()

    @property
    def wide_percent(self) -> float:
        return 100 * self.wide_lines / self.lines

    @property
    def comprehensions(self) -> float:
        return self.per_thousand(sum(self.nodes[kind] for kind in COMPREHENSIONS))

    @property
    def conditionals(self) -> float:
        return self.per_thousand(self.nodes[ast.IfExp] + self.texts_by_condition)

    @property
    def assignment_expressions(self) -> float:
        return self.per_thousand(self.nodes[ast.NamedExpr])

    @property
    def untyped(self) -> float:
        return self.per_thousand(self.untyped_names)

    @property
    def twice(self) -> dict[str, list[Path]]:
        """By class name: the modules that have a class of that name, where there are several."""
        return {name: paths for name, paths in sorted(self.classes.items()) if len(paths) > 1}


def figures_of(paths: Iterator[Path]) -> Figures:
    """The figures of some modules."""
    figures = Figures()
    for path in paths:
        count(path.read_text("utf-8"), path, figures)
    return figures


@cache
def package() -> Figures:
    """The figures of the package, counted once."""
    return figures_of(PACKAGE.rglob("*.py"))


def count(text: str, path: Path, figures: Figures) -> None:
    """Add the figures of a module's text."""
    tree = ast.parse(text)
    documentation: set[int] = set()
    for node in ast.walk(tree):
        figures.nodes[type(node)] += 1
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                documentation |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
            case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
                figures.names.update(item.arg for item in (*arguments.args, *arguments.kwonlyargs))
            case ast.Name(id=name, ctx=ast.Store()):
                figures.names[name] += 1
            case ast.BinOp(
                op=ast.Mult(),
                left=ast.Constant(value=str()) | ast.JoinedStr(),
                right=ast.Compare()
                | ast.BoolOp()
                | ast.UnaryOp()
                | ast.Call(func=ast.Name(id="bool" | "any" | "all")),
            ):
                figures.texts_by_condition += 1
            case ast.Name(id="Any"):
                figures.untyped_names += 1
            case ast.ClassDef(name=name):
                figures.classes.setdefault(name.lstrip("_"), []).append(path)
    nested = 0  # Python 3.12 gives an f-string, one token here, in parts
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        nested -= kind == "FSTRING_END"
        counted = token.type in TOKENS or kind == "FSTRING_END"
        if counted and not nested and token.start[0] not in documentation:
            figures.tokens += 1
        nested += kind == "FSTRING_START"
    for number, line in enumerate(text.splitlines(), 1):
        if number not in documentation and line.strip() and not line.strip().startswith("#"):
            figures.lines += 1
            figures.wide_lines += len(line) > WIDTH


def scripts_size() -> int:
    """Characters of the package's scripts, their types and style sheets, without blanks."""
    static = PACKAGE / "picture" / "static"
    texts = [path.read_text("utf-8") for path in static.iterdir()]
    return sum(len("".join(text.split())) for text in texts)


def main() -> None:
    figures = package()
    print(
        f"{figures.lines} lines of code, {figures.tokens} tokens; scripts {scripts_size()} characters"
    )
    print(
        f"names {figures.vague_percent:.1f} %, comprehensions {figures.comprehensions:.0f}, "
        f"conditionals {figures.conditionals:.0f}, assignment expressions "
        f"{figures.assignment_expressions:.1f}, untyped {figures.untyped:.0f}, "
        f"wide {figures.wide_percent:.1f} %"
    )
    vague = [(name, figures.names[name]) for name in VAGUE if figures.names[name]]
    vague.sort(key=lambda item: -item[1])
    print("names:", ", ".join(f"{name} {uses}" for name, uses in vague[:20]))
    for name, paths in figures.twice.items():
        modules = ", ".join(str(path.relative_to(PACKAGE)) for path in paths)
        print(f"twice: {name}: {modules}")


if __name__ == "__main__":
    main()
