// The lessons' code: lines with their differences, shapes and the line of the step marked.

const SHAPE = /# .*\([^)]*\).*$/;

/** Ranges (start, end) in order, those that touch made one. */
function united(ranges) {
  const found = [];
  for (const [start, end] of [...ranges].sort((one, other) => one[0] - other[0])) {
    const last = found[found.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else found.push([start, end]);
  }
  return found;
}

/** Which characters of a framework's piece to mark: what the reference has not, "" = what not all have. */
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

/** One line as an element; its number in the file is in data-line. */
function lineElement(line, number) {
  const shown = (part) => (part.marked ? make("mark", {}, part.text) : part.text);
  const code = line.parts.filter((part) => !part.shape).map(shown);
  const shape = line.parts.filter((part) => part.shape).map(shown);
  const indent = line.text.search(/\S|$/);
  return make(
    "span",
    { "data-line": number, class: line.remark ? "remark" : undefined, style: { "--indent": indent } },
    ...code,
    ...(shape.length ? [make("span", { class: "shape" }, ...shape)] : []),
    line.text ? "" : "\u200b",
  );
}

/** One framework's piece: its name, where it is in the file, and the code. */
function figure(piece, framework, reference, texts) {
  const found = piece.by[framework.name];
  if (!found) return make("figure", {}, make("figcaption", {}, framework.title), make("div", { class: "absent" }, textOf(texts, "absent", { framework: framework.title })));
  const lines = linesOf(found.text, marksOf(piece, framework.name, reference));
  const elements = lines.map((line, at) => lineElement(line, found.first + at));
  const place = `${framework.name}/layer.py:${found.first}`;
  const code = make("pre", { class: "code", tabindex: "0", translate: "no", "data-framework": framework.name, "aria-label": `${framework.title}, ${piece.name}` }, ...elements);
  return make("figure", {}, make("figcaption", { translate: "no" }, `${framework.title} · ${place}`), code);
}

/** All sections, each function a row of these frameworks. */
function lessonElements(sections, frameworks, reference, texts) {
  return sections.map((section, at) => {
    const pieces = section.pieces.filter((piece) => frameworks.some((one) => piece.by[one.name]));
    const rows = pieces.map((piece) =>
      make(
        "div",
        { class: "piece", "data-piece": piece.name },
        make("h4", { translate: "no" }, piece.name),
        make("div", { class: "row", style: { "--columns": frameworks.length } }, ...frameworks.map((one) => figure(piece, one, reference, texts))),
      ),
    );
    return make("div", { class: "lesson" }, make("h3", {}, textOf(texts, `sections.s${at}`)), ...rows);
  });
}

/** Light the line of a step in every framework that is shown. */
function light(root, lines, step) {
  for (const one of root.querySelectorAll(".lit")) one.classList.remove("lit");
  for (const [framework, numbers] of Object.entries(lines))
    for (const one of root.querySelectorAll(`[data-framework="${framework}"] [data-line="${numbers[step]}"]`)) one.classList.add("lit");
}

/** The text of a line of a framework's file, from the piece that holds it. */
function sourceLine(sections, framework, number) {
  for (const piece of sections.flatMap((section) => section.pieces)) {
    const found = piece.by[framework];
    const lines = found ? found.text.split("\n") : [];
    if (found && number >= found.first && number < found.first + lines.length) return lines[number - found.first].trim();
  }
  return "";
}
