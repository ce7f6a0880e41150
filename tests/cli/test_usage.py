"""Options as typed → a job: every option arrives, once and parsed; nothing is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sublaplace_cli.catalog import METHODS
from sublaplace_cli.cli.settings import COMMANDS, Settings
from sublaplace_cli.cli.usage import FIXED_BY_POSTERIOR, ONE_OF, parse_job
from sublaplace_cli.errors import UserError
from sublaplace_cli.results.limits import Limit

# One value of each option that is not its default; some need a second option.
CHANGED = {
    "spec": {"spec": Path("other.yaml")},
    "checkpoint": {"checkpoint": ("a.pt", "b.pt")},
    "run_dir": {"run_dir": Path("run")},
    "device": {"device": "cpu"},
    "memory": {"memory": "3MB"},
    "max_artifact": {"max_artifact": "1GiB"},
    "dtype": {"dtype": "float64"},
    "gram_dtype": {"gram_dtype": "float32"},
    "kernels": {"kernels": "triton"},
    "format": {"format": "csv"},
    "json": {"json": True},
    "output": {"output": (Path("a.json"), Path("b.md"))},
    "allow_code": {"allow_code": ("nets",)},
    "allow_outside": {"allow_outside": True},
    "overwrite": {"overwrite": True},
    "recompute": {"recompute": True},
    "force": {"force": True},
    "dry_run": {"dry_run": True},
    "seeds": {"seeds": (4, 5)},
    "split": {"split": "test"},
    "scores_only": {"scores_only": True},
    "method": {"method": "greedy,last-k"},
    "k": {"k": "5,7"},
    "test": {"test": ("b.csv",)},
    "indices": {"indices": Path("i.npy")},
    "pool": {"pool": "2k"},
    "score": {"score": "unweighted"},
    "reference": {"reference": "test"},
    "retain": {"k": "auto", "retain": 0.5},
    "rescale": {"rescale": "hybrid"},
    "link": {"link": "probit"},
    "folds": {"folds": 3},
    "review": {"review": 3},
    "full": {"full": "none"},
    "full_rows": {"full": "bracket", "full_rows": 7},
    "tolerance": {"tolerance": 0.02},
    "posterior": {"posterior": Path("p.safetensors")},
    "conformal": {"conformal": 0.9},
    "conformal_by": {"conformal": 0.9, "conformal_by": "class"},
    "samples": {"samples": 3, "predictions": Path("p.csv")},
    "predictions": {"predictions": Path("p.csv")},
    "plot": {"plot": Path("a.svg")},
    "plot_kind": {"plot": Path("a.svg"), "plot_kind": "map"},
    "report": {"report": Path("r.html")},
    "fail_if": {"fail_if": ("w2 > 0.1",)},
    "baseline": {"baseline": Path("b.json")},
    "max_regression": {"max_regression": ("nll=2%",)},
    "significant": {"significant": True},
}
FOR_THE_CONSOLE = {"quiet", "verbose", "debug"}


def test_there_is_a_value_for_every_option() -> None:
    assert {field.name for field in dataclasses.fields(Settings)} == CHANGED.keys() | FOR_THE_CONSOLE


@pytest.mark.parametrize("name", CHANGED)
def test_every_option_changes_the_job(name: str) -> None:
    without = {key: value for key, value in CHANGED[name].items() if key != name}
    command = "fit" if name == "indices" else "evaluate"
    assert parse_job(command, Settings(**CHANGED[name])) != parse_job(command, Settings(**without))


@pytest.mark.parametrize("command", COMMANDS)
def test_without_options_a_job_has_the_defaults(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUBLAPLACE_ALLOW_CODE", raising=False)
    job = parse_job(command, Settings())
    assert job.command == command
    assert [(choice.call.name, choice.k, choice.retain) for choice in job.choices] == (
        [] if command == "jacobians" else [("gradient", None, None)]
    )
    assert (job.memory, job.max_artifact) == (None, 20 * 2**30)
    assert (job.selection.seed, job.selection.seeds) == (0, ())
    assert (job.outputs.format, job.outputs.named()) == ("auto", [])
    assert (job.limits, job.compute.recompute, job.outputs.overwrite) == ((), False, False)


def test_methods_and_ks_in_the_order_typed_and_each_once() -> None:
    job = parse_job("evaluate", Settings(method="last-k,full,names:[a,b].*,last-k", k="7,5,7"))
    assert [(choice.call.name, choice.k) for choice in job.choices] == [
        ("last-k", 7),
        ("last-k", 5),
        ("full", None),
        ("names:[a,b].*", None),
    ]
    assert job.choices[3].call.pattern == "[a,b].*"
    assert (job.selection.method, job.selection.k) == ("last-k,full,names:[a,b].*,last-k", "7,5,7")


def test_numbers_are_parsed() -> None:
    job = parse_job("evaluate", Settings(memory="1.5GiB", max_artifact="3kB", fail_if=("nll > 0.1",)))
    assert (job.memory, job.max_artifact) == (3 * 2**29, 3000)
    (limit,) = job.limits
    assert isinstance(limit, Limit)
    assert parse_job("evaluate", Settings(k="auto")).choices[0].retain == 0.9


def test_code_may_be_allowed_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLAPLACE_ALLOW_CODE", "nets, other")
    assert parse_job("evaluate", Settings(allow_code=("own",))).project.allow_code == ("own", "nets", "other")


@pytest.mark.parametrize("name", ONE_OF)
def test_an_unknown_word_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} 'flaot' is not known") as refusal:
        parse_job("evaluate", Settings(**{name: "flaot"}))
    assert all(word in str(refusal.value.hint) for word in ONE_OF[name])


@pytest.mark.parametrize("name", FIXED_BY_POSTERIOR)
def test_a_stored_posterior_leaves_these_nothing_to_change(name: str) -> None:
    first = {"retain": "--k", "full_rows": "--full"}.get(name, f"--{name.replace('_', '-')}")  # it cannot stand alone
    with pytest.raises(UserError, match=f"{first} has no effect with --posterior: leave {first} out"):
        parse_job("evaluate", Settings(posterior=Path("p.safetensors"), **CHANGED[name]))


@pytest.mark.parametrize("command", ["select", "fit"])
def test_select_and_fit_take_one_method_and_one_k(command: str) -> None:
    for settings in (Settings(method="gradient,greedy"), Settings(k="1,2")):
        with pytest.raises(UserError, match=f"{command} takes one method and one k, got 2 combinations"):
            parse_job(command, settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_takes_no_k_refuses_one(name: str) -> None:
    if METHODS[name].takes_k:
        assert parse_job("evaluate", Settings(method=name, k="3")).choices[0].k == 3
        return
    with pytest.raises(UserError, match=f"--k was given, but {name} takes no k"):
        parse_job("evaluate", Settings(method=name, k="3"))


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("b.csv",), {"b": "b.csv"}),
        (("far/b.tar.csv=1",), None),
        (("late=far/2-x=3.csv", "b.csv"), {"late": "far/2-x=3.csv", "b": "b.csv"}),
        (("./b=c.csv",), None),
        (("b.csv", "b=c.csv"), None),
        (("b=",), None),
        (("",), None),
    ],
)
def test_test_files_by_name(words: tuple[str, ...], files: dict[str, str] | None) -> None:
    settings = Settings(test=words)
    if files is None:
        with pytest.raises(UserError, match="--test"):
            parse_job("evaluate", settings)
        return
    found = parse_job("evaluate", settings).project.test_files
    assert found == {name: Path(file).absolute() for name, file in files.items()}
    assert list(found) == list(files)
