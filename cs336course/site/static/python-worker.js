// Python in a thread of its own, so that the page never freezes: Pyodide, and the packed kit.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const folder = new URL("pyodide/", import.meta.url).href;

// Pyodide says nothing of its progress, so the bytes of its files are counted on their way.
let loaded = 0;
const plain = self.fetch;
// Where one is missing, Pyodide waits forever, so the page hears of it from here.
function missing(why) {
  reportError(why);
  throw why;
}
self.fetch = async (...request) => {
  const answer = await plain(...request).catch(missing);
  if (!answer.ok) missing(new Error(`${answer.status} ${answer.url}`));
  const counting = new TransformStream({
    transform(chunk, out) {
      loaded += chunk.byteLength;
      self.postMessage({ loaded });
      out.enqueue(chunk);
    },
  });
  return new Response(answer.body.pipeThrough(counting), { headers: answer.headers });
};

async function started() {
  const [python, kit] = await Promise.all([loadPyodide({ indexURL: folder }), self.fetch(folder + "kit.zip")]);
  python.unpackArchive(await kit.arrayBuffer(), "zip");
  return python.pyimport("cs336course.site.in_page");
}

if (!self.WebAssembly) throw new Error("no WebAssembly");
const ready = started();
ready.catch(reportError); // the page says so, and the next question starts anew
self.onmessage = async ({ data: { id, name, given } }) => {
  try {
    const page = await ready;
    self.postMessage({ id, answer: JSON.parse(page.call(name, JSON.stringify(given))) });
  } catch (error) {
    self.postMessage({ id, failed: String(error.message ?? error) });
  }
};
