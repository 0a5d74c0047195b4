"""Environments of their own: found, made once, and not believed unless they are what they must be."""

import multiprocessing
import os
import sys

import pytest
from takeback import environments


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A cache folder and files of environments of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "FILES", tmp_path)
    monkeypatch.delenv("TAKEBACK_EMPTY_PYTHON", raising=False)
    (tmp_path / "empty.txt").write_text("# Nothing is downloaded.\n")


def python_with(folder, **versions):
    """An interpreter that has packages of these names and versions, as far as their metadata tells."""
    for name, version in versions.items():
        (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / f"{name}-{version}.dist-info/METADATA").write_text(metadata)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program


def test_what_is_not_there_is_said_in_one_line():
    with pytest.raises(environments.Unusable, match="no empty environment here"):
        environments.interpreter("empty")
    assert not environments.is_there("empty")


def test_the_user_may_name_an_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("TAKEBACK_EMPTY_PYTHON", sys.executable)
    assert str(environments.make("empty")) == sys.executable, "and nothing is made"
    assert not (tmp_path / "cache").exists()
    for wrong in (tmp_path / "none", tmp_path, tmp_path / "empty.txt"):
        monkeypatch.setenv("TAKEBACK_EMPTY_PYTHON", str(wrong))
        with pytest.raises(environments.Unusable, match=f"{wrong} is no interpreter"):
            environments.interpreter("empty")


def test_a_wrong_torch_beside_it_is_named(tmp_path):
    (tmp_path / "bridge.txt").write_text("torch==2.9.0\ntorch_xla==2.9.0\nnumpy==2.0\n")
    right = python_with(tmp_path / "right", torch="2.9.0+cpu", torch_xla="2.9.0", numpy="1.9")
    assert environments.versions("bridge", right)["torch"] == "2.9.0+cpu"
    wrong = python_with(tmp_path / "wrong", torch="2.13.0", torch_xla="2.9.0", numpy="2.0")
    with pytest.raises(environments.Unusable, match=r"has torch 2\.13\.0, and .* needs torch 2\.9\.0"):
        environments.versions("bridge", wrong)
    lacking = python_with(tmp_path / "lacking", torch="2.9.0", numpy="2.0")
    with pytest.raises(environments.Unusable, match="has no torch_xla;"):
        environments.versions("bridge", lacking)


def test_what_is_no_python_is_named(tmp_path):
    (tmp_path / "bridge.txt").write_text("torch==2.9.0\n")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with pytest.raises(environments.Unusable, match="does not run as an interpreter"):
        environments.versions("bridge", program)


def test_an_interrupted_making_is_not_taken_for_whole():
    folder = environments.home("empty")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    assert not environments.is_there("empty")


def test_two_who_want_it_make_it_once(capfd):
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=environments.make, args=("empty",)) for _ in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
        assert maker.exitcode == 0
    told = capfd.readouterr().err
    assert told.count("Nothing is downloaded. Into") == 1, told
    assert os.access(environments.interpreter("empty"), os.X_OK)


def test_what_can_not_be_installed_leaves_a_reason_and_is_tried_again(tmp_path):
    (tmp_path / "absent.txt").write_text("# Little.\n./no-such-wheel.whl\n")
    found = environments.record("absent")
    assert found["python"] is None
    assert "can't be made" in found["reason"] and "\n" not in found["reason"]
    assert not environments.is_there("absent")
    records = tmp_path / "envs"
    records.mkdir()
    (records / "absent.json").write_text('{\n "python": null}')
    (records / "there.json").write_text('{\n "python": "/usr/bin/python3"}')
    environments.forget(records)
    assert [path.name for path in records.iterdir()] == ["there.json"]


def test_another_file_is_another_environment(tmp_path):
    before = environments.home("empty")
    (tmp_path / "empty.txt").write_text("# Nothing is downloaded.\n# But this.\n")
    assert environments.home("empty") != before
