// Why one head must average: a task that copies two tokens, with numbers that Python drew and the best layer for each weight.

/** The solution W (A, L) of least squares, P (N, A) times W = Y (N, L), as lists of rows, by Gauss on the normal equations. */
function leastSquares(P, Y) {
  const A = P[0].length;
  const product = (X, i, Z, j) => X.reduce((sum, row, n) => sum + row[i] * Z[n][j], 0);
  const rows = Array.from({ length: A }, (_, i) => [...P[0].map((_, j) => product(P, i, P, j)), ...Y[0].map((_, j) => product(P, i, Y, j))]);
  for (let at = 0; at < A; at++) {
    const best = rows.slice(at).reduce((found, row, more) => (Math.abs(row[at]) > Math.abs(rows[found][at]) ? at + more : found), at);
    [rows[at], rows[best]] = [rows[best], rows[at]];
    for (let row = 0; row < A; row++) {
      const factor = rows[row][at] / rows[at][at];
      if (row !== at) rows[row] = rows[row].map((one, column) => one - factor * rows[at][column]);
    }
  }
  return rows.map((row, at) => row.slice(A).map((one) => one / row[at]));
}

/** What the best layer gives whose heads have these weights (H, T), of values (N, T, n) of which the first two tokens are wanted:
 * {wanted, output} (N, 2 * n) each, and the relative squared errors of both things and of all. */
function copied(values, weights) {
  const wanted = values.map((tokens) => [...tokens[0], ...tokens[1]]);
  const pooled = values.map((tokens) => weights.flatMap((row) => tokens[0].map((_, f) => row.reduce((sum, one, t) => sum + one * tokens[t][f], 0))));
  const W = leastSquares(pooled, wanted);
  const output = pooled.map((row) => W[0].map((_, column) => row.reduce((sum, one, at) => sum + one * W[at][column], 0)));
  const wrong = output.map((row, at) => row.map((one, column) => one - wanted[at][column]));
  const square = (rows, from, to) => rows.reduce((sum, row) => sum + row.slice(from, to).reduce((total, one) => total + one * one, 0), 0);
  const error = (from, to) => square(wrong, from, to) / square(wanted, from, to);
  const n = values[0][0].length;
  return { wanted, output, errors: [error(0, n), error(n, 2 * n)], all: error(0, 2 * n) };
}

/** One head with this share of its weight on token 0, and the rest on token 1. */
function oneHead(share, T) {
  return [[share, 1 - share, ...Array(T - 2).fill(0)]];
}

const copiesPicture = {
  form: "copies-choices",
  draw(texts) {
    const { values, least, constructed, fits } = DATA.copying;
    const T = values[0].length;
    const share = Number(byId("copies-share").value) / 100;
    const sample = Number(byId("copies-sample").value);
    const one = copied(values, oneHead(share, T));
    const two = copied(values, [oneHead(1, T)[0], oneHead(0, T)[0]]);
    this.found = { share, one, two };
    const n = values[0][0].length;
    const names = [textOf(texts, "copies.wanted"), textOf(texts, "copies.one"), textOf(texts, "copies.two")];
    const cells = [one.wanted, one.output, two.output].map((rows) => rows[sample].map((value, f) => ({ value, head: Math.floor(f / n) })));
    byId("copies-numbers").replaceChildren(valueTable({ title: textOf(texts, "copies.things"), cells, rows: names }));
    byId("copies-percent").textContent = share.toFixed(2);
    byId("copies-said").textContent = textOf(texts, "copies.said", { share: share.toFixed(2), first: one.errors[0].toFixed(3), second: one.errors[1].toFixed(3), all: one.all.toFixed(3), two: two.all.toFixed(3) });
    const curve = Array.from({ length: 41 }, (_, at) => ({ at: at / 40, ...copied(values, oneHead(at / 40, T)) }));
    const shares = [["first", "copies.first"], ["second", "copies.second"], ["all", "copies.both"]];
    const pick = { first: (found) => found.errors[0], second: (found) => found.errors[1], all: (found) => found.all };
    const lines = shares.map(([kind]) => ({ kind, points: curve.map((found) => [found.at, pick[kind](found)]) }));
    byId("copies-curve").replaceChildren(lineChart({ lines, most: 1, mark: share, label: textOf(texts, "copies.share"), title: textOf(texts, "copies.error") }), chartLegend(shares.map(([kind, key]) => [kind, textOf(texts, key)])));
    const heads = [["all", "copies.one"], ["two", "copies.two"]];
    const fitted = heads.map(([kind], at) => ({ kind, points: fits[at].map((error, step) => [step, error]) }));
    byId("copies-fits").replaceChildren(lineChart({ lines: fitted, most: fits[0].length - 1, label: textOf(texts, "copies.step"), title: textOf(texts, "copies.fitted") }), chartLegend(heads.map(([kind, key]) => [kind, textOf(texts, key)])));
    const top = make("tr", {}, make("td"), ...["copies.least", "copies.constructed", "copies.fitted"].map((key) => make("th", { scope: "col" }, textOf(texts, key))));
    const row = (key, at) => make("tr", {}, make("th", { scope: "row" }, textOf(texts, key)), ...[least[at], constructed[at], fits[at].at(-1)].map((error) => make("td", { class: "number" }, error.toFixed(4))));
    byId("copies-errors").replaceChildren(make("table", { class: "grid" }, make("thead", {}, top), make("tbody", {}, ...heads.map(([, key], at) => row(key, at)))));
  },
  listen() {
    byId("copies-sample").append(...DATA.copying.values.map((_, at) => make("option", { value: at }, String(at))));
  },
};
