"""The picture of the page in the documents: `python -m tests.server.page_picture`.

Asks an example of all three side by side, and pins a token that the cloud changed.
"""

from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from tests.server.conftest import CHROMIUM
from tests.server.page_asking import ask_example, choose
from tests.server.serving import serving

PICTURE = Path(__file__).parents[2] / "docs" / "page.png"


def main() -> None:
    """Write it."""
    with serving() as url, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 880})
        page.goto(url)
        expect(page.locator("#models")).to_contain_text("+")
        choose(page, "Side by side")
        ask_example(page)
        page.locator(".text .changed").first.click()
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
