// The split into heads beside the reshape that looks like it: which number of which token lands in which head.

/** The numbers of a sample (1, T, H*d) as heads (H, T, d): right as in the lesson, wrong by one reshape. */
function splitBoth(X, H) {
  const [, T, width] = X.shape;
  return { right: splitStages(X, H)[2], wrong: reshape(X, H, T, width / H) };
}

/** The tables of arrays (N, rows, columns): each number with the token and feature that it comes from, and its head's colour. */
function splitTables(X, origins, title, { H, width, followed }) {
  const [N, rows, columns] = X.shape;
  const cell = (at) => {
    const [token, feature] = [Math.floor(origins.data[at] / width), origins.data[at] % width];
    return { value: X.data[at], head: Math.floor((feature * H) / width), label: `t${token} f${feature}`, followed: token === followed };
  };
  const row = (n, at) => Array.from({ length: columns }, (_, column) => cell((n * rows + at) * columns + column));
  return Array.from({ length: N }, (_, n) => valueTable({ title: title(n), cells: Array.from({ length: rows }, (_, at) => row(n, at)), rows: named("t", rows) }));
}

const splitsPicture = {
  form: "splits-sizes",
  seed: 1,
  draw(texts) {
    const found = numbersOf(byId("splits-sizes"), ["T", "H", "d"], texts);
    if (!found) return;
    const { T, H, d } = found;
    const tokens = byId("splits-sizes").elements.followed;
    const followed = Math.min(Number(tokens.value), T - 1);
    tokens.replaceChildren(...named("t", T).map((name, at) => make("option", { value: at }, name)));
    tokens.value = followed;
    this.X = normal([1, T, H * d], uniformFrom(this.seed));
    const origins = { shape: this.X.shape, data: this.X.data.map((_, at) => at) };
    const [numbers, places] = [splitBoth(this.X, H), splitBoth(origins, H)];
    const sizes = { H, width: H * d, followed };
    const head = (n) => `${textOf(texts, "head")} ${n}`;
    byId("splits-input").replaceChildren(...splitTables(this.X, origins, () => `X (1, ${T}, ${H * d})`, sizes));
    for (const kind of ["right", "wrong"]) byId(`splits-${kind}`).replaceChildren(...splitTables(numbers[kind], places[kind], head, sizes));
    const right = places.wrong.data.filter((place, at) => place === places.right.data[at]).length;
    byId("splits-count").textContent = textOf(texts, "splits.count", { right, all: origins.data.length });
  },
  listen() {
    byId("splits-draw").addEventListener("click", () => { this.seed += 1; this.draw(texts()); });
  },
};
