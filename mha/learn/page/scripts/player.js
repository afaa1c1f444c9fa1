// The step player: sizes from a form, steps computed from them, and each step shown as tables.

const LETTERS = {
  W_q: ["B", "Q", "H*d"],
  W_k: ["B", "K", "H*d"],
  W_v: ["B", "K", "H*d"],
  reshape_q: ["B", "Q", "H", "d"],
  permute_q: ["B", "H", "Q", "d"],
  split_q: ["B*H", "Q", "d"],
  split_k: ["B*H", "K", "d"],
  split_v: ["B*H", "K", "d"],
  visible: ["B", "1", "Q", "K"],
  scores: ["B*H", "Q", "K"],
  weights: ["B*H", "Q", "K"],
  pooled: ["B*H", "Q", "d"],
  reshape_pooled: ["B", "H", "Q", "d"],
  permute_pooled: ["B", "Q", "H", "d"],
  merged: ["B", "Q", "H*d"],
  output: ["B", "Q", "D"],
};

// From this weight on, white text is easier to read than black. The better of the two has a contrast of at least 4.5.
const DARK = 0.651;

/** Sizes {B, Q, K, D, H, S, lengths, causal} of numbers and texts, or {wrong, values}, where wrong is the key of an error's text. */
function sizesFrom(numbers, lengths, causal) {
  const { B, K, D, H } = numbers;
  if (D % H) return { wrong: "bad_heads", values: { hiddens: D, heads: H } };
  const given = lengths.trim() === "" ? Array(B).fill(K) : lengths.split(/[\s,;、，]+/).filter(Boolean).map(Number);
  const fits = (one) => Number.isInteger(one) && one >= 0 && one <= K;
  if (given.length !== B || !given.every(fits)) return { wrong: "bad_lengths", values: { batch: B, keys: K } };
  return { ...numbers, lengths: given, causal };
}

/** The tables of one sample of a step: {title, cells: [row][column] of {value, head}}. */
function slicesOf(name, X, sample, { H, D }) {
  const letters = LETTERS[name];
  const leading = X.shape.slice(0, -2);
  const [rows, columns] = X.shape.slice(-2);
  const found = [];
  for (let at = 0; at < size(leading); at++) {
    const index = leading.map((_, axis) => Math.floor(at / size(leading.slice(axis + 1))) % leading[axis]);
    const both = letters[0] === "B*H";
    if ((both ? Math.floor(index[0] / H) : index[0]) !== sample) continue;
    const headOf = (row, column) => {
      if (both) return index[0] % H;
      if (letters.at(-1) === "H*d") return Math.floor((column * H) / D);
      const axis = letters.indexOf("H");
      return axis < 0 ? null : axis === letters.length - 2 ? row : index[axis];
    };
    const cells = Array.from({ length: rows }, (_, row) =>
      Array.from({ length: columns }, (_, column) => ({ value: X.data[(at * rows + row) * columns + column], head: headOf(row, column) })),
    );
    found.push({ title: `${name}[${index.join(", ")}]`, cells });
  }
  return found;
}

/** A number in few characters; a boolean as in Python. */
function shown(value) {
  return typeof value === "boolean" ? (value ? "True" : "False") : value.toFixed(2).replace(/^-(0\.00)$/, "$1");
}

/** A table in a box that scrolls. cells: {value, head}, and where it is known label, where a number comes from, and followed. */
function valueTable({ title, cells, rows = cells.map((_, at) => String(at)) }) {
  const tint = (head) => (head === null ? {} : { "--hue": (head * 137 + 210) % 360, "--tint": "18%" });
  const head = make("tr", {}, make("td", { style: { border: "0", background: "none" } }), ...cells[0].map((_, at) => make("th", { scope: "col" }, String(at))));
  const text = ({ value, label }) => (label ? [shown(value), make("small", {}, label)] : [shown(value)]);
  const element = (cell) => make("td", { style: tint(cell.head), class: cell.followed ? "followed" : undefined }, ...text(cell));
  const body = cells.map((row, at) => make("tr", {}, make("th", { scope: "row" }, rows[at]), ...row.map(element)));
  return make("div", { class: "box", tabindex: "0", role: "group", "aria-label": title }, make("table", {}, make("caption", {}, title), make("thead", {}, head), make("tbody", {}, ...body)));
}

/** Weights as a table: larger ones are darker. cell(row, column) is {weight, label}, {text} without a weight, or a text: those
 * cells are hatched. */
function heatTable(title, rows, columns, cell) {
  const element = (found) => {
    if (typeof found === "string") return make("td", { class: "hidden-key" }, make("span", { class: "out-of-sight" }, found));
    const { weight, label, text } = found;
    if (text) return make("td", { class: "slot seen" }, text);
    const parts = label ? [make("small", {}, label), " ", shown(weight)] : [shown(weight)];
    return make("td", { class: weight > DARK ? "strong" : undefined, style: { "--weight": weight.toFixed(4) } }, ...parts);
  };
  const body = rows.map((row, at) => make("tr", {}, make("th", { scope: "row" }, row), ...columns.map((_, column) => element(cell(at, column)))));
  const top = make("tr", {}, make("th", {}, ""), ...columns.map((column) => make("th", { scope: "col" }, column)));
  return make("div", { class: "box", tabindex: "0", role: "group", "aria-label": title }, make("table", { class: "heat" }, make("caption", {}, title), make("thead", {}, top), make("tbody", {}, ...body)));
}

/** So many names, as "k0", "k1", ... */
function named(letter, count) {
  return Array.from({ length: count }, (_, at) => `${letter}${at}`);
}

/** One head's weights of queries and keys. */
function headTable(weights, visible, sample, head, { Q, K, H }, texts) {
  const cell = (q, k) => {
    if (!visible.data[(sample * Q + q) * K + k]) return textOf(texts, "hidden");
    return { weight: weights.data[((sample * H + head) * Q + q) * K + k] };
  };
  return heatTable(`${textOf(texts, "head")} ${head}`, named("q", Q), named("k", K), cell);
}

/** One head's weights by the slots of a cache: each real token is a row, and a cell says which key is in the slot by then. */
function ringTable(weights, sample, head, { Q, K, H, S, lengths }, texts) {
  const cell = (t, slot) => {
    const k = positionsIn(S, t + 1)[slot];
    return k < 0 ? textOf(texts, "empty") : { weight: weights.data[((sample * H + head) * Q + t) * K + k], label: `k${k}` };
  };
  const lost = (t) => (t < S ? "" : ` (${textOf(texts, "lost")} k${t - S})`);
  const rows = named("t", Math.min(Q, lengths[sample])).map((name, t) => name + lost(t));
  return heatTable(`${textOf(texts, "head")} ${head}`, rows, named("s", S), cell);
}

/** Each framework's line for a step. */
function sourceTable(lessons, frameworks, step) {
  const rows = frameworks.map(({ name, title }) => {
    const place = lessons.lines[name][step];
    const code = make("td", {}, sourceLine(lessons.chapters, name, place));
    return make("tr", { translate: "no", "data-source": name }, make("th", { scope: "row" }, title), code, make("td", { class: "at" }, place));
  });
  return make("table", {}, make("tbody", {}, ...rows));
}
