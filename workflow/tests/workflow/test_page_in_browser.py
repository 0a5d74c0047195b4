"""The page in a real browser: light, dark, on a phone and on paper."""

import browser
import pytest
import synthetic
import synthetic_legs
from flow import ROOT
from takeback import evidence, provenance, report
from takeback.figures.heatmap import heatmap
from takeback.figures.overlay import overlay

pytestmark = pytest.mark.skipif(not browser.executable(), reason="chromium is not installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    asked = synthetic.experiment(backends=("gloo", "nccl"))
    frame = synthetic.verdicts(asked, {asked.cells[5].id: "different", asked.cells[11].id: "hung"})
    folder = tmp_path_factory.mktemp("results") / asked.name
    folder.mkdir()
    evidence.write_table(folder / "verdicts.parquet", "verdicts", frame)
    (folder / "findings.tsv").write_text("claim\tholds\tcells\nIt holds.\tno\t34 of 36\n")
    find = synthetic_legs.evidence_of(asked, frame)
    legs = [find(cell.resumed.id).provenance for cell in asked.cells]
    provenance.write(provenance.of_experiment(asked, frame, legs), folder)
    heatmap(asked, frame, folder / "figures/verdicts.svg")
    overlay(asked, "gloo", 4, find, folder / "figures/overlay-gloo-w4.svg")
    return report.write(asked, folder)


def test_the_page_reads_in_every_view(page, tmp_path):
    assert browser.look(page, tmp_path) == []
    assert {path.stem for path in tmp_path.glob("*.png")} == set(browser.VIEWS)


def test_whatever_is_broken_on_a_page_is_noticed(page, tmp_path):
    broken = {
        '<img src="https://example.invalid/x.png" alt="">': "asks for https://example.invalid",
        '<img src="data:,">': "no alt text",
        '<div style="width:3000px">wide</div>': "scrolls sideways",
        '<svg width="9" height="9"></svg>': "svg without aria-label",
        "<script>missing()</script>": "console",
        '<p id="map">again</p>': "ids that are there twice",
    }
    bad = tmp_path / "bad.html"
    text = page.read_text().replace("<main>", "<main>" + "".join(broken)).replace("img-src data:", "img-src *")
    bad.write_text(text)
    problems = browser.look(bad, tmp_path)
    assert [words for words in broken.values() if not any(words in found for found in problems)] == []


def test_the_page_of_a_real_run_reads_in_every_view(finished):
    """The screenshots stay in results/screenshots, to be looked at."""
    flow, _ = finished
    screenshots = ROOT / "results/screenshots"
    screenshots.mkdir(exist_ok=True)
    assert browser.look(flow.folder / "results/small/report.html", screenshots) == []
