"""A rank that no fence orders comes when the files say that rank 0 is where it is to be met."""

import itertools

import pytest
from takeback.trainers import race
from takeback.trainers.settings import parse

STEP, FILE = 8, "step-00000008.pt"


class Appears:
    """A store in which a file has a temporary name, then its own, and then none."""

    def __init__(self, *looks):
        self.looks = itertools.chain(looks, itertools.repeat(looks[-1]))
        self.asked = 0

    def names(self):
        self.asked += 1
        return {"latest", *next(self.looks)}

    def has(self, name):
        return name in self.names()


@pytest.mark.parametrize(
    ("words", "looks", "asked"),
    [
        (("--reload", "unfenced"), ((), (), (f"{FILE}.tmp",)), 3),
        (("--reload", "unfenced"), ((), (FILE,)), 2),
        (("--reload", "after", "--prune", "yes"), ((FILE,), (FILE,), ()), 3),
        (("--reload", "after"), ((FILE,),), 0),
        (("--reload", "both", "--prune", "yes"), ((FILE,),), 0),
    ],
)
def test_it_comes_when_the_file_is_there_or_has_gone(words, looks, asked):
    store = Appears(*looks)
    race.come_late(parse(["--checkpoints", "folder", *words], 1, prog="", description=""), STEP, store)
    assert store.asked == asked
