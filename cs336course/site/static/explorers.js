// The explorers: the same Python classes as in the lessons draw the pictures, and say what there is to choose.
import { ask, element, latest } from "./python.js";

for (const place of document.querySelectorAll(".cs336kit-explorer")) begin(place);

function begin(place) {
  const name = place.dataset.explorer;
  const start = element("button", { type: "button" }, ["Start"]);
  const status = element("div", { role: "status", className: "says" }, []);
  const controls = element("div", { className: "fields" }, []);
  const picture = place.querySelector(".cs336kit-still");
  place.prepend(start, controls, status);
  controls.hidden = true;

  const choose = latest(async (choices) => {
    const answer = await ask("explore", { name, choices }, status);
    if (answer.error) status.textContent = answer.error;
    if (!answer.html) return;
    picture.innerHTML = answer.html;
    write(controls, answer.controls, name, choose);
    if (start.isConnected) {
      start.remove();
      controls.hidden = false;
      controls.querySelector("input, select, button").focus();
    }
  });
  start.onclick = () => choose({});
}

// Controls that are there keep their place and the focus; only what is chosen with them is written.
function write(controls, wanted, explorer, choose) {
  wanted.forEach((one, number) => {
    const shape = JSON.stringify([one.name, one.kind, one.kind === "buttons" ? one.marks.length : one.marks]);
    let field = controls.children[number];
    if (field?.dataset.shape !== shape) {
      const made = element("div", { className: `field ${one.kind}` }, parts(one, `${explorer}-${one.name}`, choose));
      made.dataset.shape = shape;
      if (field) field.replaceWith(made);
      else controls.append(made);
      field = made;
    }
    fill(field, one);
  });
}

function parts(one, id, choose) {
  const pick = (value) => choose({ [one.name]: value });
  const label = element("label", { htmlFor: id }, [one.label]);
  if (one.kind === "buttons") {
    const row = element("div", { className: "buttons" }, one.marks.map(([, value]) => element("button", { type: "button", onclick: () => pick(value) }, [])));
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", one.label);
    return [element("span", {}, [one.label]), row];
  }
  if (one.kind === "check") {
    const box = element("input", { type: "checkbox", id, onchange: () => pick(box.checked) }, []);
    return [element("div", { className: "switch" }, [box, label])];
  }
  if (one.kind === "typed") {
    return [label, element("input", { type: "text", id, spellcheck: false, autocomplete: "off", onchange: (event) => pick(event.target.value) }, [])];
  }
  const values = one.marks.map(([, value]) => value);
  if (one.kind === "menu") {
    return [label, element("select", { id, onchange: (event) => pick(values[event.target.selectedIndex]) }, one.marks.map(([text]) => element("option", {}, [text])))];
  }
  const output = element("output", {}, []);
  output.setAttribute("for", id);
  const slider = element("input", { type: "range", id, min: 0, max: values.length - 1 }, []);
  slider.oninput = () => {
    said(slider, output, one.marks[slider.value][0]);
    pick(values[slider.value]);
  };
  return [element("span", { className: "named" }, [label, output]), slider];
}

function said(slider, output, text) {
  output.textContent = text;
  slider.setAttribute("aria-valuetext", text);
}

function fill(field, { kind, marks, value }) {
  const control = field.querySelector("input, select");
  const place = marks.findIndex(([, one]) => one === value);
  if (kind === "buttons") {
    field.querySelectorAll("button").forEach((button, number) => {
      const [text, , name] = marks[number];
      button.textContent = text;
      button.setAttribute("aria-label", text === name ? name : `${text}: ${name}`);
      button.title = name;
    });
  } else if (kind === "check") control.checked = value;
  else if (kind === "typed") control.value = value;
  else if (kind === "menu") control.selectedIndex = place;
  else {
    control.value = place;
    said(control, field.querySelector("output"), marks[place][0]);
  }
}
