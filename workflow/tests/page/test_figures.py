"""Figures: what they show, that they are the same bytes for the same data, and that they survive gaps."""

import re
from types import SimpleNamespace

import pytest
import synthetic
import synthetic_legs
from takeback.figures import fields, style
from takeback.figures.heatmap import WIDEST, heatmap
from takeback.figures.overlay import overlay


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


@pytest.fixture
def asked():
    return synthetic.experiment(worlds=(1, 2), kills=((2, "step"), (19, "step")))


def test_the_same_data_give_the_same_bytes(asked, tmp_path):
    frame = synthetic.verdicts(asked)
    find = synthetic_legs.evidence_of(asked, frame)
    drawn = [
        (heatmap(asked, frame, tmp_path / f"h{n}.svg").read_bytes(),
         overlay(asked, "gloo", 2, find, tmp_path / f"o{n}.svg").read_bytes()) for n in range(2)
    ]  # fmt: skip
    assert drawn[0] == drawn[1]


def test_a_figure_takes_ink_and_paper_from_where_it_stands(asked, tmp_path):
    path = heatmap(asked, synthetic.verdicts(asked), tmp_path / "verdicts.svg")
    assert style.INK not in path.read_text()
    assert "prefers-color-scheme" in path.read_text()
    inline = style.inline(path)
    assert "prefers-color-scheme" not in inline
    assert "currentColor" in inline
    assert 'role="img" aria-label="Verdicts of kill_resume: ' in inline
    used, known = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', inline)), set(re.findall(r' id="([^"]+)"', inline))
    assert {a or b for a, b in used} <= known


def test_every_cell_has_a_sign_so_that_colour_is_not_the_only_cue(asked, tmp_path):
    path = heatmap(asked, synthetic.verdicts(asked), tmp_path / "h.svg")
    assert texts(path).count("=") == 8
    assert texts(path).count("≠") == 2 * 5  # the controls, predicted and got


def test_a_surprise_is_framed_and_in_the_legend(asked, tmp_path):
    calm = heatmap(asked, synthetic.verdicts(asked), tmp_path / "calm.svg")
    red = heatmap(asked, synthetic.verdicts(asked, {asked.cells[0].id: "hung"}), tmp_path / "red.svg")
    assert "not as predicted" not in texts(calm)
    assert "not as predicted" in texts(red)
    assert "H" in texts(red)


def test_cells_that_share_a_field_are_counted_and_a_single_bad_one_stays_visible(tmp_path):
    asked = synthetic.experiment(worlds=(1,), kills=((2, "step"),), controls=False,
                                 **{"trainer.seed": tuple(range(40))})  # fmt: skip
    frame = synthetic.verdicts(asked, {asked.cells[3].id: "different"})
    path = heatmap(asked, frame, tmp_path / "h.svg")
    assert {"= 39", "≠ 1"} <= set(texts(path))
    colour, _ = style.VERDICTS["different"]
    shapes = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: {colour}', path.read_text())
    heights = [[float(y) for y in re.findall(r"[ML] \S+ (\S+)", shape)] for shape in shapes]
    assert len(heights) == 2  # in the legend and in the field
    assert min(max(ys) - min(ys) for ys in heights) > 8  # points: high enough for its text


def test_a_long_name_of_a_panel_stands_in_lines_and_makes_the_figure_no_wider(tmp_path):
    long = tuple("-".join([f"torchrun{n}", *(f"parameter{m}=value" for m in range(14))]) for n in range(2))
    asked = synthetic.experiment(worlds=(1,), kills=((2, "step"),), controls=False, launcher=long)
    path = heatmap(asked, synthetic.verdicts(asked), tmp_path / "h.svg")
    assert float(re.search(r'width="([\d.]+)pt"', path.read_text())[1]) <= 72 * WIDEST
    for value in long:
        assert value.replace("-", "") in "".join(texts(path)).replace("-", "").replace(" ", "")


def test_many_kill_steps_become_ranges_and_many_worlds_rows_of_their_first_world(tmp_path):
    asked = synthetic.experiment(worlds=(1, 2, 3, 4, 6, 8), kills=tuple((k, "step") for k in range(1, 24)))
    drawn = texts(heatmap(asked, synthetic.verdicts(asked), tmp_path / "h.svg"))
    assert "1\u20132" in drawn
    assert "8 → any" in drawn


def test_the_overlay_says_zero_only_where_every_difference_is_zero(asked, tmp_path):
    equal = synthetic.verdicts(asked)
    name = "0 at every step"
    path = overlay(asked, "gloo", 2, synthetic_legs.evidence_of(asked, equal), tmp_path / "o.svg")
    assert texts(path).count(name) == 2
    worse = synthetic.verdicts(asked, {cell.id: "different" for cell in asked.cells[4:5]})
    path = overlay(asked, "gloo", 2, synthetic_legs.evidence_of(asked, worse), tmp_path / "o.svg")
    assert texts(path).count(name) == 1


def notes(path):
    """What stands in the lower panels, wherever it says more than numbers."""
    words = ("0 at every step", "no losses", "ends at", "no loss of", "dtype", "zeros", "did not run", "told", "more")
    return [text for text in texts(path) if any(word in text for word in words)]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda t: t[t["rank"] < 0], "no losses"),
        (lambda t: t[t.step <= 20], "ends at step 20"),
        (lambda t: t[t.step != 20], "no loss of step 20"),
        (lambda t: t[(t.step != 20) | (t["rank"] == 0)], "no loss of step 20"),  # one of its two ranks told it
        (lambda t: t.assign(loss_dtype="float64"), "another dtype from step 17"),
    ],
)
def test_a_resumed_run_that_lacks_something_is_not_zero_at_every_step(asked, tmp_path, broken, said):
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))
    lost = next(c for c in asked.cells if c.axes["world"] == c.axes["resume_world"] == 2 and c.axes["kill_step"] == 19)

    def evidence_of(leg):
        one = SimpleNamespace(**vars(find(leg)))
        if leg == lost.resumed.id:
            one.losses = broken(one.losses)
        return one

    path = overlay(asked, "gloo", 2, evidence_of, tmp_path / "o.svg")
    assert notes(path) == ["0 at every step", f"resumed at 2: {said}"]
    assert "not every step could be compared" in path.read_text()


def test_zeros_of_another_sign_have_other_bits(asked, tmp_path):
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))
    resumed = {cell.resumed.id for cell in asked.cells}

    def evidence_of(leg):
        one = SimpleNamespace(**vars(find(leg)))
        bits = one.losses.loss_bits.where(one.losses.step != 24, -(2**31) if leg in resumed else 0)
        one.losses = one.losses.assign(loss_bits=bits)
        return one

    found = notes(overlay(asked, "gloo", 1, evidence_of, tmp_path / "o.svg"))
    assert len(found) == 4
    assert all("zeros of other sign from step 24" in one for one in found)


def test_a_rank_that_differs_is_seen_although_the_first_one_agrees(asked, tmp_path):
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))
    resumed = {cell.resumed.id for cell in asked.cells}

    def evidence_of(leg):
        one = SimpleNamespace(**vars(find(leg)))
        if leg in resumed:
            one.losses = one.losses.assign(loss_bits=one.losses.loss_bits + (one.losses["rank"] == 1) * 3)
        return one

    path = overlay(asked, "gloo", 2, evidence_of, tmp_path / "o.svg")
    assert notes(path) == []
    assert "largest difference 3 ULP" in path.read_text()


def test_an_overlay_needs_losses_and_events_only(asked, tmp_path):
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))
    overlay(asked, "gloo", 2, lambda leg: SimpleNamespace(losses=find(leg).losses, events=find(leg).events),
            tmp_path / "o.svg")  # fmt: skip


@pytest.mark.parametrize("point", ["step", "a.point.with.a.name.as.long.as.this"])
def test_nothing_that_is_drawn_lies_outside_of_an_overlay(tmp_path, point):
    """Its box is found from what stands at its edges; here it is compared with one around everything."""
    asked = synthetic.experiment(worlds=(2,), kills=tuple((step, point) for step in (2, 6, 10, 14, 19)), controls=False)
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))

    def size(path):
        return [float(side) for side in re.search(r'viewBox="0 0 (\S+) (\S+)"', path.read_text()).groups()]

    quick = size(overlay(asked, "gloo", 2, find, tmp_path / "quick.svg"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("takeback.figures.panels.box", lambda *_: None)
        whole = size(overlay(asked, "gloo", 2, find, tmp_path / "whole.svg"))
    assert all(-2 <= a - b < 16 for a, b in zip(quick, whole, strict=True)), (quick, whole)  # points


@pytest.mark.parametrize(
    ("event", "said"), [("first_step", "no restored step told"), ("not_run", "did not run"), ("restored", None)]
)
def test_a_resume_that_is_not_told_of_is_not_zero_at_every_step(asked, tmp_path, event, said):
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))
    resumed = {cell.resumed.id for cell in asked.cells if cell.axes["resume_world"] == 1}

    def evidence_of(leg):
        one = find(leg)
        return SimpleNamespace(
            losses=one.losses, events=one.events.assign(kind=event) if leg in resumed else one.events
        )

    found = notes(overlay(asked, "gloo", 2, evidence_of, tmp_path / "o.svg"))
    assert found == [f"resumed at 1: {said}" if said else "0 at every step"] * 2


def test_the_overlay_has_no_controls(asked, tmp_path):
    find = synthetic_legs.evidence_of(asked, synthetic.verdicts(asked))
    controls = {cell.resumed.id for cell in asked.cells if cell.control}

    def matrix_only(leg):
        assert leg not in controls
        return find(leg)

    overlay(asked, "gloo", 2, matrix_only, tmp_path / "o.svg")


def test_figures_of_what_did_not_run_say_so(tmp_path):
    asked = synthetic.experiment(backends=("nccl",), worlds=(1,))
    frame = synthetic.verdicts(asked)
    path = overlay(asked, "nccl", 1, synthetic_legs.evidence_of(asked, frame), tmp_path / "o.svg")
    assert any("did not run" in text for text in texts(path))
    assert "\u2013" in texts(heatmap(asked, frame, tmp_path / "h.svg"))


@pytest.mark.parametrize("verdict", style.VERDICTS)
def test_signs_can_be_read_on_their_colour(verdict):
    colour = style.VERDICTS[verdict][0]

    def luminance(text):
        linear = [(int(text[i : i + 2], 16) / 255 + 0.055) / 1.055 for i in (1, 3, 5)]
        return sum(w * c**2.4 for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(colour), luminance(style.on(colour))))
    assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG 2.2, AA


def test_the_hardware_of_each_kill_is_said_where_it_varies():
    moves = [{"fault": "sigkill", "resume_hardware": name} for name in ("default", "default", "t2")]
    assert fields.names(moves) == ["resume hardware default", "resume hardware default", "resume hardware t2"]
    assert fields.names(moves[:2]) == ["", ""]


def test_of_a_launcher_with_many_parameters_only_what_is_unusual_is_said():
    usual = "torchrun-max_restarts=3-nnodes=1_4"
    rows = [{"launcher": name} for name in (usual, usual, f"{usual}-monitor_interval=5.0", "torchrun-max_restarts=3")]
    assert fields.names(rows) == ["", "", "launcher monitor_interval=5.0", "launcher torchrun-max_restarts=3"]
    assert fields.names([{"fault": name} for name in ("sigkill", "sigkill", "sigkill-all")])[-1] == "sigkill-all"


def test_a_title_does_not_reach_the_row_above(tmp_path):
    longest = "torchrun-" + "-".join(f"parameter_{number}=a_value_of_{number}" for number in range(12))
    asked = synthetic.experiment(worlds=(2,), controls=False, launcher=("local", "local-x", longest, longest + "-y"))
    frame = synthetic.verdicts(asked)
    drawn = texts(overlay(asked, "gloo", 2, synthetic_legs.evidence_of(asked, frame), tmp_path / "o.svg"))
    assert any(line.endswith("…") for line in drawn)
    assert not any("parameter_9" in line for line in drawn)
