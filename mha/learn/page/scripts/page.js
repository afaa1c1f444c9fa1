// The choices, kept in the address after "#", and the page drawn from them.

const DATA = JSON.parse(document.getElementById("data").textContent);
const NAMES = DATA.frameworks.map((one) => one.name);
const CHOICES = {
  lang: Object.keys(DATA.texts), theme: ["auto", "light", "dark"], view: ["one", "all"], framework: NAMES,
  reference: ["", ...NAMES], step: DATA.lessons.steps,
};

/** The choices in an address; unknown ones are left at their defaults. */
function choicesFrom(hash, wide) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const found = { lang: "en", theme: "auto", view: wide ? "all" : "one", framework: NAMES[0], reference: "", step: "W_q" };
  for (const [name, known] of Object.entries(CHOICES)) if (given.has(name) && known.includes(given.get(name))) found[name] = given.get(name);
  const columns = (given.get("columns") || "").split(",").filter((one) => NAMES.includes(one));
  return { ...found, columns: columns.length ? columns : NAMES };
}

const chosen = choicesFrom(location.hash, innerWidth >= 1000);
const play = { seed: 1, sample: 0, sizes: null, drawn: null, steps: null, ring: null };
const PICTURES = [splitsPicture, slotsPicture, bytesPicture, masksPicture, copiesPicture];
const texts = () => DATA.texts[chosen.lang];

function keep() {
  history.replaceState(null, "", `#${new URLSearchParams({ ...chosen, columns: chosen.columns.join(",") })}`);
}

function choose(changes) {
  Object.assign(chosen, changes);
  keep();
}

function drawTexts() {
  translate(document, texts(), chosen.lang);
  document.documentElement.dataset.theme = chosen.theme;
  byId("language").value = chosen.lang;
  byId("theme").value = chosen.theme;
  byId("made").textContent = textOf(texts(), "made", { version: DATA.version });
  const options = [["", textOf(texts(), "common")], ...DATA.frameworks.map((one) => [one.name, one.title])];
  byId("reference").replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  byId("reference").value = chosen.reference;
  byId("facts").replaceChildren(factsTable(DATA, texts()));
  byId("verdict").textContent = verdict(DATA.parity.rows, texts());
  byId("ratios").replaceChildren(...(DATA.parity.rows.length ? [parityTable(DATA, texts())] : []));
}

function drawLessons() {
  const all = chosen.view === "all";
  byId("lessons").classList.toggle("wide", all);
  byId("tabs").hidden = all;
  byId("columns").hidden = !all;
  document.querySelector(`#view input[value="${chosen.view}"]`).checked = true;
  for (const tab of byId("tabs").children) {
    const selected = tab.dataset.name === chosen.framework;
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
  }
  for (const box of byId("columns").querySelectorAll("input")) box.checked = chosen.columns.includes(box.value);
  const title = (DATA.frameworks.find((one) => one.name === chosen.reference) || {}).title;
  byId("legend").textContent = textOf(texts(), title ? "legend_reference" : "legend_common", { framework: title });
  const frameworks = DATA.frameworks.filter((one) => (all ? chosen.columns.includes(one.name) : one.name === chosen.framework));
  const panel = byId("panel");
  for (const [name, value] of [["role", "tabpanel"], ["aria-labelledby", `tab-${chosen.framework}`], ["tabindex", "0"]])
    if (all) panel.removeAttribute(name);
    else panel.setAttribute(name, value);
  panel.replaceChildren(...lessonElements(DATA.lessons.chapters, frameworks, chosen.reference, texts()));
  light(panel, DATA.lessons.lines, chosen.step);
}

/** Read the sizes of the form and compute the steps; if a size is wrong, show why and keep the last steps. */
function compute() {
  const form = byId("sizes");
  const numbers = numbersOf(form, ["B", "Q", "K", "D", "H", "S"], texts());
  if (!numbers) return;
  const found = sizesFrom(numbers, form.elements.lengths.value, form.elements.causal.checked);
  if (!isRight(form, found, texts())) return;
  play.sizes = { ...found, seed: play.seed };
  play.drawn = drawInputs(play.sizes);
  play.steps = computeSteps(play.drawn, play.sizes);
  const { B, Q, K, S, lengths } = found;
  play.ring = visibleSoftmax(play.steps.scores, visibleKeys(B, Q, K, lengths, true, S));
  play.sample = Math.min(play.sample, found.B - 1);
}

function drawSteps() {
  const at = CHOICES.step.indexOf(chosen.step);
  for (const button of byId("steps").querySelectorAll("button")) {
    if (button.dataset.step === chosen.step) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
  const list = byId("steps");
  list.scrollLeft = list.querySelector("[aria-current]").offsetLeft - list.offsetLeft - 40; // where it is a row
  byId("previous").disabled = at === 0;
  byId("next").disabled = at === CHOICES.step.length - 1;
  byId("place").textContent = `${at + 1} / ${CHOICES.step.length}`;
  byId("step-name").textContent = chosen.step;
  byId("meaning").textContent = textOf(texts(), `steps_of.${chosen.step}`);
  const X = play.steps[chosen.step];
  byId("letters").textContent = `(${LETTERS[chosen.step].join(", ")})`;
  byId("numbers").textContent = `(${X.shape.join(", ")})`;
  const samples = Array.from({ length: play.sizes.B }, (_, one) => make("option", { value: one }, String(one)));
  byId("sample").replaceChildren(...samples);
  byId("sample").value = play.sample;
  byId("values").replaceChildren(...slicesOf(chosen.step, X, play.sample, play.sizes).map(valueTable));
  byId("sources").replaceChildren(sourceTable(DATA.lessons, DATA.frameworks, chosen.step));
  const heads = Array.from({ length: play.sizes.H }, (_, head) => head);
  byId("heat").replaceChildren(...heads.map((head) => headTable(play.steps.weights, play.steps.visible, play.sample, head, play.sizes, texts())));
  byId("ring").replaceChildren(...heads.map((head) => ringTable(play.ring, play.sample, head, play.sizes, texts())));
  light(byId("panel"), DATA.lessons.lines, chosen.step);
}

function goToStep(step, focus) {
  choose({ step });
  drawSteps();
  if (focus) byId("steps").querySelector("[aria-current]").focus({ preventScroll: true });
}

function drawAll() {
  drawTexts();
  drawLessons();
  compute();
  drawSteps();
  for (const one of PICTURES) one.draw(texts());
}

/** The name to which arrow keys, Home or End move; undefined for other keys. */
function moved(names, name, key) {
  const at = names.indexOf(name);
  const last = names.length - 1;
  const places = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
  return key in places ? names[Math.min(last, Math.max(0, places[key]))] : undefined;
}

function listen() {
  addEventListener("hashchange", () => { Object.assign(chosen, choicesFrom(location.hash, innerWidth >= 1000)); drawAll(); });
  byId("language").addEventListener("change", (event) => { choose({ lang: event.target.value }); drawAll(); });
  byId("theme").addEventListener("change", (event) => { choose({ theme: event.target.value }); drawTexts(); });
  byId("reference").addEventListener("change", (event) => { choose({ reference: event.target.value }); drawLessons(); });
  byId("view").addEventListener("change", (event) => { choose({ view: event.target.value }); drawLessons(); });
  byId("columns").addEventListener("change", () => {
    const columns = [...byId("columns").querySelectorAll("input:checked")].map((box) => box.value);
    choose({ columns: columns.length ? columns : NAMES });
    drawLessons();
  });
  byId("tabs").addEventListener("click", (event) => {
    if (!event.target.dataset.name) return;
    choose({ framework: event.target.dataset.name });
    drawLessons();
  });
  byId("tabs").addEventListener("keydown", (event) => {
    const framework = moved(NAMES, chosen.framework, event.key);
    if (!framework) return;
    event.preventDefault();
    choose({ framework });
    drawLessons();
    byId(`tab-${framework}`).focus();
  });
  byId("steps").addEventListener("click", (event) => event.target.dataset.step && goToStep(event.target.dataset.step, true));
  byId("steps").addEventListener("keydown", (event) => {
    const step = moved(CHOICES.step, chosen.step, event.key);
    if (!step) return;
    event.preventDefault();
    goToStep(step, true);
  });
  byId("previous").addEventListener("click", () => goToStep(moved(CHOICES.step, chosen.step, "ArrowLeft")));
  byId("next").addEventListener("click", () => goToStep(moved(CHOICES.step, chosen.step, "ArrowRight")));
  byId("sample").addEventListener("change", (event) => { play.sample = Number(event.target.value); drawSteps(); });
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  byId("sizes").addEventListener("input", () => { compute(); drawSteps(); });
  byId("draw").addEventListener("click", () => { play.seed += 1; compute(); drawSteps(); });
  for (const link of document.querySelectorAll("[data-goto]"))
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the address keeps what is chosen
      byId(link.dataset.goto).scrollIntoView();
      byId(link.dataset.goto).focus({ preventScroll: true });
    });
}

byId("tabs").append(...DATA.frameworks.map((one) => make("button", { type: "button", role: "tab", id: `tab-${one.name}`, "data-name": one.name, "aria-controls": "panel", translate: "no" }, one.title)));
byId("columns").append(...DATA.frameworks.map((one) => make("label", { translate: "no" }, make("input", { type: "checkbox", value: one.name }), ` ${one.title}`)));
byId("chapters").append(...DATA.lessons.chapters.map(({ name }) => make("a", { href: `#chapter-${name}`, "data-goto": `chapter-${name}`, translate: "no" }, `${name}.py`)));
byId("steps").append(...CHOICES.step.map((step) => make("li", { class: /^(reshape|permute)_/.test(step) ? "stage-of" : undefined, translate: "no" }, make("button", { type: "button", "data-step": step }, step))));
listen();
for (const one of PICTURES) {
  byId(one.form).addEventListener("input", () => one.draw(texts()));
  one.listen();
}
drawAll();
