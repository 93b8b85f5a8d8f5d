"""The gallery: every figure and claim once, relative paths only, nothing that leaves the page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from effstate.analysis.claims import OUTCOMES
from effstate.figures.registry import FIGURES, SECTIONS
from effstate.gallery import gallery_page

from .chromium import chromium, needs_chromium

CLAIMS = pd.DataFrame(
    {
        "sentence": f"Sentence {i} with <b>angles</b>.",
        "outcome": outcome,
        "statistic": 0.1,
        "low": 0.0,
        "high": 0.2,
        "relation": ">",
        "threshold": 0.0,
        "note": "",
        "figures": "5, 3",
    }
    for i, outcome in enumerate(OUTCOMES)
)


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def values(self, tag: str, attribute: str) -> list[str]:
        return [a[attribute] or "" for t, a in self.tags if t == tag and attribute in a]


def test_every_figure_stands_there_once_with_picture_caption_and_numbers() -> None:
    page = Page(gallery_page("demo", "tiny", "../figures/demo", CLAIMS))
    assert page.values("img", "src") == [f"../figures/demo/{s}.png" for s in _in_page_order()]
    assert all(page.values("img", "alt"))
    text = "".join(page.words)
    for spec in FIGURES.values():
        assert spec.caption in text
        for kind in ("png", "pdf", "csv"):
            assert f"../figures/demo/{spec.id}.{kind}" in page.values("a", "href")
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for target in page.values("a", "href"):
        assert not target.startswith("#") or target[1:] in ids


def _in_page_order() -> list[str]:
    titles = list(dict.fromkeys(SECTIONS[spec.section] for spec in FIGURES.values()))
    return sorted(FIGURES, key=lambda id: titles.index(SECTIONS[FIGURES[id].section]))


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs() -> None:
    html = gallery_page("demo", "tiny", "../figures/demo", CLAIMS)
    page = Page(html)
    assert not {"script", "iframe"} & {tag for tag, _ in page.tags}
    assert "http" not in html and "url(" not in html
    assert not any(key.startswith("on") for _, a in page.tags for key in a)


def test_claims_are_text_with_their_outcome_and_without_them_there_is_no_table() -> None:
    html = gallery_page("demo", "tiny", "f", CLAIMS)
    assert "<b>" not in html
    for outcome in OUTCOMES:
        assert f'class="outcome {outcome.replace(" ", "-")}"' in html
    # Each claim stands in the table and below its two figures.
    assert "".join(Page(html).words).count("Sentence 0 with <b>angles</b>.") == 3
    assert 'id="claims"' not in gallery_page("demo", "tiny", "f")


def _on_disk(folder: Path, html: str | None = None) -> Path:
    """The gallery with a small picture for every figure; ``html`` stands for the page itself."""
    for spec in FIGURES.values():
        image.imsave(folder / f"{spec.id}.png", np.zeros((90, 160, 3)))
    page = folder / "page.html"
    page.write_text(html or gallery_page("demo", "tiny", ".", CLAIMS))
    return page


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_every_picture_and_finds_no_fault(width: int, tmp_path: Path) -> None:
    page = _on_disk(tmp_path)
    with chromium(tmp_path / "profile") as browser:
        visit = browser.visit(page, width)
        assert visit.problems == {}
        pictures = {request.rpartition("/")[2] for request in visit.requests}
        assert pictures >= {f"{figure}.png" for figure in FIGURES}


FAULTS = {
    "broken pictures": "<img src='fig0.png'>",
    "console errors": "<script>console.error('no')</script>",
    "requests elsewhere": "<link rel=stylesheet href='http://127.0.0.1:9/style.css'>",
    "pixels too wide": "<div style='width: 2000px'>wide</div>",
}


@needs_chromium
def test_the_browser_check_sees_each_fault(tmp_path: Path) -> None:
    whole = gallery_page("demo", "tiny", ".", CLAIMS)
    with chromium(tmp_path / "profile") as browser:
        for fault, html in FAULTS.items():
            page = _on_disk(tmp_path, whole.replace("</body>", f"{html}</body>"))
            for width in (1280, 390):
                assert fault in browser.visit(page, width).problems
