/* On paper nothing can be opened: everything folded is open there, and folded again on the screen. */
(() => {
  const opened = new Set();
  const open = () => document.querySelectorAll("main details:not([open])").forEach((fold) => {
    fold.open = true;
    opened.add(fold);
  });
  const fold = () => {
    opened.forEach((one) => { one.open = false; });
    opened.clear();
  };
  addEventListener("beforeprint", open);
  addEventListener("afterprint", fold);
  matchMedia("print").addEventListener("change", (paper) => (paper.matches ? open() : fold()));
})();
