// The lessons' code, with marks for differences, for shapes and for the line of the step.

const SHAPE = /# .*\([^)]*\).*$/;

/** Ranges (start, end) in order; ranges that touch become one. */
function united(ranges) {
  const found = [];
  for (const [start, end] of [...ranges].sort((one, other) => one[0] - other[0])) {
    const last = found[found.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else found.push([start, end]);
  }
  return found;
}

/** The characters of a framework's piece to mark: words that the reference lacks; "" = words that any other lacks. */
function marksOf(piece, framework, reference) {
  const by = piece.by[framework].marks;
  return reference ? by[reference] || [] : united(Object.values(by).flat());
}

/** A piece's text as lines {text, parts, remark}; parts: {text, marked, shape}. */
function linesOf(text, marks) {
  let start = 0;
  let quoted = false;
  return text.split("\n").map((line) => {
    const quotes = line.split('"""').length - 1;
    const remark = quoted || quotes > 0 || /^\s*#/.test(line);
    if (quotes === 1) quoted = !quoted;
    const shape = remark ? -1 : line.search(SHAPE);
    const inside = marks.map(([from, to]) => [from - start, to - start]);
    const cuts = [0, line.length, ...(shape < 0 ? [] : [shape]), ...inside.flat()];
    const places = [...new Set(cuts.filter((one) => one >= 0 && one <= line.length))].sort((one, other) => one - other);
    const parts = places.slice(1).map((end, at) => ({
      text: line.slice(places[at], end),
      marked: inside.some(([from, to]) => from <= places[at] && end <= to),
      shape: shape >= 0 && places[at] >= shape,
    }));
    start += line.length + 1;
    return { text: line, parts, remark };
  });
}

/** One line as an element; its place, as "heads.py:24", is in data-line. */
function lineElement(line, place) {
  const shown = (part) => (part.marked ? make("mark", {}, part.text) : part.text);
  const code = line.parts.filter((part) => !part.shape).map(shown);
  const shape = line.parts.filter((part) => part.shape).map(shown);
  const indent = line.text.search(/\S|$/);
  return make(
    "span",
    { "data-line": place, class: line.remark ? "remark" : undefined, style: { "--indent": indent } },
    ...code,
    ...(shape.length ? [make("span", { class: "shape" }, ...shape)] : []),
    line.text ? "" : "\u200b",
  );
}

/** One framework's piece: its name, where it is in the file, and the code. */
function figure(chapter, piece, framework, reference, texts) {
  const found = piece.by[framework.name];
  if (!found) return make("figure", {}, make("figcaption", {}, framework.title), make("div", { class: "absent" }, textOf(texts, "absent", { framework: framework.title })));
  const lines = linesOf(found.text, marksOf(piece, framework.name, reference));
  const place = (at) => `${chapter}.py:${found.first + at}`;
  const elements = lines.map((line, at) => lineElement(line, place(at)));
  const code = make("pre", { class: "code", tabindex: "0", translate: "no", "data-framework": framework.name, "aria-label": `${framework.title}, ${piece.name}` }, ...elements);
  return make("figure", {}, make("figcaption", { translate: "no" }, `${framework.title} · ${framework.name}/${place(0)}`), code);
}

/** All chapters, each function a row of these frameworks. */
function lessonElements(chapters, frameworks, reference, texts) {
  return chapters.map((chapter) => {
    const pieces = chapter.pieces.filter((piece) => frameworks.some((one) => piece.by[one.name]));
    const rows = pieces.map((piece) =>
      make(
        "div",
        { class: "piece", "data-piece": piece.name },
        make("h4", { translate: "no" }, piece.name),
        make("div", { class: "row", style: { "--columns": frameworks.length } }, ...frameworks.map((one) => figure(chapter.name, piece, one, reference, texts))),
      ),
    );
    return make("div", { class: "lesson" }, make("h3", { id: `chapter-${chapter.name}`, tabindex: "-1" }, textOf(texts, `chapter_titles.${chapter.name}`)), ...rows);
  });
}

/** Mark the line of a step in every framework that is shown. */
function light(root, lines, step) {
  for (const one of root.querySelectorAll(".lit")) one.classList.remove("lit");
  for (const [framework, places] of Object.entries(lines))
    for (const one of root.querySelectorAll(`[data-framework="${framework}"] [data-line="${places[step]}"]`)) one.classList.add("lit");
}

/** The text of a line of a framework's files, from the piece that holds it; its place is as "heads.py:24". */
function sourceLine(chapters, framework, place) {
  const [file, number] = place.split(":");
  for (const piece of chapters.find((one) => `${one.name}.py` === file).pieces) {
    const found = piece.by[framework];
    const lines = found ? found.text.split("\n") : [];
    const at = found ? number - found.first : -1;
    if (at >= 0 && at < lines.length) return lines[at].trim();
  }
  return "";
}
