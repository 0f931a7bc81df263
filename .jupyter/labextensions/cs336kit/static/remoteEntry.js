/* Figures are drawn dark on white. Where JupyterLab's theme is dark, they are shown light on dark, as the site shows them.
   JupyterLab expects of an extension what a packer would write: a container with a module whose default is a plugin. */
(() => {
  const style = `
    body[data-jp-theme-light="false"] .jp-RenderedHTMLCommon img[src^="data:image/svg+xml"],
    body[data-jp-theme-light="false"] .jupyter-widgets img[src^="data:image/svg+xml"],
    body[data-jp-theme-light="false"] :is(.cs336kit-still, .jupyter-widgets) :is(table[aria-label], span[style*="background"]) {
      filter: invert(0.93) hue-rotate(180deg);
    }`;
  const plugin = {
    id: "cs336kit:dark",
    autoStart: true,
    activate: () => {
      document.head.appendChild(document.createElement("style")).textContent = style;
    },
  };
  window._JUPYTERLAB = window._JUPYTERLAB ?? {};
  window._JUPYTERLAB.cs336kit = { init: () => {}, get: async () => () => ({ __esModule: true, default: plugin }) };
})();
