// Formulas are set before the slides begin, so that no slide changes while it is seen.
const dark = {
  key: "slides-dark",
  look: document.documentElement.classList,
  // A browser that blocks cookies, for one in a frame, refuses the storage too. Then the choice lasts as long as the page.
  kept(use) { try { return use(localStorage); } catch { return null; } },
  show() { this.look.toggle("dark", this.kept((storage) => storage.getItem(this.key)) === "yes"); },
  toggle() {
    const now = this.look.toggle("dark");
    this.kept((storage) => storage.setItem(this.key, now ? "yes" : "no"));
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
