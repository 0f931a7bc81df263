"""What all explorers share: a picture that can be stored, and controls when somebody is there to move them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from cs336kit.teach.figures.style import Figure

#: Turns an action into an observer of a control, which runs it, or shows why that is impossible, and draws again.
When = Callable[[Callable[..., None]], Callable[[Any], None]]

#: The text in place of the controls where no widgets are shown.
_WAITING = "Run this cell to choose other values."
#: The class of the picture that is stored.
STILL = "cs336kit-still"
#: On the light colors of buttons.
INK = "#111111"
_WRAP, _SMALL = {"flex_flow": "row wrap"}, {"width": "1.5em", "padding": "0", "margin": "1px"}
_CHILD, _LIVE = ".jp-OutputArea-child", ".widget-box:not(.jupyter-widgets-disconnected)"
# A live explorer is two outputs: controls that need a kernel, and below them the still picture, which is what remains
# when the notebook is opened again. Without a kernel the first says "model not found", or shows a broken chain when the
# kernel has gone, so the style hides it; with one, it hides the second, which would repeat the picture. The sliders of
# ipywidgets lack an accessible name: their label's.
_FRAME = f"""<style>
{_CHILD}:has(.jupyter-widgets):has(+ {_CHILD} .{STILL}):not(:has({_LIVE})) {{display: none}}
{_CHILD}:has({_LIVE}) + {_CHILD}:has(.{STILL}) {{display: none}}
</style><script>
if (!window.cs336kitNames) {{
  const name = () => document.querySelectorAll(".widget-slider").forEach((slider) => {{
    const handle = slider.querySelector("[role=slider]"), value = slider.querySelector(".widget-readout");
    handle?.setAttribute("aria-label", slider.querySelector(".widget-label")?.textContent ?? "");
    if (handle && value) handle.setAttribute("aria-valuetext", value.textContent);
  }});
  window.cs336kitNames = new MutationObserver(name);
  window.cs336kitNames.observe(document.body, {{childList: true, subtree: true}});
  name();
}}
</script>"""


class Explorer(ABC):
    """Choices by name, and what follows from them, as a picture in HTML and in text.

    A subclass takes its choices as arguments by name, keeps them in `choices`, raises ValueError or LookupError for what is
    impossible, and lists in `offers` what a reader may choose. Its `_lines` are its text, and unless it has a `_repr_html_`
    of its own, its picture is its `figure` with the lines below.
    """

    choices: dict[str, Any]
    figure: Callable[[], Figure]
    #: How wide a control is: its label, and all of it.
    widths = ("9em", "30em")

    @abstractmethod
    def _lines(self) -> list[str]:
        """What it says."""

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return self.figure().image + "".join(f"<div>{escape(line)}</div>" for line in self._lines())

    @abstractmethod
    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        """Name of the choice → (label of its control, the options, in a form that `kind` knows)."""

    def choose(self, **choices: Any) -> None:
        """Change some choices; an impossible one raises and changes nothing."""
        self.__dict__.update(type(self)(**{**self.choices, **choices}).__dict__)

    def live_html(self) -> str:
        """The picture beside the controls."""
        return self._repr_html_()

    def controls(self, when: When) -> tuple[list, Callable[[], None]]:
        """The controls from top to bottom, and a function that sets them to the current choices."""
        made = {
            name: control(label, options, self.choices.get(name), self.widths)
            for name, (label, options) in self.offers().items()
        }
        for name, box in made.items():
            box.observe(when(lambda change, name=name: self.choose(**{name: change["new"]})), "value")

        def write() -> None:
            for name, (_, options) in self.offers().items():
                if isinstance(options, Mapping):
                    self._fill(made[name], name, options, when)
                else:
                    made[name].value = self.choices[name]

        return list(made.values()), write

    def _fill(self, box: Any, name: str, options: Mapping, when: When) -> None:
        """Write on the buttons of a box; they are made again, and lose the focus, only where others are offered."""
        import ipywidgets

        offered = [(value, *group) for value, (_, _, *group) in options.items()]
        if getattr(box, "offered", None) != offered:
            box.offered, box.buttons, children = offered, [], []
            for group, found in groupby(options.items(), key=lambda option: option[1][2:]):
                look = {"layout": _SMALL, "style": {"button_color": group[1], "text_color": INK}} if group else {}
                row = []
                for value, (_, said, *_) in found:
                    row.append(ipywidgets.Button(tooltip=said if group else None, **look))
                    row[-1].on_click(when(lambda _, value=value: self.choose(**{name: value})))
                box.buttons += row
                if group:
                    under = [ipywidgets.Label(group[0]), ipywidgets.HBox(row, layout=_WRAP)]
                    row = [ipywidgets.VBox(under, layout={"margin": "0 0.8em 0 0"})]
                children += row
            box.children = children
        for button, (text, *_) in zip(box.buttons, options.values(), strict=True):
            button.description = text

    def widget(self, drawn: Callable[[], None] = lambda: None) -> Any:
        """Controls and picture as an ipywidgets box; `drawn` is called after each change. Raises ImportError without it."""
        import ipywidgets

        picture, note = ipywidgets.HTML(), ipywidgets.HTML()
        writing = []

        def show(sentence: str = "") -> None:
            writing.append(True)  # setting a control must not count as a choice of the reader
            write()
            writing.pop()
            picture.value = self.live_html()
            note.value = f'<div role="status">{escape(sentence)}</div>'
            drawn()

        def when(action: Callable[..., None]) -> Callable[[Any], None]:
            def run(change: Any) -> None:
                if writing:
                    return
                try:
                    action(change)
                except (ValueError, LookupError, OverflowError) as error:
                    return show(str(error))
                show()

            return run

        controls, write = self.controls(when)
        show()
        return ipywidgets.VBox([*controls, note, picture])

    def _ipython_display_(self) -> None:
        from IPython.display import DisplayHandle, display

        still = DisplayHandle()

        def bundle() -> dict[str, str]:
            frame = _FRAME if live else ""
            return {"text/plain": repr(self), "text/html": f'{frame}<div class="{STILL}">{self._repr_html_()}</div>'}

        live = False
        if attended():
            try:
                box = self.widget(lambda: still.update(bundle(), raw=True) if live else None)
            except ImportError:
                pass
            else:
                display({**box._repr_mimebundle_(), "text/plain": _WAITING}, raw=True)
                live = True
        still.display(bundle(), raw=True)


def attended() -> bool:
    """Whether somebody who can answer sent the running cell: programs that execute notebooks allow no input."""
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    return bool(kernel and kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


def kind(options: Sequence | Mapping) -> str:
    """The kind of control: "check" for (False, True), "slider" for numbers, "menu" for words, "typed" for no options.

    "buttons" is for a mapping: what each button chooses → (the text on it, its name), or (text, name, heading, color) for
    buttons that stand in groups.
    """
    if isinstance(options, Mapping):
        return "buttons"
    if tuple(options) == (False, True):
        return "check"
    if not options:
        return "typed"
    return "slider" if all(isinstance(option, int) for option in options) else "menu"


def marks(options: Sequence | Mapping, value: Any) -> list[tuple[str, Any]]:
    """(text, value) of what a slider or a menu offers, in order; a slider also offers the current value."""
    if kind(options) == "slider":
        return [(f"{option:,}", option) for option in sorted({*options, value})]
    return [(str(option), option) for option in options]


def control(label: str, options: Sequence | Mapping, value: Any, widths: tuple[str, str]) -> Any:
    """The widget of a choice, beside its label; buttons are an empty box, which `Explorer` fills."""
    import ipywidgets

    own, whole = widths
    look = {"description": label, "style": {"description_width": own}, "layout": {"width": whole}, "value": value}
    chosen_with = kind(options)
    if chosen_with == "buttons":
        return ipywidgets.HBox(layout=_WRAP)
    if chosen_with == "check":
        return ipywidgets.Checkbox(**look)
    if chosen_with == "typed":
        return ipywidgets.Text(continuous_update=False, **look)
    widget = ipywidgets.SelectionSlider if chosen_with == "slider" else ipywidgets.Dropdown
    return widget(options=marks(options, value), **look)
