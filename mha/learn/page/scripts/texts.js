// Texts in the chosen language, and elements made of them.

/** The text of a key such as "steps.W_q", with {name} filled in. */
function textOf(texts, key, values = {}) {
  const found = key.split(".").reduce((table, name) => table[name], texts);
  return found.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Fill every element that names a text in data-text or data-label. */
function translate(root, texts, language) {
  document.documentElement.lang = language;
  for (const one of root.querySelectorAll("[data-text]")) one.textContent = textOf(texts, one.dataset.text);
  for (const one of root.querySelectorAll("[data-label]")) one.setAttribute("aria-label", textOf(texts, one.dataset.label));
}

/** An element; children are elements or texts, which need no escaping. */
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}
