// Charts of lines, drawn as SVG.

const CHART = { width: 360, height: 210, left: 34, right: 8, top: 8, bottom: 34 };

/** An element of a picture. */
function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A chart of errors from 0 to 1, or to the largest. lines: {points: [[x, y]], kind}, whose style .line.kind says; most: the largest x; mark: an x
 * with a vertical line; label: of the x axis; title: what it shows, for those who do not see it. */
function lineChart({ lines, most, mark, label, title }) {
  const { width, height, left, right, top, bottom } = CHART;
  const x = (value) => left + ((width - left - right) * value) / most;
  const highest = Math.max(1, ...lines.flatMap(({ points }) => points.map(([, value]) => value)));
  const y = (value) => top + (height - top - bottom) * (1 - value / highest);
  const text = (at, anchor, said) => drawn("text", { x: at[0], y: at[1], "text-anchor": anchor }, said);
  const grid = [0, 0.5, 1].flatMap((value) => [drawn("line", { class: "grid-line", x1: left, x2: width - right, y1: y(value), y2: y(value) }), text([left - 5, y(value) + 4], "end", String(value))]);
  const ticks = [0, most / 2, most].map((value) => text([x(value), height - bottom + 15], value === most ? "end" : "middle", String(value)));
  const marks = mark === undefined ? [] : [drawn("line", { class: "mark-line", x1: x(mark), x2: x(mark), y1: y(highest), y2: y(0) })];
  const paths = lines.map(({ points, kind }) => drawn("polyline", { class: `line ${kind}`, points: points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  return drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...grid, ...ticks, text([(left + width - right) / 2, height - 4], "middle", label), ...marks, ...paths);
}

/** What the lines of a chart are: [kind, text] of each. */
function chartLegend(kinds) {
  return make("p", { class: "legend" }, ...kinds.flatMap(([kind, text]) => [make("span", { class: `swatch-line ${kind}` }), `${text} `]));
}
