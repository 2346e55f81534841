"""The function that the command line names, such as train.py:worker."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from joinlab.errors import ProgramError


def load_program(text: str) -> object:
    """The function that "FILE:FUNCTION" or "package.module:FUNCTION" names. Raises ProgramError if
    there is none.

    The file is run as a module, so the code under `if __name__ == "__main__":` does not run.
    """
    module_or_file, colon, name = text.rpartition(":")
    if not (colon and module_or_file and name):
        raise ProgramError(
            f"{text!r} names no function: write FILE:FUNCTION, such as train.py:worker"
        )
    module = _load_module(module_or_file)
    try:
        return getattr(module, name)
    except AttributeError:
        functions = []
        for key, value in vars(module).items():
            if callable(value) and _is_from(value, module):
                functions.append(key)
        listed = ", ".join(functions) or "none"
        raise ProgramError(f"{module_or_file} has no function {name!r}; it has {listed}") from None


def _load_module(module_or_file: str) -> ModuleType:
    path = Path(module_or_file)
    is_file = path.suffix == ".py" or path.exists()
    if is_file and not path.is_file():
        raise ProgramError(f"there is no file {module_or_file}")
    # As Python does: a script can import its neighbours, and `python -m` modules of the current
    # folder.
    sys.path.insert(0, str(path.resolve().parent) if is_file else os.getcwd())
    try:
        if is_file:
            module = _run_file(path)
        else:
            module = importlib.import_module(module_or_file)
    except (Exception, SystemExit) as error:
        raise ProgramError(
            f"{module_or_file} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # the ranks need not find the file
    return module


def _run_file(path: Path) -> ModuleType:
    name = f"joinlab_program_{path.stem}"  # shadows no module that the program imports
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


def _is_from(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__
