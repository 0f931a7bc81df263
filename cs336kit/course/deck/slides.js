// Formulas are set before the slides begin, so that no slide changes while it is seen.
const dark = {
  key: "slides-dark",
  show() { document.documentElement.classList.toggle("dark", localStorage.getItem(this.key) === "yes"); },
  toggle() {
    localStorage.setItem(this.key, localStorage.getItem(this.key) === "yes" ? "no" : "yes");
    this.show();
  },
};
dark.show();
window.addEventListener("storage", () => dark.show());

function begin() {
  // What a screen reader hears of a formula would be seen twice in the speaker's window.
  document.querySelectorAll("aside.notes mjx-assistive-mml").forEach((formula) => formula.remove());
  const root = getComputedStyle(document.documentElement);
  return Reveal.initialize({
    width: parseInt(root.getPropertyValue("--width")),
    height: parseInt(root.getPropertyValue("--height")),
    margin: 0,
    center: false,
    hash: true,
    controls: false,
    navigationMode: "linear",
    pdfSeparateFragments: false,
    pdfMaxPagesPerSlide: 1,
    scrollActivationWidth: null,
    slideNumber: "c/t",
    transition: "none",
    backgroundTransition: "none",
    keyboard: { 68: () => dark.toggle() },
    plugins: [RevealNotes],
  });
}

window.MathJax = {
  tex: { inlineMath: [["$", "$"], ["\\(", "\\)"]], processEscapes: true },
  // A dollar in an output is money.
  options: { enableMenu: false, ignoreHtmlClass: "jp-OutputArea|jp-InputArea-editor" },
  svg: { scale: 0.85 },
  startup: { pageReady: () => MathJax.startup.defaultPageReady().then(begin) },
};
