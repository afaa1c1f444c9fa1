// What hides keys, rule by rule and all together, and the weights of a query that sees no key, here and in the book.

const FILL = -1e6; // what the book writes over hidden scores

/** The rules of a call as {says, seen}, seen(q, k); a window is (left, right), of which null is no bound. */
function rulesOf({ valid, causal, left, right }) {
  const window = [left === null ? "" : `i - ${left} ≤ `, "j", right === null ? "" : ` ≤ i + ${right}`].join("");
  return [
    { name: "lengths", says: `j < ${valid}`, seen: (q, k) => k < valid },
    { name: "masks.causal", says: causal ? "j ≤ i" : "", seen: (q, k) => !causal || k <= q },
    { name: "masks.window", says: window === "j" ? "" : window, seen: (q, k) => (left === null || q - left <= k) && (right === null || k <= q + right) },
  ];
}

/** Weights of scores (1, Q, K): here, and as in the book; visible: (1, 1, Q, K) booleans. */
function bothWeights(scores, visible) {
  const all = { shape: visible.shape, data: visible.data.map(() => true) };
  const filled = { shape: scores.shape, data: scores.data.map((score, at) => (visible.data[at] ? score : FILL)) };
  return { here: visibleSoftmax(scores, visible), book: visibleSoftmax(filled, all) };
}

const masksPicture = {
  form: "masks-sizes",
  seed: 1,
  draw(texts) {
    const form = byId("masks-sizes");
    const found = numbersOf(form, ["Q", "K", "valid", "left", "right"], texts);
    if (!found) return;
    const { Q, K } = found;
    const rules = rulesOf({ ...found, causal: form.elements.causal.checked });
    const cells = (sees) => Array.from({ length: Q * K }, (_, at) => sees(Math.floor(at / K), at % K));
    const visible = { shape: [1, 1, Q, K], data: cells((q, k) => rules.every((rule) => rule.seen(q, k))) };
    this.scores = normal([1, Q, K], uniformFrom(this.seed));
    const weights = bothWeights(this.scores, visible);
    const without = Array.from({ length: Q }, (_, q) => q).filter((q) => !visible.data.slice(q * K, (q + 1) * K).includes(true));
    const table = (title, cell) => {
      const box = heatTable(title, named("q", Q), named("k", K), cell);
      for (const q of without) box.querySelector("tbody").rows[q].className = "without";
      return box;
    };
    const hidden = textOf(texts, "hidden");
    const sees = (seen) => (q, k) => (seen(q, k) ? { text: "✓" } : hidden);
    const at = (X) => (q, k) => ({ weight: X.data[q * K + k] });
    const all = (q, k) => visible.data[q * K + k];
    const titled = ({ name, says }) => [textOf(texts, name), says].filter(Boolean).join(": ");
    byId("masks-rules").replaceChildren(...rules.map((rule) => table(titled(rule), sees(rule.seen))), table(textOf(texts, "masks.all"), sees(all)));
    const here = (q, k) => (all(q, k) ? at(weights.here)(q, k) : hidden);
    byId("masks-weights").replaceChildren(table(textOf(texts, "masks.here"), here), table(textOf(texts, "masks.book"), at(weights.book)));
    const said = without.length ? textOf(texts, "masks.without", { queries: named("q", Q).filter((_, q) => without.includes(q)).join(", "), share: shown(1 / K) }) : textOf(texts, "masks.none");
    byId("masks-said").textContent = said;
  },
  listen() {
    byId("masks-draw").addEventListener("click", () => { this.seed += 1; this.draw(texts()); });
  },
};
