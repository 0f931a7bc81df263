// What pages ask Python for. It is loaded at the first question, from the site itself.
const NOT_LOADED = "Python could not be loaded. The page needs a browser with WebAssembly and a web server that is still there: try again.";

let worker = null;
let last = 0;
const waiting = new Map();

// What the planner offers, and how many bytes are loaded; it is there before Python is.
export const offers = fetch(new URL("pyodide/offers.json", import.meta.url)).then((answer) => answer.json());

function started() {
  const made = new Worker(new URL("python-worker.js", import.meta.url), { type: "module" });
  made.onmessage = ({ data }) => {
    if (data.loaded) return waiting.forEach((one) => one.progress(data.loaded));
    const one = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.failed === undefined) one.resolve(data.answer);
    else failed(one, data.failed);
  };
  made.onerror = () => {
    made.terminate();
    worker = null; // so that the next question tries again
    waiting.forEach((one) => failed(one, ""));
    waiting.clear();
  };
  return made;
}

function failed(one, why) {
  one.reject(new Error(why ? `Python failed: ${why.trim().split("\n").pop()}` : NOT_LOADED));
}

// The answer of a function of in_page.py to what is given by name.
function call(name, given, progress) {
  worker ??= started();
  return new Promise((resolve, reject) => {
    waiting.set(++last, { resolve, reject, progress });
    worker.postMessage({ id: last, name, given });
  });
}

// The same, with the status of a page: says that Python is loading and how far it is, and what went wrong.
export async function ask(name, given, place) {
  const { bytes } = await offers;
  const bar = element("progress", { max: bytes, value: 0 }, []);
  bar.setAttribute("aria-label", "Python is loading");
  const says = (text, ...more) => place.replaceChildren(text, ...more);
  const size = `${Math.round(bytes / 1e6)} MB`;
  let loading = false;
  const slow = setTimeout(() => loading || says("Computing…"), 150);
  try {
    const answer = await call(name, given, (loaded) => {
      if (!loading) says(`Python is loading, about ${size}. `, bar);
      loading = true;
      bar.value = loaded;
      if (loaded >= bytes) says("Python starts…");
    });
    says("");
    return answer;
  } catch (error) {
    says("");
    return { error: error.message };
  } finally {
    clearTimeout(slow);
  }
}

// Functions are called one after another; while one runs, only the last request for the next one is kept.
export function latest(run) {
  let running = false;
  let next = null;
  return async function again(...given) {
    if (running) return void (next = given);
    running = true;
    try {
      await run(...given);
    } finally {
      running = false;
    }
    if (next) {
      const kept = next;
      next = null;
      await again(...kept);
    }
  };
}

// An element with properties and children; texts stay texts.
export function element(tag, properties, children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
