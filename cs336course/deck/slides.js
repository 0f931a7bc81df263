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

// Everything on a slide, text and figures, is drawn at the largest multiple of its normal size at which nothing runs over.
function fit(slide) {
  const figures = [...slide.querySelectorAll("img")];
  const title = slide.querySelector("h2, h3")?.innerText ?? "";
  const alone = figures.length > 0 && slide.innerText.trim() === title.trim();
  slide.classList.toggle("alone", alone);
  const fits = (by) => {
    slide.style.setProperty("--by", by);
    slide.classList.toggle("larger", by > 1);
    for (const figure of figures) figure.style.cssText = `width: ${by * figure.naturalWidth}px`;
    return slide.scrollWidth <= slide.clientWidth && slide.scrollHeight <= slide.clientHeight;
  };
  for (let by = alone ? 3 : slide.dataset.size === "opening" ? 1.54 : 1.3; by > 0.5 && !fits(by); by -= 0.02);
}

async function begin() {
  await Promise.allSettled([...document.images].map((image) => image.decode()));
  document.documentElement.classList.add("fitting");
  document.querySelectorAll(".slides > section > section").forEach(fit);
  document.documentElement.classList.remove("fitting");
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
