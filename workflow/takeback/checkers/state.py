"""State: digests by name right after the load, at each step, at each save and at the end."""

from __future__ import annotations

import numpy as np

from takeback.checkers.case import Case, LegView
from takeback.checkers.compare import StateDifference, compare_states
from takeback.checkers.finding import Finding
from takeback.checkers.tables import MOMENTS, StateTable, moment_key, moment_of, union
from takeback.checkers.words import count, lesson, named


def check(case: Case) -> Finding:
    """What was loaded against what was saved, then each later moment against the reference."""
    step, mine = case.restored_step, case.resumed.states
    source, key = _source(case, step)
    load = of_load(case)
    parts = [] if load is None else [load]
    reference = case.reference.states
    later = union(_after(mine, step), _after(reference, step)) if case.goes_to_the_end else _whole(mine, step)
    own = case.own_names(case.resumed, case.reference)
    parts.append(compare_states(mine.at(later), reference.at(later), own))
    first = min((part for part in parts if part.key is not None), key=lambda part: part.key, default=None)
    compared = sum(part.compared for part in parts)
    skipped = frozenset().union(*(part.skipped for part in parts))
    columns = {"states_compared": compared, "states_different": sum(part.different for part in parts)}
    words = _compared(case, parts, key if source is not None else None, later) if compared else ""
    remark = ""
    if skipped:
        entries = count(len(skipped), "entry of each rank's own", "entries of each rank's own")
        names = min(skipped) + (", …" if len(skipped) > 1 else "")
        remark = f"{entries} can't be compared at another world size ({names})"
    remark = "; ".join(filter(None, [_uncompared(mine, reference, source, step), remark]))
    if first is None:
        return Finding(None, count(compared, "state digest") if compared else "", words, remark, columns=columns)
    return Finding(
        "different", _sentence(first), words, remark, first_step=first.step, first_state=first.name, columns=columns
    )


def of_load(case: Case) -> StateDifference | None:
    """What was loaded against what was saved; None if that can't be compared."""
    source, key = _source(case, case.restored_step)
    if source is None:
        return None
    loaded = np.array([moment_key("loaded", case.restored_step)])
    theirs = _saved(case, source, key, loaded)
    return compare_states(case.resumed.states.at(loaded), theirs, case.own_names(case.resumed, source))


def _source(case: Case, step: int) -> tuple[LegView | None, int]:
    """Leg and moment which hold what should have been loaded; (None, 0) if that can't be compared.

    A checkpoint whose record the victim could not write any more is in the reference all the same.
    A trainer which tells its state at no load, in the reference neither, has not lost it there.
    """
    mine, reference = case.resumed.states.keys, case.reference.states.keys
    tells_loads = (reference % len(MOMENTS) == MOMENTS["loaded"]).any()
    if not tells_loads and moment_key("loaded", step) not in mine:
        return None, 0
    moments = [("loaded", case.reference)] if step == 0 else [("saved", case.killed), ("saved", case.reference)]
    for moment, leg in moments:
        key = moment_key(moment, step)
        if key in leg.states.keys and (case.goes_to_the_end or _is_whole(case.resumed.states, step)):
            return leg, key
    return None, 0


def _uncompared(mine: StateTable, reference: StateTable, source: LegView | None, step: int) -> str:
    """What of the state was not told, if so: what is not said would be taken for compared."""
    if not (len(mine.keys) or len(reference.keys)):
        return "no state told: not compared"
    if source is None:
        return f"state was not told both at the save of step {step} and right after its load: not compared there"
    return ""


def _saved(case: Case, source: LegView, key: int, loaded: np.ndarray) -> StateTable:
    """What each rank should have loaded, under the keys of the load.

    A rank that was killed before it told its state at the save saved what the reference did: up to
    the fault the two are equal, or the verdict is another.
    """
    told, reference = source.states.at(np.array([key])), case.reference.states.at(np.array([key]))
    names = reference.names
    if told.names != names:
        names += tuple(name for name in told.names if name not in set(names))
    digests = told.under(names)
    if source.world == case.reference.world:
        digests = np.where(told.silent, reference.under(names), digests)
    return StateTable(loaded, names, digests)


def _after(table: StateTable, step: int) -> np.ndarray:
    """Moments after the step, other than loads: of these each leg has its own."""
    late = table.keys[table.keys >= moment_key("step", step + 1)]
    return late[late % len(MOMENTS) != MOMENTS["loaded"]]


def _is_whole(table: StateTable, step: int) -> bool:
    """Whether all ranks told what they had loaded."""
    loaded = table.at(np.array([moment_key("loaded", step)]))
    return bool(len(loaded.names)) and not loaded.silent.any()


def _whole(table: StateTable, step: int) -> np.ndarray:
    """Moments after the step of which all ranks told: those of a leg that is struck in its turn."""
    keys = _after(table, step)
    return keys[~table.at(keys).silent.any(axis=(1, 2))]


def _compared(case: Case, parts: list[StateDifference], source: int | None, later: np.ndarray) -> str:
    words = []
    if source is not None and parts[0].compared:
        moment, step = moment_of(source)
        words.append(f"loaded state with that {moment} at step {step}")
    if parts[-1].compared:
        kinds = [name for name, place in MOMENTS.items() if (later % len(MOMENTS) == place).any()]
        words.append(f"state at {', '.join(kinds)} with the reference's")
    how = "rank by rank" if case.resumed.world == case.reference.world else "one value for all ranks"
    return f"{' and '.join(words)} ({count(sum(p.compared for p in parts), 'digest')} by name, {how})"


def _sentence(first: StateDifference) -> str:
    moment, step = moment_of(first.key)
    when = {
        "loaded": "right after the load",
        "saved": f"at the save of step {step}",
        "step": f"after step {step}",
        "end": f"at the end, after step {step}",
    }[moment]
    where = "" if first.everywhere else f" on {named('rank', first.ranks)}"
    more = f" (and {count(first.more, 'more entry', 'more entries')})" if first.more else ""
    missing = ", which only one side has" if first.missing else ""
    taught = lesson(first.name) if moment == "loaded" and not first.missing else ""
    return f"first different state: {first.name}{where}{missing}, {when}{more}" + (f": {taught}" if taught else "")
