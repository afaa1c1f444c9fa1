// A cache that fills, token by token, and the bytes that caches take.

const BYTES = { float16: 2, bfloat16: 2, float32: 4, float64: 8 };
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** What token t does to a cache of S slots whose layer sees so many earlier keys, null = all: the slots after it as
 * {position, kind}, the key that is lost or -1, and whether the call is refused, as queries still need that key. */
function slotsAfter(t, S, left) {
  const kind = (position) => (position < 0 ? "empty" : position === t ? "written" : left === null || t - position <= left ? "seen" : "unseen");
  const slots = positionsIn(S, t + 1).map((position) => ({ position, kind: kind(position) }));
  return { slots, lost: t < S ? -1 : t - S, refused: t >= S && (left === null || left >= S) };
}

/** Bytes of keys and values by G, the number of heads of keys: [G, bytes] for each divisor of H, the largest first. */
function bytesByGroups({ H, d, S, B, L }, dtype) {
  const groups = Array.from({ length: H }, (_, at) => H - at).filter((G) => H % G === 0);
  return groups.map((G) => [G, L * B * G * S * 2 * d * BYTES[dtype]]);
}

/** A number of bytes in the largest unit of which there is one, with three digits. */
function bytesText(count) {
  let power = 0;
  for (; count >= 1024 && power < UNITS.length - 1; power++) count /= 1024;
  const scale = count < 10 ? 100 : count < 100 ? 10 : 1;
  return `${Math.floor(count * scale + 0.5) / scale} ${UNITS[power]}`;
}

const slotsPicture = {
  form: "slots-sizes",
  t: 5,
  draw(texts) {
    const found = numbersOf(byId("slots-sizes"), ["T", "S", "left"], texts);
    if (!found) return;
    const { T, S, left } = found;
    this.t = Math.min(this.t, T - 1);
    const refused = Array.from({ length: T }, (_, t) => slotsAfter(t, S, left).refused).indexOf(true);
    if (refused >= 0) this.t = Math.min(this.t, refused); // no token comes after one that is refused
    const last = refused >= 0 ? refused : T - 1;
    const { t } = this;
    const { slots, lost, refused: now } = slotsAfter(t, S, left);
    byId("slots-token").max = last;
    byId("slots-token").value = t;
    byId("slots-previous").disabled = t === 0;
    byId("slots-next").disabled = t === last;
    byId("slots-place").textContent = `t${t}`;
    const seen = slots.flatMap(({ position, kind }, slot) => (kind === "seen" || kind === "written" ? [`k${position} (s${slot})`] : []));
    const goes = textOf(texts, "filling.goes", { t, S, slot: t % S, seen: seen.join(", ") });
    const parts = now ? [textOf(texts, "filling.full", { t, k: lost })] : lost < 0 ? [goes] : [goes, textOf(texts, "filling.loses", { k: lost })];
    byId("slots-said").textContent = parts.join(" ");
    byId("slots-said").classList.toggle("wrong", now);
    const element = ({ position, kind }) => make("td", { class: `slot ${kind}` }, position < 0 ? make("span", { class: "out-of-sight" }, textOf(texts, "empty")) : `k${position}`);
    const row = (one) => make("tr", { "aria-current": one === t ? "true" : undefined }, make("th", { scope: "row" }, `t${one}`), ...slotsAfter(one, S, left).slots.map(element));
    const rows = Array.from({ length: now ? t : t + 1 }, (_, one) => row(one));
    const top = make("tr", {}, make("th", {}, ""), ...named("s", S).map((name) => make("th", { scope: "col" }, name)));
    byId("slots-table").replaceChildren(make("div", { class: "box", tabindex: "0", role: "group", "aria-label": textOf(texts, "filling.title") }, make("table", {}, make("thead", {}, top), make("tbody", {}, ...rows))));
  },
  goTo(t) {
    this.t = t;
    this.draw(texts());
  },
  listen() {
    byId("slots-previous").addEventListener("click", () => this.goTo(this.t - 1));
    byId("slots-next").addEventListener("click", () => this.goTo(this.t + 1));
    byId("slots-token").addEventListener("input", (event) => this.goTo(Number(event.target.value)));
  },
};

const bytesPicture = {
  form: "bytes-sizes",
  draw(texts) {
    const found = numbersOf(byId("bytes-sizes"), ["H", "d", "S", "B", "L"], texts);
    if (!found) return;
    const bars = bytesByGroups(found, byId("bytes-sizes").elements.dtype.value);
    const name = (G) => (G === found.H ? "MHA" : G === 1 ? "MQA" : "GQA");
    const bar = (count) => make("span", { class: "meter", "aria-hidden": "true" }, make("span", { style: { width: `${(100 * count) / bars[0][1]}%` } }));
    const rows = bars.map(([G, count]) => make("tr", {}, make("th", { scope: "row", translate: "no" }, `${name(G)}, G = ${G}`), make("td", {}, bytesText(count)), make("td", {}, bar(count))));
    byId("bytes-table").replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  },
  listen() {},
};
