// Chooses among the claims by topic, verdict and words. What is chosen stands in the address, so that it can be sent.
const form = document.getElementById("claims-filter");
const topics = [...document.querySelectorAll("#claims > details")];
const claims = topics.flatMap((topic) => [...topic.querySelectorAll("li")]);
const heads = new Map(topics.map((topic) => [topic, topic.querySelector("summary").textContent]));
const nameOf = (topic) => heads.get(topic).split(":")[0];
for (const topic of topics) form.elements.topic.add(new Option(nameOf(topic), topic.dataset.topic));

function choose() {
  const chosen = Object.fromEntries(new FormData(form));
  const words = chosen.text.trim().toLowerCase();
  const asked = Boolean(chosen.topic || chosen.verdict || words);
  for (const topic of topics) {
    for (const claim of topic.querySelectorAll("li")) {
      claim.hidden =
        (chosen.topic && topic.dataset.topic !== chosen.topic) ||
        (chosen.verdict && claim.querySelector("b").textContent !== chosen.verdict) ||
        !claim.textContent.toLowerCase().includes(words);
    }
    const here = topic.querySelectorAll("li:not([hidden])").length;
    topic.querySelector("summary").textContent = asked ? `${nameOf(topic)}: ${here} of ${topic.querySelectorAll("li").length} claims` : heads.get(topic);
    topic.hidden = !here;
    topic.open = asked;
  }
  const found = claims.filter((claim) => !claim.hidden).length;
  form.querySelector("output").value = `${found} of ${claims.length} claims`;
  const told = Object.entries(chosen).filter(([, value]) => value);
  history.replaceState(null, "", told.length ? `#${new URLSearchParams(told)}` : location.pathname);
}

// A link within the page leads to a heading, and chooses nothing.
function arrived() {
  const asked = [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => form.elements[name]);
  if (asked.length) form.reset();
  for (const [name, value] of asked) form.elements[name].value = value;
  choose();
}

form.addEventListener("input", choose);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
addEventListener("hashchange", arrived);
arrived();
