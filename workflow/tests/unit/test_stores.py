"""What makes several objects one checkpoint: complete or not there, whatever stops, and whatever a listing says."""

from functools import partial

import pytest
import sealed
from takeback.trainers import stores
from takeback.trainers.stores import StoreError, manifest

OBJECTS = {"0.bin": b"weights", "1.bin": b"moments"}
save = partial(sealed.save, objects=OBJECTS)


class Stopped(Exception):
    """What stands for a kill: nothing that was to come is done."""


class Store:
    """A folder that stops before its n-th change; with ``lag`` it lists what was there when it was made."""

    def __init__(self, folder, stop_before=None, lag=False):
        self.store = stores.get(str(folder))
        self.left = stop_before
        self.listed = self.store.names() if lag else None

    def change(self, how, *words):
        if self.left == 0:
            raise Stopped
        if self.left is not None:
            self.left -= 1
        getattr(self.store, how)(*words)

    def write(self, name, data):
        self.change("write", name, data)

    def remove(self, name):
        self.change("remove", name)

    def read(self, name):
        return self.store.read(name)

    def names(self, prefix=""):
        return [name for name in self.listed or self.store.names() if name.startswith(prefix)]


def test_a_sealed_checkpoint_is_read_as_it_was_written(tmp_path):
    store = Store(tmp_path)
    assert manifest.newest(store) is None
    name = save(store, 1)
    manifest.check(store, name)
    assert manifest.newest(store) == name
    assert {key: manifest.read(store, name, key) for key in OBJECTS} == OBJECTS
    assert manifest.sealed(store) == manifest.begun(store) == [name]


@pytest.mark.parametrize("done", range(4))
def test_a_save_that_stops_anywhere_leaves_the_checkpoint_before(tmp_path, done):
    first = save(Store(tmp_path), 1)
    with pytest.raises(Stopped):
        save(Store(tmp_path, stop_before=done), 2)
    store = Store(tmp_path)
    assert manifest.newest(store) == first
    manifest.check(store, first)
    if done < 3:
        assert manifest.sealed(store) == [first]
        with pytest.raises(StoreError, match=r"step-00000002: is not complete: it has no manifest.json"):
            manifest.check(store, "step-00000002")


@pytest.mark.parametrize("done", range(3))
def test_a_removal_that_stops_anywhere_leaves_a_whole_checkpoint_or_none(tmp_path, done):
    name = save(Store(tmp_path), 1)
    with pytest.raises(Stopped):
        manifest.retire(Store(tmp_path, stop_before=done), name)
    store = Store(tmp_path)
    if manifest.sealed(store):
        manifest.check(store, name)
    assert manifest.begun(store) == [name]
    manifest.retire(store, name)
    assert manifest.begun(store) == []


def test_a_listing_that_lags_behind_does_not_make_a_resume_go_back(tmp_path):
    save(Store(tmp_path), 1)
    behind = Store(tmp_path, lag=True)
    second = save(Store(tmp_path), 2)
    assert manifest.sealed(behind) == ["step-00000001"]
    assert manifest.newest(behind) == second
    manifest.check(behind, second)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda store: store.write("step-00000001/0.bin", b"weighty"), "step-00000001/0.bin: is damaged"),
        (lambda store: store.write("step-00000001/0.bin", b"weigh"), "step-00000001/0.bin: is damaged"),
        (lambda store: store.remove("step-00000001/1.bin"), "step-00000001/1.bin: is missing"),
        (lambda store: store.remove("step-00000001/manifest.json"), "step-00000001: is not complete"),
        (lambda store: store.write("step-00000001/manifest.json", b"{"), "step-00000001/manifest.json: is damaged"),
        (lambda store: store.write("step-00000001/manifest.json", b"[]"), "step-00000001/manifest.json: is damaged"),
    ],
)
def test_what_is_not_what_the_manifest_says_is_named(tmp_path, change, says):
    store = Store(tmp_path)
    name = save(store, 1)
    change(store)
    with pytest.raises(StoreError, match=says):
        manifest.check(store, name)


def test_a_pointer_that_no_save_has_left_is_damaged(tmp_path):
    store = Store(tmp_path)
    save(store, 1)
    save(store, 2)
    store.write(manifest.POINTER, b"step-0")
    with pytest.raises(StoreError, match="latest: is damaged: 'step-0' is no name"):
        manifest.newest(store)
    store.remove(manifest.POINTER)
    with pytest.raises(StoreError, match="latest: is missing, and 2 checkpoints are there"):
        manifest.newest(store)
