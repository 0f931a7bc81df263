"""The settings of Sphinx, and the few places where the course changes what it does."""

import inspect
import re
from typing import TYPE_CHECKING, Any

from cs336kit import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Processes that read and write pages.
PROCESSES = 2
SETTINGS: dict[str, Any] = {
    "project": "cs336kit",
    "release": __version__,
    "extensions": ["myst_nb", "sphinx.ext.autodoc"],
    "nb_execution_mode": "off",
    # Stored outputs contain no widgets, and their JavaScript would come from another host.
    "nb_ipywidgets_js": {},
    "myst_enable_extensions": ["dollarmath"],
    "myst_heading_anchors": 3,
    "myst_heading_slug_func": "cs336course.site.settings.slug",
    # A lesson's exercises are third-level headings wherever they are.
    "suppress_warnings": ["myst.header"],
    "mathjax_path": "tex-svg-full.js",
    # The menu would load more of MathJax.
    "mathjax3_config": {"options": {"enableMenu": False}},
    "add_module_names": False,
    "autodoc_member_order": "bysource",
    "autodoc_preserve_defaults": True,
    "toc_object_entries": False,
    # Otherwise --count would become –count.
    "smartquotes": False,
    "html_theme": "sphinx_book_theme",
    "html_title": "cs336kit",
    "html_static_path": ["_static"],
    "html_css_files": ["site.css"],
    "html_js_files": ["print.js"],
    "html_copy_source": False,
    "html_last_updated_fmt": None,
    "html_favicon": "_static/favicon.svg",
    # Until the reader chooses, light or dark follows the settings of the reader's machine.
    "html_context": {"default_mode": "auto"},
    "html_sidebars": {"**": ["navbar-logo.html", "search-field.html", "sbt-sidebar-nav.html"]},
    "html_theme_options": {
        "use_download_button": False,
        "use_fullscreen_button": False,
        "show_toc_level": 2,
        "max_navbar_depth": 1,
        "search_bar_text": "Search",
        # All of this is in the sidebar.
        **{f"navbar_{place}": [] for place in ("start", "center", "end", "persistent")},
        **{f"footer_{place}": [] for place in ("start", "center", "end", "content_items")},
    },
}
_CODE = re.compile(r"``.+?``|`[^`\n]+`")


def slug(heading: str) -> str:
    """The anchor of a heading as JupyterLab writes it, so that links between lessons work in both."""
    return heading.strip().replace(" ", "-")


def adjust(app: "Sphinx") -> None:
    """Label the folds, and adapt docstrings as they are written here."""
    from myst_nb.sphinx_ import HideCodeCellNode

    app.add_node(HideCodeCellNode, override=True, html=(_fold, lambda page, node: page.body.append("</details>\n")))
    app.connect("autodoc-process-docstring", _rewrite)
    app.connect("autodoc-process-signature", _readable)


def _fold(page: Any, node: Any) -> None:
    page.body.append(f'<details class="fold"><summary>{page.encode(node["prompt_show"])}</summary>\n')


def _readable(
    app: "Sphinx", kind: str, name: str, value: Any, options: Any, *texts: str | None
) -> tuple[str | None, ...]:
    """Signatures without what Python cannot read, such as the address of a default."""
    return tuple(text and re.sub(r"<factory>|<\S.*? at 0x[0-9a-f]+>", "...", text) for text in texts)


def _rewrite(app: "Sphinx", kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    said = "\n".join(lines).strip()
    # A constant without a comment has the docstring of its class, which is not about it.
    own = kind != "data" or said != (inspect.getdoc(type(value)) or "").strip()
    lines[:] = as_rst(said).split("\n") if own else []


def as_rst(docstring: str) -> str:
    """A docstring of the kit as reStructuredText: what is in backticks is code, and no other character is markup."""
    parts, end = [], 0
    for code in _CODE.finditer(docstring):
        parts += [_plain(docstring[end : code.start()]), f"``{code[0].strip('`')}``"]
        end = code.end()
        # reStructuredText recognizes the end of code only before a space or punctuation.
        if docstring[end : end + 1].isalnum():
            parts.append("\\ ")
    # A list needs an empty line before it.
    return "".join([*parts, _plain(docstring[end:])]).replace("\n- ", "\n\n- ")


def _plain(text: str) -> str:
    return re.sub(r"([\\*|_`])", r"\\\1", text)
