"""Links that open the lessons elsewhere: in Colab, in Binder, and as pages with the answers folded.

The address of the repository stands once, in pyproject.toml (`Repository` under `project.urls`), and `make links
REPO=owner/name` writes it there. Where it does not stand, nothing has such links.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

PYPROJECT = Path("pyproject.toml")
#: The branch whose lessons are opened. The workflow of the pages publishes it, too.
BRANCH = "main"
#: What a reader sees of the three links.
COLAB, BINDER, UNSPOILED = "Colab", "Binder", "view unspoiled"
_HUB = "https://github.com/"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?/[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Home:
    """A repository on GitHub, by its owner and name."""

    owner: str
    name: str

    @property
    def repository(self) -> str:
        """The address of the repository."""
        return f"{_HUB}{self.owner}/{self.name}"

    @property
    def pages(self) -> str:
        """Where the workflow of the pages publishes the site."""
        host = f"{self.owner.lower()}.github.io"
        return f"https://{host}" + ("" if self.name.lower() == host else f"/{self.name}")

    def colab(self, lesson: Path) -> str:
        """The address that opens a lesson in Colab."""
        return (
            f"https://colab.research.google.com/github/{self.owner}/{self.name}/blob/{BRANCH}/notebooks/{lesson.name}"
        )

    def binder(self, lesson: Path) -> str:
        """The address that opens a lesson in Binder, which builds environment.yml."""
        return f"https://mybinder.org/v2/gh/{self.owner}/{self.name}/{BRANCH}?urlpath=lab/tree/notebooks/{lesson.name}"

    def unspoiled(self, lesson: Path) -> str:
        """The address of a lesson's page, where every answer is folded."""
        return f"{self.pages}/notebooks/{lesson.stem}.html"

    def opens(self, lesson: Path) -> list[str]:
        """Three links that open a lesson elsewhere, in Markdown."""
        return [
            f"[{COLAB}]({self.colab(lesson)})",
            f"[{BINDER}]({self.binder(lesson)})",
            f"[{UNSPOILED}]({self.unspoiled(lesson)})",
        ]

    def install(self) -> str:
        """The code of a lesson's first cell, which installs the kit where a notebook is alone."""
        return (
            "try:  # Where the kit is missing, as in Colab, install it. Elsewhere this does nothing.\n"
            "    import cs336kit\n"
            "except ModuleNotFoundError:\n"
            f'    %pip install -q "cs336kit[lessons] @ git+{self.repository}"'
        )


def home(folder: Path = Path()) -> Home | None:
    """The repository that a clone's pyproject.toml names, or None; ValueError if it is not on GitHub."""
    try:
        project = tomllib.loads((folder / PYPROJECT).read_text(encoding="utf-8"))["project"]
    except FileNotFoundError:
        return None
    address = project.get("urls", {}).get("Repository", "")
    return of(address.removeprefix(_HUB)) if address else None


def of(name: str) -> Home:
    """The repository `owner/name`; ValueError for anything else."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a repository on GitHub: write owner/name, as in make links REPO=owner/name.")
    owner, _, rest = name.partition("/")
    return Home(owner, rest.removesuffix(".git"))


def without(text: str, *names: str) -> str:
    """A lesson's line of times without the links of these names."""
    return re.sub(rf" · \[(?:{'|'.join(names)})\]\(https[^)]*\)", "", text)


def said(here: Home | None, first: Path) -> str:
    """What the README says about opening the course elsewhere; `first`: its first lesson."""
    if here is None:
        return (
            "**Install nothing.** [Binder](https://mybinder.org) opens the lessons in JupyterLab in a browser: give it the "
            "address of this repository, or of your fork. In a fork, `make links REPO=owner/name` writes links to Colab, Binder "
            "and its pages into the README and every lesson, and a first cell that installs the kit where it is missing."
        )
    colab, binder, page = here.opens(first)
    return (
        f"**Install nothing.** Open the first lesson in {colab}, or the course in {binder}. To read first, with what was stored "
        f"and every answer folded: {page}. Each lesson begins with these links."
    )
