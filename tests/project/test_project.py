"""The project as a whole: layers, lazy imports, exports, versions and the make targets."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Collection, Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import joinlab
from joinlab import emulator, errors
from tests import rooms
from tests.dumps import write
from tests.parallel_jobs import dumps, standing

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "joinlab"
# ---- rooms

MODULES = rooms.modules()


def who_loads(libraries: set[str], modules: Iterable[str]) -> list[str]:
    """The modules, imported one after the other in a fresh process, that load one of these
    libraries."""
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[2:]:\n"
        "    importlib.import_module(name)\n"
        "    if not sys.modules.keys().isdisjoint(sys.argv[1].split(',')):\n"
        "        sys.exit(name)\n"
    )
    command = [sys.executable, "-c", program, ",".join(libraries), *modules]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr.splitlines()


def modules_in(*names: str) -> list[str]:
    return [module for module in MODULES if rooms.room_of(module) in names]


def test_every_room_has_a_floor() -> None:
    assert {rooms.room_of(module) for module in MODULES} - {rooms.TOP} == set(rooms.floors())


def test_no_import_points_upward() -> None:
    assert [str(item) for item in rooms.upward()] == []


def test_an_import_by_name_counts() -> None:
    text = (
        'importlib.import_module("joinlab.picture.page").write_html(self, path), '
        'import_module(name), f("joinlab")'
    )
    assert list(rooms._named(ast.parse(text), MODULES)) == [("joinlab.picture.page", 1)]


def test_neither_rooms_nor_modules_import_each_other_in_a_circle() -> None:
    assert rooms.circle(of_rooms=True) == rooms.circle(of_rooms=False) == []


def test_the_teaching_core_can_be_read_without_the_jobs_wing() -> None:
    importers = {
        item.importer for item in rooms.imports() if rooms.room_of(item.imported) == "jobs"
    }
    assert {rooms.room_of(module) for module in importers} == {"jobs", "joinlab", "cli", "pytest"}


@pytest.mark.parametrize(
    ("room", "words"),
    [
        # what the thread says of a case, and its calls as a Timeline
        ("cases", {"joinlab.documentation", "joinlab.analysis.thread", "joinlab.timeline"}),
        ("scenarios", set()),
    ],
)
def test_teaching_programs_import_pytorch_and_nothing_of_joinlab_but_words(
    room: str, words: set[str]
) -> None:
    found = {item.imported for item in rooms.imports() if rooms.room_of(item.importer) == room}
    assert found <= words
    text = "\n".join(MODULES[module].read_text() for module in modules_in(room))
    assert set(re.findall(r"(?m)^ *(?:import|from) (\w+)", text)) - sys.stdlib_module_names <= {
        "torch",
        "joinlab",
    }


def test_what_reads_a_timeline_loads_no_torch() -> None:
    readers = modules_in(
        "timeline", "archive", "errors", "ops", "proof", "analysis", "picture", "cli"
    )
    models = ("backend.calls", "gloo.messages", "gloo.rule", "nccl.ring", "nccl.rule")
    assert who_loads({"torch"}, [*readers, *(f"joinlab.{one}" for one in models)]) == []


def test_what_a_rank_loads_is_without_polars() -> None:
    modules = modules_in("backend", "gloo", "nccl", "program", "ops", "errors", "recorder")
    assert who_loads({"polars"}, modules) == []


def test_only_figures_and_widgets_load_their_libraries() -> None:
    widgets = ("joinlab.jobs.follow", "joinlab.picture.figures")
    others = [
        name for name in modules_in(*set(rooms.floors()) - {"notebook"}) if name not in widgets
    ]
    assert who_loads({"ipywidgets", "anywidget", "IPython", "plotly"}, others) == []


# ---- the package


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys; print(*(name for name in sys.modules if '.' not in name))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import joinlab; joinlab.load, joinlab.Timeline", "import joinlab.__main__"]
)
def test_import_joinlab_returns_at_once(statement: str) -> None:
    assert not modules_after(statement) & {"torch", "plotly", "ipywidgets", "anywidget", "IPython"}


WITHOUT_LAB = """
import sys
class Without:
    def find_spec(self, name, *_):
        if name in ("torch", "anywidget", "ipywidgets", "traitlets", "IPython", "jupyterlab", "plotly"):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Without())
import warnings, joinlab
warnings.simplefilter("error")
timeline = joinlab.load(sys.argv[1])
assert "Rank 3" in str(joinlab.diagnose(timeline))
assert joinlab.load(timeline.save(sys.argv[2] + ".joinlab")).calls.equals(timeline.calls)
joinlab.write_html(timeline, sys.argv[2])
for name in joinlab.__all__:
    try:
        getattr(joinlab, name)
    except ModuleNotFoundError as error:
        print(name, "|", error)
"""


def test_without_the_lab_extra_joinlab_reads_a_job_and_names_what_the_rest_needs(
    tmp_path: Path,
) -> None:
    job = standing({"0": (0, 1, 2, 3)}, [("0", "all_reduce")] * 3, culprit=3, at=1)
    folder = write(tmp_path / "dumps", dumps(job))
    command = [sys.executable, "-c", WITHOUT_LAB, str(folder), str(tmp_path / "job.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    said = dict(line.split(" | ") for line in done.stdout.splitlines())
    assert said.keys() >= {"emulate", "cases", "View", "figure", "bench"}
    assert said.keys().isdisjoint(
        {"load", "diagnose", "write_html", "record", "launch", "Timeline"}
    )
    assert (
        said["emulate"]
        == "joinlab.emulate needs torch, which is not installed: pip install 'joinlab[lab]'"
    )
    assert all(text.endswith("pip install 'joinlab[lab]'") for text in said.values())


def test_an_extra_is_named_for_every_package_that_it_brings() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    brought = {Requirement(text).name: extra for extra in ("lab",) for text in extras[extra]}
    # ipywidgets' own
    named = {name: extra for name, extra in errors.EXTRAS.items() if name != "traitlets"}
    assert named.items() <= brought.items()


def test_the_emulator_refuses_versions_of_pytorch_that_its_tests_do_not_run_on() -> None:
    for version in ("2.8.0", "2.12.1+cu130", "2.16.0"):
        with pytest.raises(
            joinlab.LaunchError,
            match=rf"emulates PyTorch 2\.13 to 2\.15, and this is {version[:4]}",
        ):
            emulator.check_version(version)
    for version in ("2.13.0+cpu", "2.14.1", "2.15.0"):
        emulator.check_version(version)
        assert version.partition("+")[0] in ranges()["torch"]
    assert f"2.{int(emulator.KNOWN[-1][2:]) + 1}.0" not in ranges()["torch"]


def test_every_exported_name_can_be_used_and_is_listed() -> None:
    assert all(getattr(joinlab, name) is not None for name in joinlab.__all__)
    assert dir(joinlab) == sorted(joinlab.__all__)


def test_what_users_have_to_know_stays_small() -> None:
    assert len(joinlab.__all__) <= 31


def test_every_error_type_is_exported() -> None:
    classes = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    raised = {name for name, one in classes.items() if issubclass(one, Exception)}
    assert len(raised) > 5 and raised <= set(joinlab.__all__)


AFTER_IMPORT = """
import os, joinlab
for name in ("cases", "endings", "match", "RankError"):
    if (pid := os.fork()) == 0:
        getattr(joinlab, name)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
"""


def test_a_name_can_be_used_right_after_import() -> None:
    run = subprocess.run([sys.executable, "-c", AFTER_IMPORT], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"joinlab has no 'lunch'; it has .*launch"):
        _ = joinlab.lunch


def test_the_wheel_holds_licence_types_and_every_file_that_the_package_reads(
    tmp_path: Path,
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "joinlab", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    program = (
        "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    name = done.stdout.split()[-1]
    assert name == f"joinlab-{joinlab.__version__}-py3-none-any.whl"
    packed = set(zipfile.ZipFile(tmp_path / name).namelist())
    tracked = {path for path in tracked_files() if path.startswith("joinlab/")}
    assert tracked - packed == set()


# ---- versions


PEOPLE, TESTS = ROOT / ".ci" / "pinned.txt", ROOT / ".ci" / "pinned-test.txt"


def pinned(*files: Path) -> dict[str, str]:
    """By package: the version that these files pin."""
    lines = "".join(file.read_text() for file in files).splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def ranges() -> dict[str, SpecifierSet]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    texts += [
        text for extra in project["project"]["optional-dependencies"].values() for text in extra
    ]
    return {(requirement := Requirement(text)).name: requirement.specifier for text in texts}


def test_every_dependency_is_pinned_within_its_range() -> None:
    versions = pinned(PEOPLE, TESTS)
    assert versions.keys() == ranges().keys()
    assert [name for name, version in versions.items() if version not in ranges()[name]] == []


def test_people_install_nothing_that_only_tests_need() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for_tests = [*extras["test"], *extras["libraries"], *extras["dev"]]
    assert pinned(TESTS).keys() == {Requirement(text).name for text in for_tests}
    assert pinned(TESTS).keys().isdisjoint(pinned(PEOPLE))
    assert {"torch", "jupyterlab", "nbmake", "pytest"} <= pinned(PEOPLE).keys()


def test_the_conda_environment_has_the_pinned_versions() -> None:
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text().splitlines()]
    versions = dict(line.removeprefix("- ").split("==") for line in lines if "==" in line)
    assert versions == pinned(PEOPLE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (python,) = [line.removeprefix("- python=") for line in lines if line.startswith("- python=")]
    assert python in SpecifierSet(project["requires-python"])


def test_requirements_are_in_order() -> None:
    for file in (PEOPLE, TESTS):
        assert list(pinned(file)) == sorted(pinned(file))


def installed_with(names: Collection[str]) -> dict[str, Distribution]:
    """The distributions with these names and all that they require here, by name."""
    found: dict[str, Distribution] = {}
    queue = list(names)
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # a dependency on another platform alone, as colorama is
            if name in map(canonicalize_name, names):
                raise
            continue
        required = map(Requirement, found[name].requires or ())
        queue += [
            one.name for one in required if not one.marker or one.marker.evaluate({"extra": ""})
        ]
    return found


def test_the_notebooks_run_with_what_people_install(tmp_path: Path) -> None:
    """An environment with the packages of pinned.txt alone, as `make lab` and conda make it, and a
    notebook in a kernel of its own, with launches, a bench, questions and an exercise. test_pages.py
    runs every notebook, without kernels; `python -m tests.nightly` runs each in its own."""
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", symlinks=True)
    (site_packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for package in installed_with(pinned(PEOPLE)).values():
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            # packages of one namespace, as `nvidia`, lie in one folder
            if not (site_packages / top).exists():
                (site_packages / top).symlink_to(Path(str(package.locate_file(top))))
    (site_packages / "joinlab.pth").write_text(str(ROOT))
    folder = tmp_path / "course"
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    shutil.copy(ROOT / "pyproject.toml", folder)
    program = (
        "import importlib.util, sys; sys.exit(any(map(importlib.util.find_spec, sys.argv[1:])))"
    )
    assert (
        subprocess.run([python, "-c", program, "hypothesis", "accelerate", "mypy"]).returncode == 0
    )
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "--nbmake",
            "--nbmake-timeout=300",
            "-q",
            "notebooks/01_six_loops.ipynb",
        ],
        cwd=folder,
        env=os.environ | {"JUPYTER_PREFER_ENV_PATH": "1", "JOINLAB_PROGRESS": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr


# ---- the folder


def tracked_files() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git checkout")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def test_the_top_level_holds_what_it_should() -> None:
    allowed = {
        "notebooks",
        "joinlab",
        "data",
        "tests",
        "environment.yml",
        "README.md",
        "pyproject.toml",
        "Makefile",
    }
    tops = {name.partition("/")[0] for name in tracked_files()}
    assert {top for top in tops if not top.startswith(".")} <= allowed


ELSEWHERE = re.compile(
    r"(?<![\w.~])/(?:work|tmp|home|root|mnt)/|\bseman[t]ics\.md|\bdesig[n]\.md|\bissu[e] #?\d"
)


def test_no_file_names_a_machine_or_papers_that_are_not_here() -> None:
    found = []
    for name in tracked_files():
        text = (ROOT / name).read_bytes().decode("utf-8", errors="ignore")
        found += [f"{name}: {match.group()}" for match in ELSEWHERE.finditer(text)]
    assert found == []


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([\w-]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test", "lab"} <= named <= targets


# ---- make


def make(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`make` in a bare copy, where no .venv is."""
    (folder / ".ci").mkdir(exist_ok=True)
    for name in ("Makefile", "pyproject.toml", ".ci/pinned.txt", ".ci/pinned-test.txt"):
        shutil.copy(ROOT / name, folder / name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *args], cwd=folder, capture_output=True, text=True, env=environment
    )


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


@needs_make
def test_make_alone_lists_the_targets(tmp_path: Path) -> None:
    done = make(tmp_path)
    assert done.returncode == 0
    assert {"make demo", "make test", "make lab", "make bench"} <= {
        line[:10].strip() for line in done.stdout.splitlines()
    }


@needs_make
def test_make_says_that_there_is_no_python(tmp_path: Path) -> None:
    done = make(tmp_path, "demo", "PYTHON=python-none")
    assert done.returncode != 0
    assert "there is no python-none here" in done.stderr
    assert not (tmp_path / ".venv").exists()


@needs_make
@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ("version_info", "needs Python 3.11 or newer; "),
        ("ensurepip", "apt-get install python3-venv"),
    ],
)
def test_make_says_what_is_wrong_with_a_python(tmp_path: Path, refused: str, message: str) -> None:
    python = tmp_path / "python-odd"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *{refused}*) exit 1;; *) echo Python 3.9.2;; esac\n'
    )
    python.chmod(0o755)
    done = make(tmp_path, "test", f"PYTHON={python}")
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_container_of_a_workshop_sets_up_as_a_laptop_does() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make setup"
    python = re.search(r"python:(\d+\.\d+)$", container["image"])[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]).contains(python)
    interpreter = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter.endswith("/.venv/bin/python")


def test_packages_come_from_a_folder_or_from_pytorch_s_own_index_if_asked(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("offline", "small")]
    for folder in folders:
        folder.mkdir()
    offline = make(folders[0], "-n", "setup", "WHEELS=wheels").stdout
    assert "--no-index --find-links wheels -r .ci/pinned.txt" in offline
    assert "download.pytorch.org" not in offline
    small = make(folders[1], "-n", "setup", "CPU=1").stdout
    version = pinned(ROOT / ".ci" / "pinned.txt")["torch"]
    assert f"install --progress-bar off torch=={version} --index-url" in small


@needs_make
def test_a_fresh_copy_is_set_up_for_tests_with_one_install(tmp_path: Path) -> None:
    lines = make(tmp_path, "-n", "test").stdout.splitlines()
    both, *_ = [line for line in lines if "pinned.txt" in line]
    assert both.endswith("-r .ci/pinned.txt -r .ci/pinned-test.txt")
    assert "touch .venv/.ready .venv/.ready-for-tests" in lines
    people = make(tmp_path, "-n", "setup").stdout
    assert "pinned-test.txt" not in people and "ready-for-tests" not in people
    offline = make(tmp_path, "-n", "test", "WHEELS=wheels").stdout.splitlines()
    assert next(line for line in offline if "--no-index" in line).endswith("-r .ci/pinned.txt ")
