// Numbers that are typed into a form, and what is said where one is wrong.

const byId = (id) => document.getElementById(id);

/** Say what is wrong with a form, {wrong, values}, in the line below it, or nothing if all is well; whether it is. */
function isRight(form, { wrong, values }, texts) {
  const line = byId(`${form.id}-wrong`);
  line.hidden = !wrong;
  line.textContent = wrong ? textOf(texts, wrong, values) : "";
  return !wrong;
}

/** The whole numbers of a form by their names, or null, and the form then says what is wrong. An empty box that shows
 * a placeholder is null, which says that there is no bound. */
function numbersOf(form, names, texts) {
  const found = {};
  for (const name of names) {
    const { value, min, max, labels, placeholder } = form.elements[name];
    found[name] = value === "" && placeholder ? null : Number(value);
    if (found[name] === null) continue;
    const fits = value !== "" && Number.isInteger(found[name]) && found[name] >= min && found[name] <= max;
    if (!fits) return isRight(form, { wrong: "bad_size", values: { name: labels[0].textContent.trim(), least: min, most: max } }, texts) || null;
  }
  isRight(form, {}, texts);
  return found;
}
