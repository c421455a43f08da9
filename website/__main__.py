"""Write the pages that `zensical build` makes the site of: `python -m website`."""

from website.pages import PAGES, write


def main() -> None:
    """Into `build/pages`, which holds nothing else afterwards."""
    write(PAGES)
    print(f"{len(list(PAGES.rglob('*.md')))} pages in {PAGES}")


if __name__ == "__main__":
    main()
