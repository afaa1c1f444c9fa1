// The tables of differences and of parity, as measured when the page was made.

/** A text whose lines may break after dots, bars and brackets, but not within a name. */
function breakable(text) {
  return text.split(/(?<=[._/(])(?=[A-Za-z])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));
}

/** A fact, which is pairs of a word and a detail; only words are translated. */
function factElement([word, detail], texts) {
  const parts = [];
  if (word) parts.push(textOf(texts, `words.${word}`));
  if (word && detail) parts.push(": ");
  if (detail) parts.push(make("code", { translate: "no" }, ...breakable(detail)));
  return make("span", { class: word === "failed" ? "fact problem" : "fact" }, ...parts);
}

/** A framework's name with its versions, or with the reason why nothing was measured. */
function columnHead({ name, title }, found) {
  const versions = Object.entries(found).filter(([key]) => !["mha", "python", "device"].includes(key));
  return make("th", { scope: "col", "data-column": name }, title, make("small", {}, versions.map((one) => one.join(" ")).join(", ")));
}

function factsTable(data, texts) {
  const found = (one) => data.measured[one.name] || {};
  const without = (one) => Boolean(found(one).facts) && found(one).facts.layer[0][0] === "none";
  const frameworks = [...data.frameworks].sort((one, other) => without(one) - without(other)); // those with a layer first
  const known = frameworks.map(found);
  const head = frameworks.map((one, at) => columnHead(one, known[at].versions || {}));
  const cell = (found, fact) => {
    if (found.problem) return make("td", { class: "problem" }, found.problem);
    if (!found.facts) return make("td", { class: "remark" }, textOf(texts, "not_installed"));
    return make("td", { "data-fact": fact }, ...found.facts[fact].map((one) => factElement(one, texts)));
  };
  const rows = data.facts.map((fact) => make("tr", {}, make("th", { scope: "row" }, textOf(texts, `facts.${fact}`)), ...known.map((one) => cell(one, fact))));
  return make("table", { class: "grid" }, make("thead", {}, make("tr", {}, make("td"), ...head)), make("tbody", {}, ...rows));
}

/** The largest ratio of a check, with a bar that is full at the bound. */
function ratioCell(row, texts) {
  if (!row) return make("td", { class: "remark" }, "–");
  const ratio = row.ratio === null ? "∞" : row.ratio === 0 ? "0" : row.ratio < 0.01 ? "< 0.01" : row.ratio.toFixed(2);
  const parts = [make("span", { class: "number" }, ratio), make("small", {}, textOf(texts, "parity_count", { count: row.count }))];
  const full = Math.min(1, row.ratio === null ? 1 : row.ratio);
  const bar = make("span", { class: "meter", "aria-hidden": "true" }, make("span", { style: { width: `${100 * full}%` } }));
  if (row.failed) return make("td", { class: "failed" }, ...parts, textOf(texts, "parity_failed", { failed: row.failed }), bar);
  return make("td", {}, ...parts, bar);
}

function parityTable(data, texts) {
  const { rows, backends } = data.parity;
  const checks = [...new Set(rows.map((row) => row.check))];
  const frameworks = data.frameworks.filter((one) => rows.some((row) => row.backend === one.name));
  const head = frameworks.map((one) => columnHead(one, backends[one.name] || {}));
  const body = checks.map((check) => {
    const found = frameworks.map((one) => rows.find((row) => row.check === check && row.backend === one.name));
    return make("tr", {}, make("th", { scope: "row", translate: "no" }, check), ...found.map((row) => ratioCell(row, texts)));
  });
  return make("table", { class: "grid" }, make("thead", {}, make("tr", {}, make("td"), ...head)), make("tbody", {}, ...body));
}

/** The result of parity, in a sentence. */
function verdict(rows, texts) {
  const count = rows.reduce((sum, row) => sum + row.count, 0);
  const failed = rows.reduce((sum, row) => sum + row.failed, 0);
  return textOf(texts, failed ? "parity_wrong" : count ? "parity_well" : "parity_none", { count, failed });
}
