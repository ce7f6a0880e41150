"""The optional packages, imported offline and quietly."""

import os
from importlib import import_module
from types import ModuleType

from ....errors import UserError, how_to_install

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
OLDEST = 5  # of transformers: the first whose names of weights and arguments are used here


def transformers(field: str) -> ModuleType:
    """The package transformers; `field` of the spec needs it."""
    os.environ.update(OFFLINE)  # read when huggingface_hub is imported
    package = _imported("transformers", field)
    if int(package.__version__.partition(".")[0]) < OLDEST:
        message = f"{field}: transformers {package.__version__} is installed, expected {OLDEST}.0 or newer"
        raise UserError(message, hint=how_to_install("hf"))
    package.logging.set_verbosity_error()
    package.logging.disable_progress_bar()
    _imported("huggingface_hub", field).constants.HF_HUB_OFFLINE = True  # if it was imported before
    return package


def peft(field: str) -> ModuleType:
    """The package peft, for adapters."""
    transformers(field)
    return _imported("peft", field)


def _imported(name: str, field: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        message = f"{field} needs a package that is not installed ({name})"
        raise UserError(message, hint=how_to_install("hf")) from None
