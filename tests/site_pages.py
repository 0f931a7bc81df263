"""What is asked of every built page: its links lead somewhere, to one place each, and nothing is fetched from another host."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Where a page names what it fetches, as tag and attribute; what `a` names is fetched when a reader wants it.
FETCHED = {
    ("img", "src"),
    ("script", "src"),
    ("iframe", "src"),
    ("link", "href"),
    ("source", "src"),
    ("object", "data"),
}


class _Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.anchors, self.twice, self.links, self.fetched = {"", "top"}, [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" and value in self.anchors:
                self.twice.append(value)
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value)
            if (tag, name) == ("a", "href"):
                self.links.append(value)
            if (tag, name) in FETCHED:
                self.fetched.append(value)


def problems(site: Path) -> list[str]:
    """Every link that leads nowhere inside of a site, every id that a page has twice, and what a page fetches from elsewhere."""
    pages = {path.resolve(): _Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} has the id {anchor} twice" for anchor in page.twice]
        found += [f"{name} fetches {link}" for link in page.fetched if urlsplit(link).netloc]
        for link in [*page.links, *page.fetched]:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            if not target.is_file():
                found.append(f"{name} leads to {link}, which is not there")
            elif target in pages and unquote(to.fragment) not in pages[target].anchors:
                found.append(f"{name} leads to {link}, an anchor that is not there")
    return found
