"""The course as a static site: every lesson with its stored outputs, the cards, the claims, and the kit's public names.

`make site` builds it. Nothing is executed, and no page loads anything from another host.
"""

import shlex
import shutil
import tempfile
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from cs336course import lessons
from cs336course.site import names, pyodide, settings, written
from cs336course.site.lesson import prepared

#: Pages and files that are written by hand; every Markdown file in the first one becomes a page.
PAGES, STATIC = Path(__file__).parent / "pages", Path(__file__).parent / "static"
#: Where a site is built unless a different folder is named.
INTO = Path("build/site")
#: Where npm puts MathJax in a clone, all in one file, so that it loads nothing later.
MATHJAX = Path("node_modules/mathjax/es5/tex-svg-full.js")
_NEEDED = ("sphinx", "myst_nb", "sphinx_book_theme")


def build(into: Path = INTO, root: Path = Path()) -> str:
    """Build the site of the clone `root` in a folder, replacing an old site; returns what was built, in a sentence.

    Errors: ValueError if something is missing, if the folder contains anything but a site, and for warnings of Sphinx;
    OSError if nothing can be written. The old site then remains.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ValueError(f'The site needs {", ".join(missing)}: pip install "cs336kit[lab,site]"')
    if not (root / MATHJAX).is_file():
        raise ValueError(f"{root / MATHJAX}, which shows the formulas, is missing: run `make site`, which installs it.")
    if into.exists() and not (into / ".buildinfo").is_file() and (not into.is_dir() or any(into.iterdir())):
        raise ValueError(
            f"{into} contains something other than a site, which would be lost: name a new or an empty folder."
        )
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=into.parent) as folder:
        source, made = Path(folder, "source"), Path(folder, "site")
        write_source(source, root)
        run_sphinx(source, made)
        shutil.rmtree(into, ignore_errors=True)
        made.rename(into)
    pages = sum("_static" not in file.parts for file in into.rglob("*.html"))
    size = sum(file.stat().st_size for file in into.rglob("*") if file.is_file())
    look = f"python -m http.server -b 127.0.0.1 -d {shlex.quote(str(into))}"
    return f"{into}: {pages} pages, {size / 1e6:.0f} MB. To view it: {look}"


def write_source(source: Path, root: Path) -> None:
    """Write what Sphinx reads, in the same places as in the clone `root`, so that links between pages work."""
    every = lessons.every(root / lessons.NOTEBOOKS)
    for path, _ in every:
        _write(source / lessons.NOTEBOOKS / path.name, prepared(path))
    for file in (*PAGES.glob("*.md"), *(root / name for name in written.PAPERS)):
        if file.is_file():
            shutil.copy(file, source)
    guides = sorted((root / written.GUIDES).glob("*.md"))
    for file in guides:
        _write(source / written.GUIDES / file.name, file.read_text(encoding="utf-8"))
    by_hand = {file.stem for file in source.glob("*.md")}
    for name, text in {**written.pages(every, by_hand, [file.stem for file in guides]), **names.pages()}.items():
        _write(source / name, text)
    static = Path(shutil.copytree(STATIC, source / "_static"))
    shutil.copy(root / MATHJAX, static)
    pyodide.ship(source, root)


def run_sphinx(source: Path, into: Path) -> None:
    """Run Sphinx from a folder of sources to a folder of pages; ValueError with all of its warnings, if there are any."""
    from sphinx.application import Sphinx
    from sphinx.util.console import strip_colors
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    said = StringIO()
    # Undo what Sphinx registers with docutils: a second site in this process would get warnings about all of it.
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            source, None, into, source.parent / "doctrees", "html", settings.SETTINGS,
            status=None, warning=said, freshenv=True, parallel=settings.PROCESSES,
        )  # fmt: skip
        settings.adjust(app)
        app.build()
    if warnings := strip_colors(said.getvalue()).strip():
        raise ValueError(f"The site was not built. Sphinx says:\n{warnings}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
