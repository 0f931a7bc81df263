"""Write the address of a fork's repository, and the links that follow from it, into every file of the clone that has some."""

import re
from pathlib import Path

from cs336course import links, readme
from cs336course.lessons import every
from cs336course.refresh import rewrite

CITATION = Path("CITATION.cff")


def write(names: list[str]) -> list[str]:
    """Write the links of the repository `owner/name` into every file of the clone that has some; returns what changed.

    ValueError unless exactly one repository is named, before anything is written.
    """
    if len(names) != 1:
        raise ValueError("name one repository on GitHub: make links REPO=owner/name.")
    here = links.of(names[0])
    urls = {"Repository": here.repository, "Documentation": here.pages, "Issues": f"{here.repository}/issues"}
    table = "\n".join(["[project.urls]", *(f'{name} = "{url}"' for name, url in urls.items())])
    about = f'repository-code: "{here.repository}"\nurl: "{here.pages}"\n'
    changed = [
        *_replaced(
            links.PYPROJECT,
            r"\[project\.urls\]\n(?:\w+ = .*\n)*",
            f"{table}\n",
            before="[project.scripts]\n",
            space="\n",
        ),
        *_replaced(CITATION, r"repository-code: .*\nurl: .*\n", about, before="license: "),
        *(path.name for path, _ in every() if rewrite(path)),
    ]
    told = readme.write()
    return [f"{here.repository}: " + (f"written into {', '.join(changed)}" if changed else "unchanged"), told]


def _replaced(path: Path, pattern: str, text: str, *, before: str, space: str = "") -> list[str]:
    """Put the text in place of what the pattern finds, or before a line if it finds nothing; the file's name if it changed."""
    old = path.read_text(encoding="utf-8")
    new, count = re.subn(pattern, lambda _: text, old)
    if not count:
        new = old.replace(f"\n{before}", f"\n{text}{space}{before}", 1)
    if new != old:
        path.write_text(new, encoding="utf-8")
    return [path.name] * (new != old)
