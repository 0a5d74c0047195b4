"""Agreement: all ranks of the resumed leg go on from the same place with the same state.

Ranks that disagree are ``different``, not ``invalid``: the evidence is whole, and it shows that
the run which goes on is not one state of the reference run but a mixture of several.
"""

from __future__ import annotations

import numpy as np

from takeback.checkers.case import Case
from takeback.checkers.finding import Finding
from takeback.checkers.tables import moment_key
from takeback.checkers.words import count, named


def positions(case: Case) -> Finding:
    """MIN = MAX over the ranks of the restored step and epoch."""
    receipts = dict(sorted(case.resumed.restored.items()))
    steps = {rank: event.step for rank, event in receipts.items()}
    epochs = {rank: event.detail.get("epoch") for rank, event in receipts.items()}
    for what, of_rank in (("steps", steps), ("epochs", epochs)):
        if len(set(of_rank.values())) > 1:
            which = ", ".join(f"rank {rank} → {value}" for rank, value in of_rank.items())
            cause = ": no fence between save and load" if what == "steps" else ""
            known = [step for step in steps.values() if step is not None]
            first = min(known, default=0) + 1
            return Finding("different", f"ranks restored different {what}: {which}{cause}", first_step=first)
    return Finding()


def states(case: Case) -> Finding:
    """MIN = MAX over the ranks of each digest right after the load, except for per-rank state.

    Per-rank state is each rank's random stream, say: see :attr:`Case.per_rank_names`.
    """
    table, step = case.resumed.states, case.restored_step
    loaded = table.at(np.array([moment_key("loaded", step)])).digests[0]
    if case.resumed.ranks == 1 or not loaded.any():
        return Finding()
    told = (loaded != 0).any(axis=1)
    value = loaded[told.argmax()]
    differs = (loaded != value) & told[:, None]
    wrong = [i for i in np.flatnonzero(differs.any(axis=0)) if table.names[i] not in case.per_rank_names]
    compared = f"digests right after the load over {count(int(told.sum()), 'rank')}"
    if not wrong:
        return Finding(compared=compared)
    first = table.names[wrong[0]]
    ranks = named("rank", np.flatnonzero(differs[:, wrong[0]]))
    more = f" (and {count(len(wrong) - 1, 'more entry', 'more entries')})" if wrong[1:] else ""
    sentence = f"ranks loaded different state: {first} on {ranks} is not that of rank {told.argmax()}{more}"
    parts = list(dict.fromkeys(table.names[i].split(".")[0] for i in wrong))
    if "model" not in parts and any(name.startswith("model.") for name in table.names):
        *most, last = parts
        verb = "do not" if most or last == "rng" else "does not"
        sentence += f"; the weights agree, {', '.join(most) + ' and ' if most else ''}{last} {verb}"
    return Finding("different", sentence, compared, first_step=step + 1, first_state=first)
