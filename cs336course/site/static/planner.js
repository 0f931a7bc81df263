// The planner: a form of the options of `cs336kit plan`, and what the command answers, by the kit's own Python.
import { ask, element, latest, offers } from "./python.js";

const GIB = 2 ** 30;
const CONFIG = "config.json";
// What the form holds at first: a question whose answer has all parts.
const BEGINNING = "model=llama-3-8b&tokens=15T&count=64";

const { models, options } = await offers;
const root = document.getElementById("planner");
const status = element("div", { role: "status", className: "says" }, []);
const refusal = element("p", { role: "alert", className: "refusal" }, []);
const result = element("section", { hidden: true }, []);
const form = element("form", { noValidate: true }, fields());
root.replaceChildren(form, status, refusal, result);

// Sets of fields, each under the name of its group in the command.
function grouped(those) {
  const groups = new Map();
  for (const option of those) groups.set(option.group, [...(groups.get(option.group) ?? []), field(option)]);
  return [...groups].map(([title, made]) => fieldset(title, made));
}

function fields() {
  const config = element("textarea", { name: "config", rows: 6, spellcheck: false, id: "planner-config" }, []);
  const file = element("input", { type: "file", accept: ".json,application/json" }, []);
  file.onchange = async () => file.files.length && read(file.files[0]);
  const drop = element("details", {}, [
    element("summary", {}, ["A model of your own: its config.json"]),
    element("p", {}, ["Paste it, drop the file here, or choose it. It stays in this page, and takes the place of the model."]),
    element("label", {}, ["text of config.json", config]),
    element("label", {}, ["its file", file]),
  ]);
  drop.id = "planner-own";
  drop.ondragover = (event) => event.preventDefault();
  drop.ondrop = (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
  };
  const model = { name: "model", choices: [], default: "", switch: false, help: "a name or hub id, or a number of parameters such as 70B" };
  return [
    fieldset("the model", [field(model, models), drop]),
    ...grouped(options.filter((one) => one.first)),
    element("details", { id: "planner-more" }, [
      element("summary", {}, ["More options"]),
      ...grouped(options.filter((one) => !one.first)),
    ]),
    element("p", {}, [element("button", { type: "submit" }, ["Compute"])]),
  ];
}

function fieldset(title, those) {
  return element("fieldset", {}, [element("legend", {}, [title]), element("div", { className: "fields" }, those)]);
}

// A labeled control of one option; `names` are suggested where it is free.
function field(option, names = []) {
  const id = `planner-${option.name}`;
  const label = element("label", { htmlFor: id }, [option.name.replaceAll("_", " ")]);
  // Where the help lists the names, the menu does.
  const help = element("small", { id: `${id}-help` }, option.help === option.choices.join(", ") ? [] : [option.help]);
  let control;
  if (option.switch) control = element("input", { type: "checkbox" }, []);
  else if (option.choices.length) {
    control = element("select", {}, option.choices.map((name) => element("option", { defaultSelected: name === option.default }, [name])));
    if (option.default === null) control.prepend(element("option", { value: "", defaultSelected: true }, ["by default"]));
  } else control = element("input", { type: "text", placeholder: option.default ?? "", autocomplete: "off", spellcheck: false }, []);
  Object.assign(control, { id, name: option.name });
  control.setAttribute("aria-describedby", help.id);
  const parts = option.switch ? [element("div", { className: "switch" }, [control, label]), help] : [label, control, help];
  if (names.length) {
    control.setAttribute("list", `${id}-names`);
    parts.push(element("datalist", { id: `${id}-names` }, names.map((name) => element("option", { value: name }, []))));
  }
  return element("div", { className: "field" }, parts);
}

async function read(file) {
  form.elements.config.value = await file.text();
  changed();
}

// -- what is chosen: in the page's address, and as the words of the command -------------------------------------------

// Name → text of all that differs from what the command takes by itself.
function chosen() {
  const found = new URLSearchParams();
  for (const name of ["model", "config", ...options.map((option) => option.name)]) {
    const control = form.elements[name];
    const option = options.find((one) => one.name === name);
    const value = control.type === "checkbox" ? (control.checked ? "on" : "") : control.value.trim();
    if (value && value !== option?.default) found.set(name, value);
  }
  return found;
}

// The question in the address, if there is one: a link within the page leads to a heading.
function asked() {
  const kept = new URLSearchParams(location.hash.slice(1));
  return kept.has("model") || kept.has("config") ? kept : null;
}

function restore(kept) {
  form.reset();
  for (const [name, value] of kept) {
    const control = form.elements[name];
    if (!control) continue;
    if (control.type === "checkbox") control.checked = value === "on";
    else {
      control.value = value;
      // What no menu has is not dropped: the command says what is wrong with it.
      if (control.value !== value && control.options) control.add(new Option(value, value, false, true));
    }
  }
  document.getElementById("planner-own").open = kept.has("config");
  document.getElementById("planner-more").open = options.some((option) => !option.first && kept.has(option.name));
  form.elements.model.disabled = kept.has("config");
}

function words(choices) {
  const line = [choices.has("config") ? CONFIG : (choices.get("model") ?? "")];
  for (const { name, flag, switch: alone } of options) {
    const value = choices.get(name);
    if (value === null) continue;
    if (alone) line.push(flag);
    else if (value.startsWith("-")) line.push(`${flag}=${value}`);
    else line.push(flag, value);
  }
  return line;
}

function command(line) {
  const quoted = line.map((word) => (/^[\w.,:@%+=\/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`));
  return `cs336kit plan ${quoted.join(" ")}`;
}

// -- the answer --------------------------------------------------------------------------------------------------------

const compute = latest(async () => {
  const choices = chosen();
  history.replaceState(null, "", `#${choices}`);
  const line = words(choices);
  const answer = await ask("plan", { line, config: choices.get("config") ?? "" }, status);
  refusal.textContent = answer.error ?? "";
  result.hidden = Boolean(answer.error);
  if (answer.error) return;
  const said = answer.text.split("\n").filter((one) => /^(time|it fits|it does not fit|largest micro-batch)/.test(one));
  const { days, layouts, run_days: run } = answer.values;
  if (run && run.lower > days) said.push(`at these steps at least ${run.lower.toLocaleString("en", { maximumSignificantDigits: 3 })} days`);
  if (layouts) said.push(layouts.length ? `the quickest layout that fits: ${layouts[0].layout}` : "no layout fits");
  status.textContent = said.join(" · ").replace(/; what helps.*/, "");
  result.replaceChildren(...shown(answer, command(line), choices.has("config")));
});

function shown({ values, text }, line, own) {
  const copy = element("button", { type: "button" }, ["Copy"]);
  const code = element("code", {}, [line]);
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(line);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // where a page may not copy, what is to be copied is marked
    }
  };
  return [
    element("h2", {}, ["Memory of one accelerator"]),
    ...memory(values),
    element("details", {}, [element("summary", {}, ["All that the command says"]), scrolling(text, "the command's answer")]),
    element("p", {}, own ? [`The same in a terminal, beside a file ${CONFIG} with this text:`] : ["The same in a terminal:"]),
    element("div", { className: "line" }, [scrolling(code, "the command"), copy]),
  ];
}

function scrolling(content, name) {
  const box = element("pre", { tabIndex: 0, ariaLabel: name }, [content]);
  box.setAttribute("role", "region");
  return box;
}

// The peak by bucket and the allowance beside what the accelerator has, as a bar and as a table.
function memory(values) {
  const parts = Object.entries(values.memory_bytes).map(([name, size]) => [name, size, name.replaceAll(" ", "-")]);
  const free = Object.values(values.allowance_bytes).reduce((sum, size) => sum + size, 0);
  const room = values.available_bytes;
  const most = Math.max(values.total_bytes + free, room);
  const gib = (size) => (size / GIB).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const segments = [...parts, ["allowance", free, "free"]].map(([, size, look]) => {
    const made = element("span", { className: `part ${look}` }, []);
    made.style.width = `${(100 * size) / most}%`;
    return made;
  });
  const limit = element("span", { className: "limit" }, []);
  limit.style.left = `${(100 * room) / most}%`;
  const bar = element("div", { className: "bar" }, [...segments, limit]);
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `${gib(values.total_bytes)} GiB and an allowance of ${gib(free)} GiB, of ${gib(room)} GiB; the table has the parts.`);
  const row = (name, size, look = "none") => {
    const head = element("th", { scope: "row" }, [element("span", { className: `key ${look}` }, []), name]);
    return element("tr", {}, [head, element("td", {}, [gib(size)]), element("td", {}, [`${((100 * size) / room).toFixed(1)} %`])]);
  };
  const head = ["", "GiB", `of ${values.accelerator}`].map((name) => element("th", { scope: "col" }, [name]));
  const when = values.peak_moment ? `at the peak of a step, ${values.peak_moment}` : "without activations";
  const table = element("table", {}, [
    element("caption", {}, [`Memory ${when}`]),
    element("thead", {}, [element("tr", {}, head)]),
    element("tbody", {}, [
      ...parts.map((part) => row(...part)),
      row("together", values.total_bytes),
      row("allowance", free, "free"),
      row("available", room),
    ]),
  ]);
  return [bar, element("div", { className: "wide" }, [table])];
}

// -- hands -------------------------------------------------------------------------------------------------------------

let begun = false;
function changed() {
  form.elements.model.disabled = Boolean(form.elements.config.value.trim());
  if (begun) compute();
}

form.onchange = changed;
form.onsubmit = (event) => {
  event.preventDefault();
  begun = true;
  compute();
};
// Whoever follows a link to a question wants its answer.
function arrived() {
  const kept = asked();
  if (!kept) return;
  restore(kept);
  form.requestSubmit();
}

addEventListener("hashchange", arrived);
restore(new URLSearchParams(BEGINNING));
arrived();
