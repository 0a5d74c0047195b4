"""Opens a page in a real browser as readers do: light, dark, on a phone and on paper."""

from __future__ import annotations

import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
VIEWS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 850}, "color_scheme": "light"},
    "print": {"viewport": {"width": 760, "height": 1080}, "color_scheme": "light"},
}

# Returns what a reader would stumble over: sideways scrolling, pictures without words, doubled ids.
_INSPECT = """() => {
  const found = [], root = document.documentElement, all = query => [...document.querySelectorAll(query)]
  if (root.scrollWidth > root.clientWidth) {
    const sticksOut = e => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest('.figure, .scroll, pre')
    const names = all('body *').filter(sticksOut).slice(0, 3).map(e => e.tagName + '#' + e.id)
    found.push(`scrolls sideways: ${root.scrollWidth} > ${root.clientWidth} px: ${names}`)
  }
  for (const e of all('img:not([alt])')) found.push('no alt text: ' + e.outerHTML.slice(0, 80))
  for (const e of all('svg:not([role=img][aria-label])')) found.push('svg without aria-label')
  for (const e of all('[tabindex="0"][role=region]'))
    if (!e.getAttribute('aria-label') && !document.getElementById(e.getAttribute('aria-labelledby')))
      found.push('region without a name')
  for (const e of all('h2:not([id])')) found.push('heading without id: ' + e.textContent)
  const ids = all('[id]').map(e => e.id), twice = ids.filter((id, n) => ids.indexOf(id) !== n)
  if (twice.length) found.push('ids that are there twice: ' + twice.slice(0, 5))
  if (!document.title) found.push('no title')
  return found
}"""


def executable() -> str | None:
    """Path of a browser of the Chromium family, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def look(page_path: Path, screenshots: Path) -> list[str]:
    """Open ``page_path`` in each view, keep a screenshot of each in the folder ``screenshots``; return problems.

    A problem is a request to anywhere else, an error on the console, sideways scrolling of the page,
    or a picture without words.
    """
    from playwright.sync_api import sync_playwright

    screenshots.mkdir(parents=True, exist_ok=True)
    home = page_path.resolve().as_uri()
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        for view, options in VIEWS.items():
            page = browser.new_page(**options)

            def tell(problem: str, view: str = view) -> None:
                problems.append(f"{view}: {problem}")

            page.on(
                "request", lambda r, tell=tell: r.url == home or r.url.startswith("data:") or tell(f"asks for {r.url}")
            )
            page.on("console", lambda m, tell=tell: m.type in ("error", "warning") and tell(f"console: {m.text}"))
            page.on("pageerror", lambda e, tell=tell: tell(f"script: {e}"))
            if view == "print":
                page.emulate_media(media="print")
            page.goto(home)
            for problem in page.evaluate(_INSPECT):
                tell(problem)
            page.screenshot(path=screenshots / f"{view}.png", full_page=True)
            page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            for problem in page.evaluate(_INSPECT):
                tell(f"{problem} (lists open)")
            page.close()
        browser.close()
    return list(dict.fromkeys(problems))
