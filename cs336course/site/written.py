"""The pages that are generated from the lessons and the ledger: home, the cards, the claims."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from cs336course import cells as kind
from cs336course import links, words
from cs336course import pages as course
from cs336course.lessons import NOTEBOOKS
from cs336course.site import names
from cs336kit.lessons.claims import VERDICTS, claims
from cs336kit.lessons.lesson_21.explorer import every_claim

#: Documents of the clone that are pages of the site, if they exist.
PAPERS = ("TEACHING.md", "CONTRIBUTING.md", "CHANGELOG.md")
#: The folder of what is said about the course at more length, page by page.
GUIDES = Path("docs")
#: Pages besides the lessons, in order, and what home says about them; a page that does not exist is left out.
TOOLS = {
    "planner": ": name a model and its hardware, and see what fits and how long it takes",
    "explorers": ": change one choice and see what follows",
    "cards": ": what to remember of each lesson, in five or six lines",
    "words": ": every symbol and word that has one meaning in all lessons",
    "claims": ": what people say about this subject, and what a machine computed",
}
CARD = re.compile(r"^(\*\*The card\*\*.*?)(?=^\*\*|\Z)", flags=re.M | re.S)


def pages(lessons: course.Lessons, there: AbstractSet[str], guides: Sequence[str] = ()) -> dict[str, str]:
    """File name → Markdown of every page that is generated here.

    there: the names of the pages written by hand; guides: those in GUIDES.
    """
    explained = words.page({path.name[:2]: path.name for path, _ in lessons}, f"{NOTEBOOKS}/")
    return {
        "index.md": home(lessons, there, guides),
        "words.md": f"# {words.HEADING.removeprefix('## ')}\n\nThey have one meaning in all lessons.\n\n{explained}\n",
        "cards.md": cards(lessons),
        "claims.md": ledger(lessons),
    }


def home(lessons: course.Lessons, there: AbstractSet[str], guides: Sequence[str] = ()) -> str:
    """The first page: what the course is, how to start, the map, and the table of contents of the whole site."""
    by_hand = there - {Path(name).stem for name in PAPERS}
    tools = [
        name for name in dict.fromkeys([*TOOLS, *sorted(by_hand)]) if name in {*by_hand, "cards", "words", "claims"}
    ]
    rooms = names.rooms()
    papers = [Path(name).stem for name in PAPERS if Path(name).stem in there]
    parts = [(title, [f"{NOTEBOOKS}/{path.stem}" for path, _ in here]) for title, here in course.by_part(lessons)]
    every = [
        ("Look up", tools),
        *parts,
        ("The kit", [*rooms]),
        ("About", [*(f"{GUIDES}/{name}" for name in guides), *papers]),
    ]
    trees = [_tree(title, documents) for title, documents in every if documents]
    text = (Path(__file__).parent / "home.md").read_text(encoding="utf-8")
    first = lessons[0][0]
    here = links.home(first.parent.parent)
    opens = here.opens(first)[:2] if here else []
    filled_in = {
        "elsewhere": f"Without installing anything, you can run it in {' or '.join(opens)}. " if opens else "",
        "first": _link(lessons[0][0]),
        "map": course.course_map(lessons, f"{NOTEBOOKS}/"),
        "paths": course.paths(lessons, f"{NOTEBOOKS}/"),
        "tools": "\n".join(f"- {{doc}}`{name}`{TOOLS.get(name, '')}" for name in tools),
        "rooms": "\n".join(f"- {{doc}}`{name}`: {about}" for name, about in rooms.items()),
    }
    for name, part in filled_in.items():
        text = text.replace(f"{{{name}}}", part)
    return "\n\n".join([text, *trees])


def _link(lesson: Path) -> str:
    return f"[{course.title(lesson)}]({NOTEBOOKS}/{lesson.name})"


def _tree(title: str, documents: Sequence[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *documents, "```"])


def cards(lessons: course.Lessons) -> str:
    """The card of every lesson that has one, under its title."""
    found = []
    for path, cells in lessons:
        card = next((hit[1] for hit in map(CARD.search, map(kind.source, cells)) if hit), None)
        if card:
            lead, *lines = card.strip().splitlines()
            about = lead.removeprefix("**The card**").lstrip(" ·,")
            found.append("\n".join([f"## {_link(path)}", "", about, "", *lines]))
    return "\n\n".join(["# The cards", "Each lesson ends with a card: what to remember of it.", *found])


def ledger(lessons: course.Lessons) -> str:
    """Every claim of the ledger, with controls to choose among them if scripts are enabled."""
    tells = [f" Lesson {_link(path)} explains how." for path, _ in lessons if path.stem.endswith("_claims")]
    verdicts = "".join(f"<option>{verdict}</option>" for verdict in VERDICTS)
    return f"""# Claims

Here are {len(claims())} statements that circulate about this subject.
Each is compared with what a machine computed, and the verdict follows from the two.{"".join(tells)}

```{{raw}} html
<form id="claims-filter" hidden>
<label>topic <select name="topic"><option value="">all</option></select></label>
<label>verdict <select name="verdict"><option value="">all</option>{verdicts}</select></label>
<label>contains <input name="text" type="search"></label>
<output></output>
</form>
{every_claim()._repr_html_()}
<script src="_static/claims.js"></script>
```
"""
